"""The single stream of events: all facts that a person or a test can learn about a running peer.

Small frozen dataclasses that import nothing heavy, so that the terminal interface and the tests can read them.  Each has its
own sentence and severity.  `Event.to_fields` and `from_fields` define the form on the control socket and in the event log: a
flat map with the class's name under "event"; docs/reference/events.md is its schema.  Peers are peer IDs, hashes are
hexadecimal, sizes are bytes, times are seconds, losses are nats a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from protocol.formatting import Naming, amount, clean, duration, many, number, of_fragment, short, size, to_go

# ------------------------------------------------------------------------------------------------------------------------
# The base of all events, and the words that several of them share.

MOST_CHARACTERS = 2000
"""Most characters of an event's sentence."""
STAGES = ("ready", "exchanging", "voting", "applying")
"""Phases of a round after training; a peer without a reason to be idle in them trains for the next round."""


@dataclass(frozen=True)
class Event:
    """Base of all events.  is_alarm: a person must not overlook such an event."""

    _severity: ClassVar[str]
    is_alarm: ClassVar[bool]

    def __init_subclass__(cls, *, severity: str = "info", is_alarm: bool = False) -> None:
        cls._severity, cls.is_alarm = severity, is_alarm

    def to_fields(self) -> dict[str, Any]:
        """Return a flat map: the class's name under "event", then the fields."""
        return {"event": type(self).__name__, **asdict(self)}

    def sentence(self, name: Naming = short) -> str:
        """Describe the event in one harmless line, whoever wrote it."""
        return clean(self._words(name), MOST_CHARACTERS)

    @property
    def severity(self) -> str:
        """Severity: info, warning, debug or error."""
        return self._severity

    def _words(self, name: Naming) -> str:
        raise NotImplementedError


def blob_name(what: str, number: int) -> str:
    """Return the name of a blob in words; `what` and `number` as in `TransferProgress`."""
    names = {
        "checkpoint": f"checkpoint after {many(number, 'round')}" if number else "the run's initial weights",
        "result": f"result of round {number}",
        "file": f"file {number + 1} of the run",
        "reference": f"reference weights, of round {number}",
        "blocks": f"blocks of shard {number + 1} of the corpus",
    }
    return names.get(what, f"{clean(what)} {number}")


def _mean_reward(reward: float | None) -> str:
    return f", mean reward {number(reward)}" if reward is not None else ""


def _again(times: int) -> str:
    return f" ({times} times)" if times > 1 else ""


def _listed(peers: Sequence[str], name: Naming) -> str:
    listed = ", ".join(name(peer) for peer in peers[:3])
    return listed + (f" and {len(peers) - 3} more" if len(peers) > 3 else "")


# ------------------------------------------------------------------------------------------------------------------------
# Events about the connections between this peer and other peers.


@dataclass(frozen=True)
class ReachabilityChanged(Event):
    """Peers that were asked to dial this peer back have come to a new result.

    reachable: reachable, unreachable or unknown, according to these peers.  addresses: the result for each address at which
    they see this peer.
    """

    reachable: str
    addresses: dict[str, str]

    def _words(self, name: Naming) -> str:
        if self.reachable == "unknown":
            return "it is not known at present if other peers can reach this peer"
        there = [address for address, verdict in self.addresses.items() if verdict == "reachable"]
        return f"other peers reach this peer at {', '.join(there)}" if there else "no other peer can reach this peer"


@dataclass(frozen=True)
class LinkChanged(Event):
    """A peer was connected, or the kind of its connection has changed.

    link: direct (one of the two dialled an address of the other), reversed (it was asked to dial us), punched (both dialled
    each other through their routers) or relayed (through a third peer).
    """

    peer: str
    link: str

    def _words(self, name: Naming) -> str:
        return f"{name(self.peer)} is connected: {clean(self.link)}"


@dataclass(frozen=True)
class PortMapped(Event):
    """This peer's router began or stopped forwarding an outside address to it.

    address: the outside address; empty when the forwarding stopped.  by: UPnP or NAT-PMP.
    """

    address: str
    by: str

    def _words(self, name: Naming) -> str:
        if not self.address:
            return "the router's port is closed"
        return f"the router opened a port by {clean(self.by)}: {clean(self.address)}"


