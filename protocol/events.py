"""The one stream of events: everything a person or a test can learn about a running peer.

Small frozen dataclasses that import nothing heavy, so that the terminal interface and the tests can read them.
`to_fields` and `protocol.event_reading` are the form on the control socket and in the event log: a flat map with the class's
name under "event"; docs/events.md is its schema.  Peers are peer IDs, hashes are hexadecimal, sizes are bytes, times are
seconds, losses are nats a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.event import Event as Event
from protocol.network_events import LinkChanged as LinkChanged
from protocol.network_events import NobodyAnswers as NobodyAnswers
from protocol.network_events import PortMapped as PortMapped
from protocol.network_events import ReachabilityChanged as ReachabilityChanged
from protocol.network_events import StrangersClosed as StrangersClosed
from protocol.rollout_events import BatchDecided as BatchDecided
from protocol.rollout_events import BatchJudged as BatchJudged
from protocol.rollout_events import RolloutPeerSetAside as RolloutPeerSetAside
from protocol.rollout_events import RolloutsCounted as RolloutsCounted
from protocol.rollout_events import RolloutsGenerated as RolloutsGenerated
from protocol.rollout_events import RolloutsUsed as RolloutsUsed
from protocol.rollout_events import TasksAmended as TasksAmended
from protocol.rollout_events import TaskSetFellOut as TaskSetFellOut
from protocol.rollout_events import TaskSetOffered as TaskSetOffered
from protocol.rollout_events import ValidatorSetAside as ValidatorSetAside
from protocol.transfer_events import TransferEnded as TransferEnded
from protocol.transfer_events import TransferProgress as TransferProgress
from protocol.transfer_events import subject as subject
from protocol.weight_events import VersionComplete as VersionComplete
from protocol.weight_events import VersionPublished as VersionPublished
from protocol.weight_events import VersionRefused as VersionRefused
from protocol.weight_events import VersionStarted as VersionStarted


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
    """Lines of standard output are missing here, because they could not be written; they are in the log.

    Only on standard output.  lines: how many.  reason: a sentence.
    """

    lines: int
    reason: str


@dataclass(frozen=True)
class PhaseChanged(Event):
    """This peer does something else now, or for another reason.

    phase: a `protocol.wire.messages.Phase`.  why_idle: a `WhyIdle`, empty when it computes.  detail: a sentence.
    """

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
    """A peer is not counted any more: it said goodbye, or has been silent for too long (`goodbye` is false)."""

    peer: str
    goodbye: bool


@dataclass(frozen=True)
class PeerBanned(Event):
    """A peer was disconnected and stays out for a while; `reason` is what it did at last."""

    peer: str
    reason: str


@dataclass(frozen=True)
class RoleChosen(Event):
    """What this peer does in a run with rollouts, where its owner left that open.  reason: a sentence."""

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
    """After an inner step of this peer's.

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

    tokens, steps: what was trained for it.  loss: mean of its steps.
    """

    round: int
    tokens: int
    steps: int
    loss: float


@dataclass(frozen=True)
class RoundProposed(Event):
    """This peer proposes a plan.

    attempt: 0 for the round's first.  proposer: this peer.  members: whose contributions are averaged.
    absent: electors that the ballot goes on without.
    """

    round: int
    attempt: int
    proposer: str
    members: list[str]
    absent: list[str]


@dataclass(frozen=True)
class ExchangeProgress(Event):
    """The averages of `chunks_done` of `chunks_total` chunks are here; `waiting_for` names who is waited for."""

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
    """Proven to have lied: it takes no part here any more.  `evidence` is the name of the proof."""

    peer: str
    reason: str
    evidence: str


@dataclass(frozen=True)
class AuditDone(Event):
    """Averages of others were to be computed again before the vote: of `chunks`, and `checked` of them could be."""

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
    """A record is on disk, about to be applied.  tip: its hash.  tokens, loss: of all members.  mine: whether we are one."""

    round: int
    tip: str
    members: list[str]
    tokens: int
    loss: float
    mine: bool


@dataclass(frozen=True)
class RunEnded(Event):
    """The run has reached its total: this is its final record, and the state after it the final one.

    Told once in every life that comes to it.  rounds, tokens: done, of all members.  unit: "tokens" or "rounds", which the
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
    """The outer state is that after `rounds` rounds, from a checkpoint or, after 0, from the beginning of the run."""

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
    """There is another record of `round`, certified as well by the whole electorate: a third of it or more has lied.

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
    """Something from a peer was malformed or not allowed, and was dropped.  what: its kind.  reason: a phrase.

    times: such drops since this was told last; told once in 10 s.
    """

    peer: str
    what: str
    reason: str
    times: int = 1


@dataclass(frozen=True)
class HandlerFailed(Event):
    """A statement of a peer made what handles it fail: a mistake of this software.  The peer was disconnected.

    what: the kind of statement.  reason: what was raised, and where.  times: since this was told last.
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
