"""The one stream of events: everything a person or a test can learn about a running peer.

Small frozen dataclasses that import nothing heavy, so that the status view, the TUI and the tests can read them.
`to_fields` and `from_fields` are the form on the control socket and in the event log: a flat map with the class's name
under "event".  Peers are peer IDs, hashes are hexadecimal, sizes are bytes, times are seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    def to_fields(self) -> dict[str, Any]:
        return {"event": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Started(Event):
    """The first event of every life.  addresses: where it listens; none when it ended before it did.

    run_name: empty until an invitation's manifest is fetched.  data_dir: identity, runs, logs.
    """

    peer: str
    name: str
    run: str
    run_name: str
    version: str
    pid: int
    addresses: list[str]
    data_dir: str


@dataclass(frozen=True)
class Left(Event):
    """The last event of every life that ends by itself.

    goodbye: it was said.  heard_by: so many peers confirmed it.  rounds: committed, and on disk; None when it ended before
    it had looked.
    exit_code: the process's.  problem: the sentence that says why it could not go on; empty when it was told to leave.
    """

    goodbye: bool
    heard_by: int
    rounds: int | None
    exit_code: int
    problem: str


@dataclass(frozen=True)
class LinesLost(Event):
    """Only on standard output: so many lines are missing here, because they could not be written; they are in the log."""

    lines: int
    reason: str


@dataclass(frozen=True)
class PhaseChanged(Event):
    phase: str
    why_idle: str
    detail: str


@dataclass(frozen=True)
class PeerJoined(Event):
    """First heartbeat of a peer, or of its new incarnation."""

    peer: str
    name: str


@dataclass(frozen=True)
class PeerSuspected(Event):
    """No heartbeat for `silent_s`; or its connection broke (`disconnected`), however recent the last one is."""

    peer: str
    silent_s: float
    disconnected: bool


@dataclass(frozen=True)
class PeerGone(Event):
    peer: str
    goodbye: bool


@dataclass(frozen=True)
class PeerBanned(Event):
    """A peer was disconnected and stays out for a while; `reason` is what it did at last."""

    peer: str
    reason: str


@dataclass(frozen=True)
class StrangersClosed(Event):
    """Connections from outside that were closed since this was told last, at most once a minute.

    silent: their peer did not greet in time.  crowded: there was no room.  busiest: the address that most were from.
    """

    silent: int
    crowded: int
    busiest: str


@dataclass(frozen=True)
class TrainerStarted(Event):
    pid: int


@dataclass(frozen=True)
class TrainerStopped(Event):
    """The trainer died or was ended; `reason` is a sentence."""

    reason: str


@dataclass(frozen=True)
class ComputeProgress(Event):
    """After an inner step.  left_s: seconds until the last one, at the present rate."""

    round: int
    steps: int
    total_steps: int
    loss: float
    tokens_per_s: float
    left_s: float


@dataclass(frozen=True)
class ReadySent(Event):
    round: int
    tokens: int
    steps: int
    loss: float


@dataclass(frozen=True)
class RoundProposed(Event):
    round: int
    attempt: int
    proposer: str
    members: list[str]
    evicted: list[str]


@dataclass(frozen=True)
class ExchangeProgress(Event):
    """chunks_done of chunks_total results are here; `waiting_for` names who is waited for."""

    round: int
    chunks_done: int
    chunks_total: int
    waiting_for: list[str]


@dataclass(frozen=True)
class ExchangeFinished(Event):
    round: int
    seconds: float
    up_bytes: int
    down_bytes: int


@dataclass(frozen=True)
class MemberLost(Event):
    """A member stopped delivering in this round's exchange; its missing chunks are averaged without it."""

    round: int
    peer: str


@dataclass(frozen=True)
class PeerEjected(Event):
    """Proven to have lied: it takes no part here any more.  `evidence` is the name of the proof."""

    peer: str
    reason: str
    evidence: str


@dataclass(frozen=True)
class AuditDone(Event):
    """Averages of others were computed again before the vote: so many, of which so many could be."""

    round: int
    chunks: int
    checked: int


@dataclass(frozen=True)
class RoundVoted(Event):
    round: int
    attempt: int
    record: str


@dataclass(frozen=True)
class RoundCommitted(Event):
    """A record is certified, on disk and about to be applied.  `mine`: our contribution is in it."""

    round: int
    tip: str
    members: list[str]
    tokens: int
    loss: float
    mine: bool


@dataclass(frozen=True)
class StateApplied(Event):
    """`rounds` records have been applied; `digest` is the outer state's."""

    rounds: int
    digest: str


@dataclass(frozen=True)
class EvalLoss(Event):
    """The held-out loss of the state after `rounds` rounds, as the peer `by` measured it, or claims to have."""

    rounds: int
    loss: float
    by: str


@dataclass(frozen=True)
class EvalProgress(Event):
    """We measure the state after `rounds` rounds: so many of the held-out windows are done."""

    rounds: int
    done: int
    total: int


@dataclass(frozen=True)
class CheckpointWritten(Event):
    rounds: int
    size_bytes: int


@dataclass(frozen=True)
class SyncProgress(Event):
    """Catching up: `what` is records, results or checkpoint."""

    what: str
    done: int
    total: int


@dataclass(frozen=True)
class RolledBack(Event):
    """We were on the losing side of a fork and went back to the common ancestor.

    winner: the peer whose chain won; empty when nobody alive has the results of the abandoned rounds.
    """

    to_round: int
    abandoned: int
    winner: str


@dataclass(frozen=True)
class Desynced(Event):
    """Our outer state's digest is not the swarm's; it is being repaired."""

    round: int
    mine: str
    theirs: str


@dataclass(frozen=True)
class Dropped(Event):
    """Something from a peer was malformed or not allowed, and was dropped."""

    peer: str
    what: str
    reason: str


@dataclass(frozen=True)
class NobodyAnswers(Event):
    """No peer of the invitation has answered yet.

    seconds: since the search began.  tried: maps of address, times and problem (a phrase).  check: what the person can do.
    """

    seconds: float
    tried: list[dict[str, Any]]
    check: str


@dataclass(frozen=True)
class Notice(Event):
    """A sentence for the person at the screen."""

    level: str
    text: str


PROGRESS = (ComputeProgress, EvalProgress, ExchangeProgress, SyncProgress)
"""Events that the next one of their kind makes stale: there are many, and only the newest is worth keeping."""
EVENTS: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}


def from_fields(fields: dict[str, Any]) -> Event:
    """The event in `fields`; raises ValueError when there is no such event or its fields are wrong."""
    rest = dict(fields)
    cls = EVENTS.get(rest.pop("event", ""))
    if cls is None:
        raise ValueError(f"no such event: {fields.get('event')!r}")
    try:
        return cls(**rest)
    except TypeError as error:
        raise ValueError(f"event {cls.__name__} with wrong fields") from error
