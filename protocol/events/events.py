"""The one stream of events: everything a person or a test can learn about a running peer.

Small frozen dataclasses that import nothing heavy, so that the terminal interface and the tests can read them.
`Event.to_fields` and `from_fields` define the form on the control socket and in the event log: a flat map with the class's
name under "event"; docs/reference/events.md is its schema.  Peers are peer IDs, hashes are hexadecimal, sizes are bytes,
times are seconds, losses are nats a token.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# ------------------------------------------------------------------------------------------------------------------------
# The base of all events.


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    def to_fields(self) -> dict[str, Any]:
        """Return a flat map: the class's name under "event", then the fields."""
        return {"event": type(self).__name__, **asdict(self)}


# ------------------------------------------------------------------------------------------------------------------------
# Events about the connections between this peer and others.


@dataclass(frozen=True)
class ReachabilityChanged(Event):
    """Peers that were asked to dial back have come to another result than before.

    reachable: whether others reach this peer: reachable, unreachable or unknown.  addresses: the same for each address at
    which they see it.
    """

    reachable: str
    addresses: dict[str, str]


@dataclass(frozen=True)
class LinkChanged(Event):
    """A peer is connected, or its connection is of another kind than before.

    link: direct (one of the two dialled an address of the other), reversed (it was asked to dial us), punched (both dialled
    each other through their routers) or relayed (through a third peer).
    """

    peer: str
    link: str


@dataclass(frozen=True)
class PortMapped(Event):
    """This peer's router began or stopped to forward an outside address to it.

    address: the outside address; empty when the forwarding stopped.  by: UPnP or NAT-PMP.
    """

    address: str
    by: str


@dataclass(frozen=True)
class StrangersClosed(Event):
    """Connections from outside were closed since the last such event, which comes at most once a minute.

    silent: closed as their peer did not greet in time.  crowded: closed for lack of room.  busiest: the address that most
    came from.
    """

    silent: int
    crowded: int
    busiest: str


@dataclass(frozen=True)
class NobodyAnswers(Event):
    """No peer of the invitation has answered yet; told less and less often.

    seconds: since the search began.  tried: maps of address, times and problem (a phrase).  check: what the person can do.
    """

    seconds: float
    tried: list[dict[str, Any]]
    check: str


# ------------------------------------------------------------------------------------------------------------------------
# Events about blobs that this peer fetches.


@dataclass(frozen=True)
class TransferProgress(Event):
    """A blob is on its way to this peer; told once a second at most.

    what: checkpoint, result, weights, patch, file, rollouts, tasks or reference.  number: the rounds that a checkpoint has
    applied, the round of a result, the version that weights or a patch lead to, the place of a file among the run's, the
    version that rollouts are of, 0 of tasks, the round that reference weights began.  blob: its name.
    done, total: chunks.  size_bytes: of the whole blob.  chunks: a map of at most 256 cells, each for one chunk or several:
    # if all are here, + if some are, . if none is.  sources: peers that have some of the blob.  left_s: seconds; None while
    no rate is known.
    """

    what: str
    number: int
    blob: str
    done: int
    total: int
    size_bytes: int
    chunks: str
    down_bytes_per_s: float
    sources: int
    left_s: float | None


@dataclass(frozen=True)
class TransferEnded(Event):
    """The transfer of a blob is over: the blob is complete, nobody has the rest, or it is not wanted any more.

    what, number, blob: as in `TransferProgress`.  fetched_bytes: bytes that were not here when the transfer began.
    seconds: since then.  complete: false if nobody has the rest, or it is not wanted any more.
    """

    what: str
    number: int
    blob: str
    fetched_bytes: int
    seconds: float
    complete: bool


def subject(event: Event) -> tuple[str, str]:
    """Return an event's subject.  The later of two events with one subject makes the earlier stale, if that is progress."""
    match event:
        case TransferProgress(blob=blob) | TransferEnded(blob=blob):
            return "transfer", blob
        case _:
            return type(event).__name__, ""


# ------------------------------------------------------------------------------------------------------------------------
# Events about versions of the weights.