# ------------------------------------------------------------------------------------------------------------------------
# Events about blobs that this peer fetches.


@dataclass(frozen=True)
class TransferProgress(Event, severity="debug"):
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

    def progress(self) -> str:
        """Describe the blob: its name, progress, speed and time left."""
        left = f", {to_go(self.left_s)}" if self.left_s is not None else ""
        pace = f"{size(self.down_bytes_per_s)}/s from {many(self.sources, 'peer')}{left}"
        return f"{blob_name(self.what, self.number)}: {self.done}/{self.total} chunks, {pace}"

    def _words(self, name: Naming) -> str:
        return f"fetching {self.progress()}"


@dataclass(frozen=True)
class TransferEnded(Event, severity="debug"):
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

    def _words(self, name: Naming) -> str:
        outcome = "fetched" if self.complete else "gave up"
        return f"{outcome} {blob_name(self.what, self.number)}: {size(self.fetched_bytes)} in {duration(self.seconds)}"


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

    def _words(self, name: Naming) -> str:
        what = f"{many(self.rollouts, 'rollout')} of {self.tokens} tokens"
        return f"version {self.version}, batch {self.number}: {what} in {duration(self.seconds)}"


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

    def _words(self, name: Naming) -> str:
        why = f" ({', '.join(clean(reason) for reason in self.reasons)})" if self.reasons else ""
        batch = f"batch {self.number} of {name(self.author)} at version {self.version}"
        counts = f"{self.accepted} rollouts accepted, {self.rejected} rejected"
        return f"{batch}, judged by {name(self.validator)}: {counts}{why}"


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

    def _words(self, name: Naming) -> str:
        why = f": {clean(self.reason)}" if self.reason else ""
        seen = ", which we verified ourselves" if self.checked else ""
        batch = f"batch {self.number} of {name(self.author)} at version {self.version}"
        return f"{batch}{seen}, is {clean(self.verdict)}{why}"


@dataclass(frozen=True)
class RolloutsUsed(Event):
    """This trainer has learned from these batches in a round.  root: root over their names, as in its READY.

    reward: mean reward of the rollouts, 0 to 1, as computed here.  kl: distance of the policy from the reference weights,
    nats a token; None if the loss has no KL term, or nothing moved the policy.  answers: the best one by reward, then one
    with the median reward: maps of reward, prompt and text, each text a line in which ↵ stands for a line break.
    informative: number of problems whose answers had different rewards; without any nothing was learned.  None if unknown.
    entropy: of the policy, nats a token.  left_out: batches left out of learning, because our trainer process does not hold
    the weights that made them.  behaviour_kl: estimated divergence of the policy before learning from the one that made the
    tokens, nats a token; truncated: share of tokens that are more than twice as likely under it; effective: effective sample
    size of the rollouts, as a share of their tokens.  All are None if unknown; the last three if the run's loss is "clip".
    """

    round: int
    batches: list[str]
    rollouts: int
    reward: float | None
    root: str
    kl: float | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    informative: int | None = None
    entropy: float | None = None
    left_out: int | None = None
    behaviour_kl: float | None = None
    truncated: float | None = None
    effective: float | None = None

    def _words(self, name: Naming) -> str:
        what = f"{many(self.rollouts, 'rollout')} in {many(len(self.batches), 'batch', 'batches')}"
        mean = _mean_reward(self.reward)
        if self.informative == 0:
            return f"round {self.round}: learned nothing from {what}: all answers to each problem had the same reward{mean}"
        far = f", {self.kl:.2g} nats from the reference" if self.kl is not None else ""
        stale = f", {self.behaviour_kl:.2g} nats from the policy that made them" if self.behaviour_kl else ""
        lost = f"; {many(self.left_out, 'batch', 'batches')} left out without their weights" if self.left_out else ""
        return f"round {self.round}: learned from {what}{mean}{far}{stale}{lost}"


