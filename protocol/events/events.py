"""The single stream of events: all facts that a person or a test can learn about a running peer.

Small frozen dataclasses that import nothing heavy, so that the terminal interface and the tests can read them.
`Event.to_fields` and `from_fields` define the form on the control socket and in the event log: a flat map with the class's
name under "event"; docs/reference/events.md is its schema.  Peers are peer IDs, hashes are hexadecimal, sizes are bytes,
times are seconds, losses are nats a token.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
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
# Events about the connections between this peer and other peers.


@dataclass(frozen=True)
class ReachabilityChanged(Event):
    """Peers that were asked to dial back have come to a new result.

    reachable: reachable, unreachable or unknown, according to these peers.  addresses: the same for each address at which
    they see this peer.
    """

    reachable: str
    addresses: dict[str, str]


@dataclass(frozen=True)
class LinkChanged(Event):
    """A peer was connected, or the kind of its connection has changed.

    link: direct (one of the two dialled an address of the other), reversed (it was asked to dial us), punched (both dialled
    each other through their routers) or relayed (through a third peer).
    """

    peer: str
    link: str


@dataclass(frozen=True)
class PortMapped(Event):
    """This peer's router began or stopped forwarding an outside address to it.

    address: the outside address; empty when the forwarding stopped.  by: UPnP or NAT-PMP.
    """

    address: str
    by: str


@dataclass(frozen=True)
class StrangersClosed(Event):
    """Connections from outside were closed since the last such event; emitted at most once a minute.

    silent: number closed because the peer did not greet before the deadline.  crowded: number closed for lack of room.
    busiest: the address from which most of them came.
    """

    silent: int
    crowded: int
    busiest: str


@dataclass(frozen=True)
class NobodyAnswers(Event):
    """No peer named by the invitation has answered yet; emitted less and less often.

    seconds: time since the search began.  tried: maps of address, times and problem (a phrase).  check: advice to the
    person.
    """

    seconds: float
    tried: list[dict[str, Any]]
    check: str


# ------------------------------------------------------------------------------------------------------------------------
# Events about blobs that this peer fetches.


@dataclass(frozen=True)
class TransferProgress(Event):
    """This peer is fetching a blob; emitted at most once a second.

    what: checkpoint, result, file, rollouts, tasks, reference or blocks.  number: the rounds that a checkpoint has applied,
    the round of a result, the position of a file among the run's files, the version with which rollouts were made, 0 for
    tasks, the round that reference weights began, the position of a shard in its corpus.  blob: name of the blob.  done,
    total: numbers of chunks.  size_bytes: size of the blob; of blocks, only those that are fetched count.  chunks: a map of
    the blob of at most 256 cells, each for one or more chunks: # if all of them are here, + if some are, . if none is.
    sources: number of peers that have some of the blob.  left_s: estimated seconds to the end; None while no rate is known.
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
    """The transfer of a blob has ended: the blob is complete, no peer has the rest, or it is no longer wanted.

    what, number, blob: as in `TransferProgress`.  fetched_bytes: bytes that were not here when the transfer began.
    seconds: duration of the transfer.  complete: true if the whole blob is here.
    """

    what: str
    number: int
    blob: str
    fetched_bytes: int
    seconds: float
    complete: bool


def subject(event: Event) -> tuple[str, str]:
    """Return an event's subject.  A progress event becomes stale when a later event has the same subject."""
    match event:
        case TransferProgress(blob=blob) | TransferEnded(blob=blob):
            return "transfer", blob
        case _:
            return type(event).__name__, ""


# ------------------------------------------------------------------------------------------------------------------------
# Events about rollouts.