@dataclass(frozen=True)
class VersionPublished(Event):
    """A publisher has signed a version of the weights, and this peer has heard of it.

    Not told of older versions that this peer asks for.
    kind: anchor (it can be fetched whole) or patch.  size_bytes: of the whole.  patch_bytes: None if there is no patch.
    """

    version: int
    publisher: str
    kind: str
    size_bytes: int
    patch_bytes: int | None


@dataclass(frozen=True)
class VersionStarted(Event):
    """This peer begins to fetch a version.  size_bytes: to be fetched.  files: number of files, patches or the whole."""

    version: int
    size_bytes: int
    files: int


@dataclass(frozen=True)
class VersionComplete(Event):
    """A version is on disk, every tensor as it was signed; told at the start as well, of the newest one that is here.

    weights: the root of its file.  seconds: since the fetch began.
    """

    version: int
    weights: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class VersionRefused(Event):
    """A version, or a patch that leads to it, is not used; `reason` is a phrase."""

    version: int
    reason: str


# ------------------------------------------------------------------------------------------------------------------------
# Events about rollouts.


@dataclass(frozen=True)
class RolloutsGenerated(Event):
    """This peer has made a batch of rollouts with the weights of `version`, and announces it.

    number: of the batch at that version.  root: its name.  tokens: made by the model.  seconds: time that it took.
    """

    version: int
    number: int
    root: str
    rollouts: int
    tokens: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True)
class BatchJudged(Event):
    """A validator has judged a batch of rollouts: this peer itself, or another peer a batch of ours.

    accepted, rejected, inconclusive: numbers of rollouts.  reasons: of the rejections, each once.
    """

    author: str
    version: int
    number: int
    root: str
    validator: str
    accepted: int
    rejected: int
    inconclusive: int
    reasons: list[str]


@dataclass(frozen=True)
class BatchDecided(Event):
    """The final verdict of this trainer on a batch that is for it: accepted, rejected, or stale.

    Also told of this peer's own batch if that became stale before anybody judged it.
    verdict: accepted, rejected or stale.  reason: of a rejection.  checked: whether this peer verified the batch itself.
    """

    author: str
    version: int
    number: int
    root: str
    verdict: str
    reason: str
    rollouts: int
    checked: bool


@dataclass(frozen=True)
class RolloutsUsed(Event):
    """This trainer has learned from these batches in a round.  root: over their names, as in its READY.

    reward: mean reward of the rollouts, 0 to 1, as computed here.  kl: distance of the policy from the reference weights,
    nats a token; None if the loss has no KL term, or nothing moved the policy.
    """

    round: int
    batches: list[str]
    rollouts: int
    reward: float | None
    root: str
    kl: float | None = None


@dataclass(frozen=True)
class TaskSetOffered(Event):
    """A peer, maybe this one, offers a set of tasks.  root: ID of the set."""

    publisher: str
    root: str
    name: str
    tasks: int
    size_bytes: int


@dataclass(frozen=True)
class TasksAmended(Event):
    """These sets of tasks are in force from version `version` on; `percent` of the problems come from them.

    number: of the organiser's amendment.  sets: their IDs.
    """

    number: int
    version: int
    sets: list[str]
    percent: int


@dataclass(frozen=True)
class TaskSetFellOut(Event):
    """No more problems come from this set of tasks: more than half of a record's voters were against it.

    root: ID of the set.  version: the first one without it.
    """

    root: str
    name: str
    version: int


@dataclass(frozen=True)
class RolloutsCounted(Event):
    """The members of a record on disk learned from rollouts, with this mean reward as they state it.

    Told again for a round whose record another branch has replaced: earlier events about that round, and about later ones,
    are void then.  batches: number of batches that no earlier record names.  tokens: of the outputs in these batches.
    authors: accepted tokens of each rollout peer: first of this peer if it is one, then the largest, 64 at most.
    others: rollout peers that are left out.  mine: the roots of this peer's batches.
    """

    round: int
    reward: float | None
    batches: int
    tokens: int
    authors: dict[str, int]
    others: int
    mine: list[str]


@dataclass(frozen=True)
class RolloutPeerSetAside(Event):
    """No rollouts of `peer` are used any more; `reason` is a phrase."""

    peer: str
    reason: str