@dataclass(frozen=True)
class NothingLearned(Event, severity="warning", is_alarm=True):
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

    def _words(self, name: Naming) -> str:
        mean = f" (mean reward {number(self.reward)})" if self.reward is not None else ""
        wanted = f"; expected: {clean(self.expected, 200)}" if self.expected else ""
        problem, answer = clean(self.prompt, 200), clean(self.text, 200)
        remedy = "use problems of another difficulty" if self.reward else "state the form of an answer in the prompts"
        return (
            f"nothing is learned: in {many(self.rounds, 'round')} all answers to each problem had the same reward{mean}; a "
            f"typical answer to »{problem}« is »{answer}«{wanted}; {remedy}, and try them with "
            "`peer tasks rate FILE --model FOLDER`"
        )


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

    def _words(self, name: Naming) -> str:
        ours = f"; {len(self.mine)} of them {'is' if len(self.mine) == 1 else 'are'} ours" if self.mine else ""
        what = f"{many(self.batches, 'batch', 'batches')} of rollouts, {amount(self.tokens)} tokens"
        return f"round {self.round}: the swarm learned from {what}{_mean_reward(self.reward)}{ours}"


@dataclass(frozen=True)
class RolloutPeerSetAside(Event, severity="warning", is_alarm=True):
    """Rollouts of `peer` are no longer used; `reason` is a phrase."""

    peer: str
    reason: str

    def _words(self, name: Naming) -> str:
        return f"rollouts of {name(self.peer)} are no longer used: {clean(self.reason, 200)}"


@dataclass(frozen=True)
class ValidatorSetAside(Event, severity="warning", is_alarm=True):
    """Verdicts of `peer` no longer count; `reason` is a phrase."""

    peer: str
    reason: str

    def _words(self, name: Naming) -> str:
        return f"verdicts of {name(self.peer)} no longer count: {clean(self.reason, 200)}"


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

    def _words(self, name: Naming) -> str:
        run = f"{clean(self.run_name)} ({self.run[:12]})" if self.run_name else self.run[:12]
        where = f", listening on {clean(', '.join(self.addresses), 1000)}" if self.addresses else ""
        return (
            f"{clean(self.name)} {self.peer} in run {run}{where}; version {self.version}, process {self.pid}, "
            f"data in {clean(self.data_dir, 500)}"
        )


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

    @property
    def severity(self) -> str:
        """Severity: error if it left because of a problem."""
        return "error" if self.problem else "info"

    def _words(self, name: Naming) -> str:
        goodbye = "without a goodbye" if self.exit_code else "before it met any peer"
        if self.heard_by:
            goodbye = f"said goodbye to {many(self.heard_by, 'peer')}"
        elif self.goodbye:
            goodbye = "said goodbye, but no peer was connected"
        text = "left: before it began"
        if self.rounds is not None:
            text = f"left: {goodbye}, {many(self.rounds, 'round')} committed, state on disk"
        return f"{text}; {clean(self.problem, 1000)}" if self.problem else text


@dataclass(frozen=True)
class LinesLost(Event, severity="warning"):
    """Lines of standard output are missing at this point, because they could not be written; they are in the log.

    Emitted only on standard output.  lines: number of missing lines.  reason: a sentence.
    """

    lines: int
    reason: str

    def _words(self, name: Naming) -> str:
        are = "line is" if self.lines == 1 else "lines are"
        return f"{self.lines} {are} missing here: {self.reason}"


@dataclass(frozen=True)
class PhaseChanged(Event):
    """The phase of this peer has changed, or the reason for it.

    phase, why_idle: as in the status of a peer.  detail: a sentence.
    """

    phase: str
    why_idle: str
    detail: str

    def _words(self, name: Naming) -> str:
        ahead = ", training ahead" if self.phase in STAGES and not self.why_idle else ""
        why = self.detail or self.why_idle
        return f"{self.phase}{ahead}: {clean(why, 300)}" if why else f"{self.phase}{ahead}"


@dataclass(frozen=True)
class PeerJoined(Event):
    """The first heartbeat of a peer, or of a new incarnation of it, has arrived, or a suspected peer is heard again.

    team: the team to which the peer says that it belongs; empty without one.
    """

    peer: str
    name: str
    team: str = ""

    def _words(self, name: Naming) -> str:
        return f"{clean(self.name) or 'a peer'} ({short(self.peer)}) is here"