@dataclass(frozen=True)
class RolloutsGenerated(Event):
    """This peer has made a batch of rollouts with the weights of `version`, and announces it.

    number: number of the batch at that version.  root: name of the batch.  tokens: number of tokens that the model made.
    seconds: time taken.
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
    """This peer, as a validator, has judged a batch of rollouts, or another validator has judged a batch of this peer.

    accepted, rejected, inconclusive: numbers of rollouts.  reasons: reasons of the rejections, each once.
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
    """This trainer's final verdict on a batch that is meant for it: accepted, rejected, or stale.

    Also emitted for this peer's own batch if the batch became stale before any validator judged it.
    verdict: accepted, rejected or stale.  reason: reason of a rejection.  checked: true if this peer verified the batch
    itself.
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
    """This trainer has learned from these batches in a round.  root: root over their names, as in its READY.

    reward: mean reward of the rollouts, 0 to 1, as computed here.  kl: distance of the policy from the reference weights,
    nats a token; None if the loss has no KL term, or nothing moved the policy.  answers: the best one by reward, then one
    with the median reward: maps of reward, prompt and text, each text a line in which ↵ stands for a line break.
    informative: number of problems whose answers had different rewards; without any nothing was learned.  None if unknown.
    """

    round: int
    batches: list[str]
    rollouts: int
    reward: float | None
    root: str
    kl: float | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    informative: int | None = None


@dataclass(frozen=True)
class NothingLearned(Event):
    """This trainer learned nothing in its last `rounds` rounds of rollouts: all answers to each problem had the same reward.

    Emitted after three such rounds in a row, and each time their number has doubled.  reward: mean reward in the last one.
    prompt, text: a problem, and a typical answer to it.  expected: a right answer to it; empty if none is known.  All three
    are lines in which ↵ stands for a line break.
    """

    round: int
    rounds: int
    reward: float | None
    prompt: str
    text: str
    expected: str


@dataclass(frozen=True)
class TaskSetOffered(Event):
    """A peer, possibly this one, offers a set of tasks.  root: ID of the set."""

    publisher: str
    root: str
    name: str
    tasks: int
    size_bytes: int


@dataclass(frozen=True)
class TasksAmended(Event):
    """These sets of tasks are in force from version `version` on; `percent` of the problems come from them.

    number: number of the organiser's amendment.  sets: IDs of the sets.
    """

    number: int
    version: int
    sets: list[str]
    percent: int


@dataclass(frozen=True)
class TaskSetFellOut(Event):
    """No more problems come from this set of tasks, because more than half of a record's voters were against it.

    root: ID of the set.  version: the first version without it.
    """

    root: str
    name: str
    version: int


@dataclass(frozen=True)
class RolloutsCounted(Event):
    """The members of a record on disk learned from rollouts, whose mean reward they state.

    Emitted again for a round whose record was replaced by another branch; earlier events about that round and later rounds
    are then void.  batches: number of batches that no earlier record names.  tokens: number of output tokens in these
    batches.  authors: accepted tokens of each rollout peer: first of this peer if it is one, then the largest, at most 64.
    others: number of rollout peers that are left out.  mine: the roots of this peer's batches.  rollouts: number of rollouts
    in these batches; 0 from an older peer.
    """

    round: int
    reward: float | None
    batches: int
    tokens: int
    authors: dict[str, int]
    others: int
    mine: list[str]
    rollouts: int = 0


@dataclass(frozen=True)
class RolloutPeerSetAside(Event):
    """Rollouts of `peer` are no longer used; `reason` is a phrase."""

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
    """The first event after every start.  addresses: where the peer listens; empty if it ended before it listened.

    run_name: empty until an invitation's manifest is fetched.  data_dir: folder with the identity, the runs and the logs.
    team: the team that the person named; empty without one.
    """

    peer: str
    name: str
    run: str
    run_name: str
    version: str
    pid: int
    addresses: list[str]
    data_dir: str
    team: str = ""


@dataclass(frozen=True)
class Left(Event):
    """The last event of a peer, unless its process was killed.

    goodbye: true if the peer said goodbye.  heard_by: number of peers that confirmed the goodbye.  rounds: committed rounds
    on disk; None if the peer ended before it had read them.
    exit_code: exit code of the process.  problem: a sentence with the reason why it could not continue; empty if it was told
    to leave.
    """

    goodbye: bool
    heard_by: int
    rounds: int | None
    exit_code: int
    problem: str


@dataclass(frozen=True)
class LinesLost(Event):
    """Lines of standard output are missing at this point, because they could not be written; they are in the log.

    Emitted only on standard output.  lines: number of missing lines.  reason: a sentence.
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
    """The first heartbeat of a peer, or of a new incarnation of it, has arrived, or a suspected peer is heard again.

    team: the team to which the peer says that it belongs; empty without one.
    """

    peer: str
    name: str
    team: str = ""


@dataclass(frozen=True)
class PeerSuspected(Event):
    """A peer sent nothing for `silent_s`, or its connection broke (`disconnected`), even after a recent heartbeat."""

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
    """A peer was disconnected and is banned for a while; `reason` names its last offence."""

    peer: str
    reason: str


@dataclass(frozen=True)
class RoleChosen(Event):
    """This peer has chosen its role in a run with rollouts, because its owner named none.

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

    steps, total_steps: inner steps done, and planned, in this round.  loss: mean of the round so far.
    left_s: seconds until the last step, at the present rate.  ahead: true while the round before is exchanged and agreed on.
    """

    round: int
    steps: int
    total_steps: int
    loss: float
    tokens_per_s: float
    left_s: float
    ahead: bool = False


@dataclass(frozen=True)
class ReadySent(Event):
    """This peer's contribution to a round is complete, and the peer has announced it.

    tokens, steps: tokens and steps trained for it.  loss: mean loss of these steps.  margin, accuracy: mean margin of the
    preferences that were read, before each step, and share of those with a margin above 0; None in other runs.
    fragment, fragments: as in `RoundCommitted`.
    """

    round: int
    tokens: int
    steps: int
    loss: float
    margin: float | None = None
    accuracy: float | None = None
    fragment: int = 0
    fragments: int = 1