@dataclass(frozen=True)
class ValidatorSetAside(Event):
    """Verdicts of `peer` no longer count; `reason` is a phrase."""

    peer: str
    reason: str


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started(Event):
    """The first event of every life.  addresses: where the peer listens; none if it ended before it listened.

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

    goodbye: whether it was said.  heard_by: number of peers that confirmed it.  rounds: committed, and on disk; None if the
    peer ended before it had looked.
    exit_code: of the process.  problem: the sentence that says why it could not go on; empty when it was told to leave.
    """

    goodbye: bool
    heard_by: int
    rounds: int | None
    exit_code: int
    problem: str


@dataclass(frozen=True)
class LinesLost(Event):
    """Lines of standard output are missing here, because they could not be written; they are in the log.

    Only on standard output.  lines: how many.  reason: a sentence.
    """

    lines: int
    reason: str


@dataclass(frozen=True)
class PhaseChanged(Event):
    """The phase of this peer has changed, or the reason for it.

    phase, why_idle: as in the status of a peer.  detail: a sentence.
    """

    phase: str
    why_idle: str
    detail: str


@dataclass(frozen=True)
class PeerJoined(Event):
    """The first heartbeat of a peer, or of its new incarnation, has come."""

    peer: str
    name: str


@dataclass(frozen=True)
class PeerSuspected(Event):
    """A peer sent no heartbeat for `silent_s`, or its connection broke (`disconnected`), however recent the last one is."""

    peer: str
    silent_s: float
    disconnected: bool


@dataclass(frozen=True)
class PeerGone(Event):
    """A peer is no longer counted: it said goodbye, or it was silent for too long (then `goodbye` is false)."""

    peer: str
    goodbye: bool


@dataclass(frozen=True)
class PeerBanned(Event):
    """A peer was disconnected and stays out for a while; `reason` names its last offence."""

    peer: str
    reason: str


@dataclass(frozen=True)
class RoleChosen(Event):
    """This peer has chosen its role in a run with rollouts, as its owner left that open.

    role: trainer, rollout, validator or seed.  reason: a sentence.
    """

    role: str
    reason: str


@dataclass(frozen=True)
class TrainerStarted(Event):
    """The trainer is ready for work, as the process `pid`."""

    pid: int


@dataclass(frozen=True)
class TrainerStopped(Event):
    """The trainer died or was ended; `reason` is a sentence."""

    reason: str


@dataclass(frozen=True)
class ComputeProgress(Event):
    """This peer has done an inner step.

    steps, total_steps: done, and wanted in this round.  loss: mean of the round so far.
    left_s: seconds until the last step, at the present rate.
    """

    round: int
    steps: int
    total_steps: int
    loss: float
    tokens_per_s: float
    left_s: float


@dataclass(frozen=True)
class ReadySent(Event):
    """This peer's contribution to a round is complete, and it told the others.

    tokens, steps: trained for it.  loss: mean of its steps.
    """

    round: int
    tokens: int
    steps: int
    loss: float


@dataclass(frozen=True)
class RoundProposed(Event):
    """This peer proposes a plan.

    attempt: 0 for the round's first.  proposer: this peer.  members: peers whose contributions are averaged.
    absent: electors that the ballot goes on without.
    """

    round: int
    attempt: int
    proposer: str
    members: list[str]
    absent: list[str]


@dataclass(frozen=True)
class ExchangeProgress(Event):
    """The averages of `chunks_done` of `chunks_total` chunks are here; `waiting_for` names the peers that are late."""

    round: int
    chunks_done: int
    chunks_total: int
    waiting_for: list[str]


@dataclass(frozen=True)
class ExchangeFinished(Event):
    """This peer's part in an exchange is over, with all results or without.

    seconds: from its start to the last result.  up_bytes, down_bytes: moved for it, all channels together.
    """

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
    """A peer is proven to have lied and takes no part here any more.  `evidence` is the name of the proof."""

    peer: str
    reason: str
    evidence: str


@dataclass(frozen=True)
class AuditDone(Event):
    """Averages of others were to be recomputed before the vote: `chunks` of them, of which `checked` could be."""

    round: int
    chunks: int
    checked: int


@dataclass(frozen=True)
class RoundVoted(Event):
    """This peer votes for a record.  record: its hash."""

    round: int
    attempt: int
    record: str