@dataclass(frozen=True)
class PeerSuspected(Event, severity="warning"):
    """A peer sent nothing for `silent_s`, or its connection broke (`disconnected`), even after a recent heartbeat."""

    peer: str
    silent_s: float
    disconnected: bool

    def _words(self, name: Naming) -> str:
        silent = duration(self.silent_s)
        if self.disconnected:
            return f"the connection to {name(self.peer)} broke (last heard {silent} ago)"
        return f"{name(self.peer)} has been silent for {silent}"


@dataclass(frozen=True)
class PeerGone(Event):
    """A peer is no longer counted: it said goodbye, or it was silent for too long (then `goodbye` is false)."""

    peer: str
    goodbye: bool

    def _words(self, name: Naming) -> str:
        return f"{name(self.peer)} {'said goodbye and left' if self.goodbye else 'is gone: it fell silent'}"


@dataclass(frozen=True)
class TrainerStarted(Event):
    """The trainer is ready for work, as the process `pid`."""

    pid: int

    def _words(self, name: Naming) -> str:
        return f"trainer started (process {self.pid})"


@dataclass(frozen=True)
class TrainerStopped(Event):
    """The trainer died or was ended; `reason` is a sentence."""

    reason: str

    @property
    def severity(self) -> str:
        """Severity: info if it was stopped on purpose."""
        return "info" if self.reason == "the trainer was stopped" else "warning"

    def _words(self, name: Naming) -> str:
        return f"trainer stopped: {clean(self.reason, 300)}"


@dataclass(frozen=True)
class ComputeProgress(Event, severity="debug"):
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

    def _words(self, name: Naming) -> str:
        what = f"round {self.round}{', ahead' if self.ahead else ''}"
        pace = f"{amount(self.tokens_per_s)} tokens/s, {to_go(self.left_s)}"
        return f"{what}: step {self.steps} of {self.total_steps}, loss {number(self.loss)}, {pace}"


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

    @property
    def preferences(self) -> str:
        """Separation of chosen answers from rejected ones by the model, in words; empty without preferences."""
        if self.margin is None or self.accuracy is None:
            return ""
        return f"margin {number(self.margin)}, {100 * self.accuracy:.0f} % of the preferences right"

    def _words(self, name: Naming) -> str:
        pairs = f"; {self.preferences}" if self.margin is not None else ""
        which = f"round {self.round}{of_fragment(self.fragment, self.fragments)}"
        trained = f"{amount(self.tokens)} tokens in {many(self.steps, 'step')}"
        return f"{which}: ready with {trained}, loss {number(self.loss)}{pairs}"


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

    def _words(self, name: Naming) -> str:
        without = f", without {_listed(self.absent, name)}" if self.absent else ""
        again = f" (attempt {self.attempt})" if self.attempt else ""
        members = many(len(self.members), "member")
        return f"round {self.round}{again}: {name(self.proposer)} proposes {members}{without}"


@dataclass(frozen=True)
class ExchangeProgress(Event, severity="debug"):
    """The averages of `chunks_done` of `chunks_total` chunks are here; `waiting_for` names the peers that are late."""

    round: int
    chunks_done: int
    chunks_total: int
    waiting_for: list[str]

    def _words(self, name: Naming) -> str:
        waits = f", waiting for {_listed(self.waiting_for, name)}" if self.waiting_for else ""
        return f"round {self.round}: {self.chunks_done} of {self.chunks_total} chunks{waits}"


@dataclass(frozen=True)
class ExchangeFinished(Event):
    """This peer's part in an exchange has ended, with or without all results.

    seconds: time from the start to the last result.  up_bytes, down_bytes: bytes moved for it on all channels.
    """

    round: int
    seconds: float
    up_bytes: int
    down_bytes: int

    def _words(self, name: Naming) -> str:
        moved = f"{size(self.up_bytes)} up, {size(self.down_bytes)} down"
        return f"round {self.round}: exchanged in {duration(self.seconds)} ({moved})"


@dataclass(frozen=True)
class MemberLost(Event, severity="warning"):
    """A member stopped delivering in this round's exchange; its missing chunks are averaged without it."""

    round: int
    peer: str

    def _words(self, name: Naming) -> str:
        return f"round {self.round}: {name(self.peer)} stopped delivering; averaging without it"