@dataclass(frozen=True)
class RoundProposed(Event):
    """This peer proposes a plan.

    attempt: 0 for the round's first attempt.  proposer: this peer.  members: peers whose contributions are averaged.
    absent: electors that are left out of the ballot.
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
    """This peer's part in an exchange has ended, with or without all results.

    seconds: time from the start to the last result.  up_bytes, down_bytes: bytes moved for it on all channels.
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
class MemberRegained(Event):
    """A lost member of this round's exchange was only suspected, and is heard again; the exchange waits for it again."""

    round: int
    peer: str


@dataclass(frozen=True)
class PeerEjected(Event):
    """A peer was proven to have lied, and this peer excludes it from now on.  `evidence` is the name of the proof."""

    peer: str
    reason: str
    evidence: str


@dataclass(frozen=True)
class AuditDone(Event):
    """Before the vote, this peer was to recompute `chunks` averages of other peers, and recomputed `checked` of them.

    right: number of averages found right, by the peer that signed them.
    """

    round: int
    chunks: int
    checked: int
    right: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundVoted(Event):
    """This peer votes for a record.  record: its hash."""

    round: int
    attempt: int
    record: str


@dataclass(frozen=True)
class RoundsConfirmed(Event):
    """Provisional rounds are final now, because electors that were absent have voted on top of them.

    confirmed: number of these rounds.  final: number of final rounds.
    """

    confirmed: int
    final: int


@dataclass(frozen=True)
class RoundCommitted(Event):
    """A record is on disk, about to be applied.

    tip: its hash.  tokens, loss: of all members.  mine: true if we are a member.  losses: of all members on each source of
    the run's data, by its name; empty without several sources.  fragment: the fragment of the parameters that the round has
    exchanged, counted from 0.  fragments: number of fragments; 1 if rounds exchange all parameters.  run_tokens: tokens of
    all members up to the end of this round, as the run counts them.
    """

    round: int
    tip: str
    members: list[str]
    tokens: int
    loss: float
    mine: bool
    losses: dict[str, float] = field(default_factory=dict)
    fragment: int = 0
    fragments: int = 1
    run_tokens: int = 0


@dataclass(frozen=True)
class RunEnded(Event):
    """The run has reached its total: this is its final record, and the state after it is the final state.

    Emitted at most once per start of the peer.  rounds, tokens: numbers done by all members.  unit: unit of the total,
    "tokens" or "rounds".  tip: hash of the final record.
    """

    rounds: int
    tokens: int
    unit: str
    total: int
    tip: str


@dataclass(frozen=True)
class RunExtended(Event):
    """The organiser has extended the run, by a signed statement in the chain.  total: in `unit`, from `round` on."""

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
    """The held-out loss of the state after `rounds` rounds, as the peer `by` measured it or claims to have measured it.

    losses: on each source of the run's data, by its name; empty without several sources.  members: number of members of
    which it is the mean so far, in a run on the members' own data; `by` is the last of them.
    """

    rounds: int
    loss: float
    by: str
    losses: dict[str, float] = field(default_factory=dict)
    members: int = 1


@dataclass(frozen=True)
class SamplesWritten(Event):
    """The model after `rounds` rounds has completed the run's prompts, as the peer `by` claims.

    completions: one line for each prompt, by the prompt; ↵ stands for a line break.
    """

    rounds: int
    by: str
    completions: dict[str, str]


@dataclass(frozen=True)
class EvalProgress(Event):
    """This peer measures the state after `rounds` rounds: `done` of `total` held-out windows and tokens of samples."""

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
    """This peer is catching up: `done` of `total` records are here."""

    done: int
    total: int


@dataclass(frozen=True)
class RolledBack(Event):
    """This peer was on the losing side of a fork and went back to the common ancestor.

    to_round: number of rounds that remain.  abandoned: number of rounds given up; what earlier events told of these rounds
    is void.  winner: the peer whose chain won; empty if the peer only goes back, because most voters do not stand on these
    rounds, or because no live peer has their results.
    """

    to_round: int
    abandoned: int
    winner: str


@dataclass(frozen=True)
class SecondHistory(Event):
    """The whole electorate has certified a second record of `round`: at least a third of the electorate has lied.

    Emitted once for each such record.
    ours, theirs: hashes of the two records; we keep ours.  shown_by: the peer that showed the second record.  signers:
    electors that signed both.
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
    """Data from a peer was malformed or not allowed, and was dropped.

    Emitted at most once in 10 s for each peer and kind; for questions dropped for lack of room, at most once in 10 s for all
    peers together.
    what: kind of the data.  reason: a phrase.  times: number of such drops since the last such event.
    """

    peer: str
    what: str
    reason: str
    times: int = 1


@dataclass(frozen=True)
class HandlerFailed(Event):
    """A handler failed on a peer's statement, because of a mistake in this software.  The peer was disconnected.

    what: the kind of statement.  reason: the error, and where it was raised.  times: number of failures since the last such
    event.
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
"""Events that become stale with the next event of their subject: there are many, and only the newest is worth keeping."""


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