@dataclass(frozen=True)
class RecordRatified(Event):
    """This peer votes to make a provisional record full, or has a quorum of such votes.  final: rounds that are final."""

    round: int
    record: str
    final: int


@dataclass(frozen=True)
class RoundCommitted(Event):
    """A record is on disk, about to be applied.  tip: its hash.  tokens, loss: of all members.  mine: we are a member."""

    round: int
    tip: str
    members: list[str]
    tokens: int
    loss: float
    mine: bool


@dataclass(frozen=True)
class RunEnded(Event):
    """The run has reached its total: this is its final record, and the state after it the final one.

    Told once in every life that gets there.  rounds, tokens: done, of all members.  unit: "tokens" or "rounds", which the
    total counts.  tip: the final record's hash.
    """

    rounds: int
    tokens: int
    unit: str
    total: int
    tip: str


@dataclass(frozen=True)
class RunExtended(Event):
    """The run goes on for longer, as its organiser signed and the chain says.  total: in `unit`, from `round` on."""

    round: int
    unit: str
    total: int


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
    """This peer measures the state after `rounds` rounds: `done` of `total` held-out windows."""

    rounds: int
    done: int
    total: int


@dataclass(frozen=True)
class CheckpointWritten(Event):
    """The state after `rounds` rounds is on disk, with `size_bytes`."""

    rounds: int
    size_bytes: int


@dataclass(frozen=True)
class StateLoaded(Event):
    """The outer state after `rounds` rounds is loaded, from a checkpoint or, with 0 rounds, from the run's beginning."""

    rounds: int


@dataclass(frozen=True)
class SyncProgress(Event):
    """Catching up: `done` of `total` records are here."""

    done: int
    total: int


@dataclass(frozen=True)
class RolledBack(Event):
    """This peer was on the losing side of a fork and went back to the common ancestor.

    to_round: rounds that remain.  abandoned: rounds given up.
    winner: the peer whose chain won; empty when nobody alive has the results of the abandoned rounds.
    """

    to_round: int
    abandoned: int
    winner: str


@dataclass(frozen=True)
class SecondHistory(Event):
    """A second record of `round` is certified by the whole electorate: a third of the electorate or more has lied.

    Told once for each such record.
    ours, theirs: hashes of the two records; ours is kept.  shown_by: the peer that showed it.  signers: electors that signed
    both.
    """

    round: int
    ours: str
    theirs: str
    shown_by: str
    signers: list[str]


@dataclass(frozen=True)
class Desynced(Event):
    """This peer's outer state before `round` is not the swarm's; it is being repaired.  mine, theirs: the digests."""

    round: int
    mine: str
    theirs: str


@dataclass(frozen=True)
class Dropped(Event):
    """Something from a peer was malformed or not allowed, and was dropped.

    Told at most once in 10 s for each peer and kind; of questions for which there was no room, at most once in 10 s for all
    peers together.
    what: its kind.  reason: a phrase.  times: such drops since the last such event.
    """

    peer: str
    what: str
    reason: str
    times: int = 1


@dataclass(frozen=True)
class HandlerFailed(Event):
    """A statement of a peer made its handler fail: a mistake of this software.  The peer was disconnected.

    what: the kind of statement.  reason: the error, and where it was raised.  times: since the last such event.
    """

    peer: str
    what: str
    reason: str
    times: int


@dataclass(frozen=True)
class Notice(Event):
    """A sentence for the person at the screen.  level: info, warning or debug."""

    level: str
    text: str


PROGRESS = (ComputeProgress, EvalProgress, ExchangeProgress, SyncProgress, TransferProgress)
"""Events that the next one of their subject makes stale: there are many, and only the newest is worth keeping."""


# ------------------------------------------------------------------------------------------------------------------------
# Events read back from the control socket and the event log.


EVENTS: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}


def from_fields(fields: dict[str, Any]) -> Event:
    """Return the event in `fields`; raise ValueError if there is no such event or its fields are wrong."""
    name = fields.get("event")
    cls = EVENTS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"no such event: {fields.get('event')!r}")
    try:
        return cls(**{name: value for name, value in fields.items() if name != "event"})
    except TypeError as error:
        raise ValueError(f"event {cls.__name__} with wrong fields") from error