@dataclass(frozen=True)
class MemberRegained(Event):
    """A lost member of this round's exchange was only suspected, and is heard again; the exchange waits for it again."""

    round: int
    peer: str

    def _words(self, name: Naming) -> str:
        return f"round {self.round}: {name(self.peer)} is heard again; waiting for it again"


@dataclass(frozen=True)
class PeerEjected(Event, severity="warning", is_alarm=True):
    """A peer was proven to have lied, and this peer excludes it from now on.  `evidence` is the name of the proof."""

    peer: str
    reason: str
    evidence: str

    def _words(self, name: Naming) -> str:
        return f"{name(self.peer)} is excluded for good: {clean(self.reason)} (proof {self.evidence[:16]})"


@dataclass(frozen=True)
class ContributionAudited(Event, severity="debug"):
    """This peer computed receipts of a member's rows again.

    verdict: sound, suspect, or none if that tells nothing.  alike, level: mean cosines of the member's rows and of our own;
    None without any.
    """

    round: int
    peer: str
    verdict: str
    alike: float | None
    level: float | None

    def _words(self, name: Naming) -> str:
        numbers = f"{number(self.alike)}, ours {number(self.level)}"
        return f"receipts of {name(self.peer)} in round {self.round}: {self.verdict} (alike by {numbers})"


@dataclass(frozen=True)
class MemberSetAside(Event, severity="warning", is_alarm=True):
    """This peer has set a member aside, whose receipts were not right, until round `until`."""

    peer: str
    reason: str
    until: int

    def _words(self, name: Naming) -> str:
        return f"{name(self.peer)} is set aside until round {self.until}: {clean(self.reason)}"


@dataclass(frozen=True)
class AuditDone(Event, severity="debug"):
    """Before the vote, this peer was to recompute `chunks` averages of other peers, and recomputed `checked` of them.

    right: number of averages found right, by the peer that signed them.
    """

    round: int
    chunks: int
    checked: int
    right: dict[str, int] = field(default_factory=dict)

    def _words(self, name: Naming) -> str:
        missing = "" if self.checked == self.chunks else f" ({self.chunks - self.checked} could not be)"
        return f"round {self.round}: {self.checked} averages of others recomputed{missing}"


@dataclass(frozen=True)
class RoundVoted(Event, severity="debug"):
    """This peer votes for a record.  record: its hash."""

    round: int
    attempt: int
    record: str

    def _words(self, name: Naming) -> str:
        return f"round {self.round}: voted"


@dataclass(frozen=True)
class RoundsConfirmed(Event):
    """Provisional rounds are final now, because electors that were absent have voted on top of them.

    confirmed: number of these rounds.  final: number of final rounds.
    """

    confirmed: int
    final: int

    def _words(self, name: Naming) -> str:
        return f"{many(self.confirmed, 'provisional round')} confirmed by the peers that had been away: final now"


@dataclass(frozen=True)
class RoundCommitted(Event):
    """A record is on disk, about to be applied.

    tip: hash of the record.  tokens, loss: tokens and mean loss of all members.  mine: true if we are a member.  losses:
    mean losses of all members on each source of the run's data, by its name; empty without several sources.  fragment: the
    fragment of the parameters that the round has exchanged, counted from 0.  fragments: number of fragments; 1 if rounds
    exchange all parameters.  run_tokens: tokens of all members up to the end of this round, as the run counts them.
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

    def _words(self, name: Naming) -> str:
        which = f"{fragment}," if (fragment := of_fragment(self.fragment, self.fragments)) else ""
        members = f"{many(len(self.members), 'member')}{'' if self.mine else ', without us'}"
        tokens = f"{amount(self.tokens)} tokens"
        return f"round {self.round}{which} committed: {members}, {tokens}, training loss {number(self.loss)}"


@dataclass(frozen=True)
class StateApplied(Event):
    """`rounds` records have been applied; `digest` is the outer state's."""

    rounds: int
    digest: str

    def _words(self, name: Naming) -> str:
        return f"state after {many(self.rounds, 'round')}: {self.digest[:16]}"


@dataclass(frozen=True)
class EvalLoss(Event):
    """The held-out loss of the state after `rounds` rounds, as the peer `by` measured it or claims to have measured it.

    losses: losses on each source of the run's data, by its name; empty without several sources.  members: number of members
    over whose losses it is the mean so far, in a run on the members' own data; `by` is the last of them.
    """

    rounds: int
    loss: float
    by: str
    losses: dict[str, float] = field(default_factory=dict)
    members: int = 1

    def _words(self, name: Naming) -> str:
        source = f"measured by {name(self.by)}" if self.members == 1 else f"mean of {self.members} members"
        return f"held-out loss after {many(self.rounds, 'round')}: {number(self.loss)} ({source})"


@dataclass(frozen=True)
class SamplesWritten(Event, severity="debug"):
    """The model after `rounds` rounds has completed the run's prompts, as the peer `by` claims.

    completions: one line for each prompt, by the prompt; ↵ stands for a line break.  The interface and the page show them.
    """

    rounds: int
    by: str
    completions: dict[str, str]

    def _words(self, name: Naming) -> str:
        texts = "; ".join(f"{clean(prompt, 200)}»{clean(text, 300)}" for prompt, text in self.completions.items())
        return f"samples after {many(self.rounds, 'round')}, by {name(self.by)}: {texts}"


@dataclass(frozen=True)
class EvalProgress(Event, severity="debug"):
    """This peer measures the state after `rounds` rounds: `done` of `total` held-out windows and tokens of samples."""

    rounds: int
    done: int
    total: int

    def _words(self, name: Naming) -> str:
        percent = 100 * self.done // max(1, self.total)
        return f"measuring the held-out loss after {many(self.rounds, 'round')}: {percent} %"


@dataclass(frozen=True)
class CheckpointWritten(Event):
    """The state after `rounds` rounds is on disk, with `size_bytes`."""

    rounds: int
    size_bytes: int

    def _words(self, name: Naming) -> str:
        return f"checkpoint after {many(self.rounds, 'round')} is on disk ({size(self.size_bytes)})"


@dataclass(frozen=True)
class StateLoaded(Event, severity="debug"):
    """The outer state after `rounds` rounds is loaded, from a checkpoint or, with 0 rounds, from the run's beginning."""

    rounds: int

    def _words(self, name: Naming) -> str:
        return f"loaded the state after {many(self.rounds, 'round')}"


@dataclass(frozen=True)
class SyncProgress(Event, severity="debug"):
    """This peer is catching up: `done` of `total` records are here."""

    done: int
    total: int

    def _words(self, name: Naming) -> str:
        return f"fetching records: {self.done} of {self.total}"


@dataclass(frozen=True)
class RolledBack(Event, severity="warning", is_alarm=True):
    """This peer was on the losing side of a fork and went back to the common ancestor.

    to_round: number of rounds that remain.  abandoned: number of rounds given up; earlier events about these rounds are
    void.  winner: the peer whose chain won; empty if the peer only goes back, because most voters do not have these rounds
    in their chains, or because no live peer has their results.
    """

    to_round: int
    abandoned: int
    winner: str

    def _words(self, name: Naming) -> str:
        last = self.to_round + self.abandoned - 1
        which = f"round {self.to_round}" if self.abandoned == 1 else f"rounds {self.to_round} to {last}"
        why = f"most voters do not have {which} in their chains, or no peer here has their results"
        if self.winner:
            why = f"the branch of {name(self.winner)} won, and its rounds replace {which}"
        return f"went back {many(self.abandoned, 'round')}: {why}"


@dataclass(frozen=True)
class SecondHistory(Event, severity="error", is_alarm=True):
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

    def _words(self, name: Naming) -> str:
        both = _listed(self.signers, name) or "nobody"
        return (
            f"ALARM: {name(self.shown_by)} shows a second certified record of round {self.round} ({self.theirs[:8]}; we "
            f"keep {self.ours[:8]}): at least a third of the electors lied; {both} signed both"
        )


@dataclass(frozen=True)
class Desynced(Event, severity="warning", is_alarm=True):
    """This peer's outer state before `round` is not the swarm's; it is being repaired.  mine, theirs: the digests."""

    round: int
    mine: str
    theirs: str

    def _words(self, name: Naming) -> str:
        digests = f"{self.mine[:8]}, not {self.theirs[:8]}"
        return f"state differs from the swarm's before round {self.round} ({digests}); repairing"


@dataclass(frozen=True)
class Dropped(Event, severity="debug"):
    """Data from a peer was malformed or not allowed, and was dropped.

    Emitted at most once in 10 s for each peer and kind; for questions that were dropped for lack of room, at most once in 10
    s for all peers together.
    what: kind of the data.  reason: a phrase.  times: number of such drops since the last such event.
    """

    peer: str
    what: str
    reason: str
    times: int = 1

    def _words(self, name: Naming) -> str:
        return f"dropped a {clean(self.what)} from {name(self.peer)}{_again(self.times)}: {clean(self.reason, 200)}"


@dataclass(frozen=True)
class HandlerFailed(Event, severity="warning", is_alarm=True):
    """A handler failed on a peer's statement, because of a mistake in this software.  The peer was disconnected.

    what: the kind of statement.  reason: the error, and where it was raised.  times: number of failures since the last such
    event.
    """

    peer: str
    what: str
    reason: str
    times: int

    def _words(self, name: Naming) -> str:
        what = f"a {clean(self.what)} from {name(self.peer)}"
        return f"{what} made its handler fail{_again(self.times)}; please report: {clean(self.reason, 200)}"


class NoticeCode(StrEnum):
    """Kinds of notices that programs may rely on, each with its details."""

    ROLE_CHOSEN = "role_chosen"
    """This peer has chosen its role in a run with rollouts, because its owner named none.

    role: trainer, rollout, validator or seed.  reason: a sentence.
    """
    NOBODY_ANSWERS = "nobody_answers"
    """No peer named by the invitation has answered yet; emitted less and less often.

    seconds: time since the search began.  tried: maps of address, times and problem (a phrase).  check: advice.
    """
    STRANGERS_CLOSED = "strangers_closed"
    """Connections from outside were closed since the last such notice; emitted at most once a minute.

    silent: number closed because the peer did not greet before the deadline.  crowded: number closed for lack of room.
    busiest: the address from which most of them came.
    """
    PEER_BANNED = "peer_banned"
    """A peer was disconnected and is banned for a while.  peer: its ID.  reason: its last offence."""
    RUN_ENDED = "run_ended"
    """The run has reached its total: this is its final record, and the state after it is the final state.

    Emitted at most once per start of the peer, unless the run is extended.  rounds, tokens: numbers done by all members.
    unit: unit of the total, "tokens" or "rounds".  total: in this unit.  tip: hash of the final record.
    """
    RUN_EXTENDED = "run_extended"
    """The organiser has extended the run, by a signed statement in the chain.  total: in `unit`, from `round` on."""
    TASK_SET_OFFERED = "task_set_offered"
    """A peer, possibly this one, offers a set of tasks.

    peer: its ID.  root: ID of the set.  name: name of the set.  tasks: their number.  size_bytes: their total size.
    """
    TASKS_AMENDED = "tasks_amended"
    """Other sets of tasks are in force.

    number: number of the organiser's amendment.  version: the first version with them.  sets: IDs of the sets.  percent:
    share of the problems that come from them.
    """
    TASK_SET_FELL_OUT = "task_set_fell_out"
    """No more problems come from a set of tasks, because more than half of a record's voters were against it.

    root: ID of the set.  name: name of the set.  version: the first version without it.
    """


@dataclass(frozen=True)
class Notice(Event):
    """A sentence for the person at the screen.

    level: info, warning or debug.  text: the sentence, with whole peer IDs.  code: its kind for programs; empty for a
    remark that has none.  details: the facts in the sentence, by name.
    """

    level: str
    text: str
    code: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> str:
        """Severity: the level of the notice."""
        return self.level

    def _words(self, name: Naming) -> str:
        text, peer = clean(self.text, 1000), self.details.get("peer")
        return text.replace(peer, name(peer)) if peer and isinstance(peer, str) else text


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
