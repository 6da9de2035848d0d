"""The content of `peer status --json`, defined once for the node, the daemon, the commands, the interface and the demo.

It includes the reason for computing nothing, and a remedy for each reason.  Frozen dataclasses that import nothing heavy.
`to_fields` is the form on the control socket and in JSON: the fields' names are its keys, in this order;
docs/reference/status.md lists all fields.  Peers are peer IDs, hashes are hexadecimal, sizes are bytes, times are seconds.
A field that is added later has a default, so that the status of an older peer can still be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Self, get_args, get_type_hints

# ------------------------------------------------------------------------------------------------------------------------
# The reasons for computing nothing, and a remedy for each.
#
# The sentence about a reason, which names peers, rounds and limits, is made by the code in which the reason arises.


class WhyIdle(str, Enum):
    """Reason for computing nothing, with its remedy; `why_detail` gives the details in a sentence.

    docs/guides/troubleshooting.md lists the same remedies.  Each fits on a line of a small terminal, and is valid for every
    peer that shows its reason: a founder, a peer that is alone, and a peer without an invitation.
    """

    remedy: str

    def __new__(cls, reason: str, remedy: str = "") -> Self:
        """Return the member with the value `reason`."""
        member = str.__new__(cls, reason)
        member._value_, member.remedy = reason, remedy
        return member

    BUSY = ""
    STARTING = "starting", "nothing; it takes seconds, or minutes with a large model"
    CONNECTING = "connecting", "`peer doctor INVITATION` says why; or ask for a newer invitation"
    WAITING_FOR_PEERS = "waiting for peers", "nothing; or invite others"
    FETCHING_STATE = "fetching state", "nothing; your line, the lines of others and `max_down` limit the speed"
    WAITING_FOR_MEMBERS = "waiting for members", "nothing; a slow member is waited for as long as the run allows"
    WAITING_FOR_ROLLOUTS = "waiting for rollouts", "nothing; or start more peers with `--role rollout`"
    FETCHING_TASKS = "fetching tasks", "`peer tasks list` says which set is missing, or cannot be used"
    FETCHING_REFERENCE = "fetching reference", "nothing; or restart a trainer or seed that was in this run before"
    FETCHING_DATA = "fetching data", "nothing; or ask the organiser to start a peer that has the corpus"
    PREPARING_DATA = "preparing data", "nothing; it is done again only when the data change"
    WAITING_FOR_WEIGHTS = "waiting for weights", "nothing; they come with one of the next rounds"
    WAITING_FOR_VERDICTS = "waiting for verdicts", "nothing; or start more peers with `--role validator`"
    NOTHING_TO_CHECK = "nothing to check", "nothing; batches are assigned at random"
    EXCHANGING = "exchanging", "nothing; over a relayed or slow line it takes longer"
    COMMITTING = "committing", "nothing; it takes seconds when enough of the electors are here"
    TRAINER_RESTARTING = "trainer restarting", "the end of `trainer.log` in the run's folder says why"
    COMPUTER_BUSY = "computer busy", "nothing; or end other programs, or `peer pause` until they are done"
    PAUSED = "paused", "`peer resume`, or `p` in the interface"
    OUTSIDE_HOURS = "outside hours", "nothing; or set other hours with `peer config schedule`"
    ON_BATTERY = "on battery", "plug it in, or run `peer config on_battery yes`"
    IN_USE = "in use", "nothing; or set a shorter time with `peer config unused_for`"
    TOO_HOT = "too hot", "nothing; work resumes once the GPU is 5 °C cooler"
    GPU_WANTED = "gpu wanted", "nothing; or run `peer config yield_gpu no`"
    MONTHLY_QUOTA = "monthly quota", "wait for the next month, or raise `monthly_quota`"
    DISK_FULL = "disk full", "make room, remove a run's folder (`peer runs`), or raise `max_disk`"
    NOT_A_TRAINER = "not a trainer", "nothing; or join with `--role trainer`"
    RUN_ENDED = "run ended", "`peer export FOLDER` writes the model; `peer leave` ends the peer"


REMEDIES = {why: why.remedy for why in WhyIdle if why.remedy}


def remedy(why: str) -> str:
    """Return the remedy for a reason, by its name.

    Empty if the peer is busy, or if only a newer version knows the reason.
    """
    return next((text for known, text in REMEDIES.items() if known.value == why), "")


# ------------------------------------------------------------------------------------------------------------------------
# The status of a peer.


@dataclass(frozen=True, kw_only=True)
class SwarmPeer:
    """Another peer of the run, as its last heartbeat describes it.

    peer: its ID.  name: the name that it gives itself.  role, phase: as in the status of a peer.
    round: rounds that it has committed.  steps: inner steps of its running round.  tokens_per_s: the rate that it claims.
    liveness: alive, suspect (no heartbeat for a while), gone (silent for too long), left (it said goodbye) or unproven (a
    member that has not been connected to this peer since this peer started; heartbeats that other peers forward may be old).
    heard_s: seconds since its last heartbeat; if it is unproven, seconds since this peer started.
    version: version of its software.  addresses: where it says it listens.
    link: its connection to this peer: direct, reversed, punched or relayed; empty while it has none.
    team: the team to which it says that it belongs; empty without one.
    reach: the network of this connection: this computer, home network or internet; empty while unknown, as behind a relay.
    round_trip_s: the shortest round trip over it; None while unknown.  up_bytes, down_bytes: bytes that its open sockets
    carried to and from the peer.
    line_up_bytes_per_s, line_down_bytes_per_s: the rates of its line, as the peer states them; 0 while unknown.
    known_s: seconds since this peer first heard of it, or heard of it again after it had been away for long.
    counted_tokens_per_s: tokens a second for which it got credit in the last eight rounds that this peer saw being made;
    None if it was in none of them.  A round also takes the exchange, and waits for slow members, so a claim may be higher.
    audits, audited_tokens: number of its contributions that this peer audited with a verdict since it started, and the
    tokens that were claimed for them.  set_aside: the reason why this peer has set it aside, empty unless it has.
    aside_until: the round in which it gets another chance; 0 unless it is set aside.
    """

    peer: str
    name: str
    role: str
    phase: str
    round: int
    steps: int
    tokens_per_s: float
    liveness: str
    heard_s: float
    version: str
    addresses: list[str] = field(default_factory=list)
    link: str = ""
    team: str = ""
    reach: str = ""
    round_trip_s: float | None = None
    up_bytes: int = 0
    down_bytes: int = 0
    line_up_bytes_per_s: float = 0.0
    line_down_bytes_per_s: float = 0.0
    known_s: float = 0.0
    counted_tokens_per_s: float | None = None
    audits: int = 0
    audited_tokens: int = 0
    set_aside: str = ""
    aside_until: int = 0


@dataclass(frozen=True, kw_only=True)
class RolloutStatus:
    """This peer's work with rollouts, in a run with rollouts; counts begin at the peer's last start.

    version: the newest weights here, by the rounds that made them.
    reward: mean reward of the rollouts in the last committed round that learned from rollouts, 0 to 1, as its members state
    it; None before the first such round.
    generated: batches that this peer made.
    accepted, rejected, stale: batches by their verdict: batches that it made if it is a rollout peer, that it judged if it
    is a validator, and that were meant for it if it is a trainer; a stale batch was too old before it had a verdict.
    waiting: such batches without a verdict.  used: batches that this trainer learned from.
    accepted_tokens: tokens of this peer's rollouts from which members learned, according to the records.
    generated_tokens_per_s: tokens that it makes a second, over its last eight batches.
    verified_per_s: rollouts that it verifies a second, over the last minute.
    set_aside: number of peers whose rollouts or verdicts are no longer used.
    fruitless_rounds: last rounds in a row from which this trainer learned nothing, because all answers to each problem had
    the same reward.
    entropy, behaviour_kl, truncated, effective: of the last round from which this trainer learned something, as in
    `RolloutsUsed`.  left_out: batches that it left out of learning, because it does not hold the weights that made them.
    """

    version: int = 0
    reward: float | None = None
    generated: int = 0
    accepted: int = 0
    rejected: int = 0
    stale: int = 0
    waiting: int = 0
    used: int = 0
    accepted_tokens: int = 0
    generated_tokens_per_s: float = 0.0
    verified_per_s: float = 0.0
    set_aside: int = 0
    fruitless_rounds: int = 0
    entropy: float | None = None
    behaviour_kl: float | None = None
    truncated: float | None = None
    effective: float | None = None
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class CopiesStatus:
    """Copies of the data that the run needs to go on: its files, the blocks of its corpora, and its reference weights.

    Only this peer, and live peers that a record names or that were admitted, count.
    peers: number of such peers, with this one.  answered: number of these peers that said what they have, with this one.
    wanted: number of copies that there should be: three, or one at each peer.
    total_bytes: size of the data.  missing_bytes: bytes that none of these peers has.  lone_bytes: bytes that only one of
    them has.
    here_only_bytes: bytes that only this peer has.  short_bytes: bytes that fewer than `wanted` of them have.
    fetched_bytes: bytes that this peer fetched since its start to keep them for others.
    mirrors: number of mirrors of the corpora; they do not count as copies.
    """

    peers: int = 1
    answered: int = 1
    wanted: int = 1
    total_bytes: int = 0
    missing_bytes: int = 0
    lone_bytes: int = 0
    here_only_bytes: int = 0
    short_bytes: int = 0
    fetched_bytes: int = 0
    mirrors: int = 0


@dataclass(frozen=True, kw_only=True)
class RunMixture:
    """Mixture of the sources of a run's data.

    from_tokens: tokens read by all members together from which it is used.  shares: share of the rows, by source.
    """

    from_tokens: int
    shares: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class RunDefinition:
    """The run as its organiser signed it, for people.

    description, url, licence: the organiser's words, which nobody checks; empty if there are none.
    family, parameters, layers, dim: the model.  frozen: parameters of the frozen model of a run with an adapter, whose
    values are `parameters` then; 0 in other runs.  begins_with_weights: true if it begins with weights trained before.
    rows: text, chat or preference.  sequence_length: tokens of a row.  is_local: true if each member reads data of its own.
    mixtures: mixtures of the sources, the first one from 0 tokens; empty without sources.  data_tokens: tokens of all
    sources together; 0 without sources.  epochs: times that each source is read at most; 0 without a limit.
    times_read: number of times that the run reads each source until its total, with one member if the total counts rounds.
    environment: the tasks of a run with rollouts; empty in others.  warm_rounds: rounds before the first one that learns
    from rollouts.  peak_rate: the highest learning rate on rows.  rollout_rate: the highest learning rate on rollouts,
    of one trainer alone.
    requires: requirements of a computer that trains, in words.
    prompts: prompts that a member completes at each evaluation.
    """

    description: str = ""
    url: str = ""
    licence: str = ""
    family: str
    parameters: int
    layers: int
    dim: int
    frozen: int = 0
    begins_with_weights: bool = False
    rows: str = "text"
    sequence_length: int
    is_local: bool = False
    mixtures: list[RunMixture] = field(default_factory=list)
    data_tokens: int = 0
    epochs: int = 0
    times_read: dict[str, float] = field(default_factory=dict)
    environment: str = ""
    warm_rounds: int = 0
    peak_rate: float = 0.0
    rollout_rate: float = 0.0
    requires: str = ""
    prompts: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class GpuStatus:
    """A GPU that a peer may use, with the load of all programs on it; None for a figure that its driver does not report.

    name: its model.  busy_share: share of the last second or so in which it was busy, 0 to 1.  memory_used, memory_total:
    bytes.  temperature: Celsius.  watts: power that it draws.
    """

    name: str = ""
    busy_share: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: float | None = None
    watts: float | None = None


@dataclass(frozen=True, kw_only=True)
class ComputerStatus:
    """The computer of a peer, with all programs on it.

    processor: its model.  busy_share: share of the processor's time, 0 to 1, in which it worked in the last seconds; None
    before the second reading.  memory_used, memory_total: bytes.  memory_limit: bytes that the peer's container or service
    may use; None without a limit.  watts: power that the processor draws; None unless the system lets this user read it.
    gpus: the GPUs that this peer may use.  joules: energy that these GPUs and the processor drew since the peer's start
    while it did not rest; None if neither tells its power.  all_joules: this energy for all peers of this data directory
    until now.
    """

    processor: str = ""
    busy_share: float | None = None
    memory_used: int = 0
    memory_total: int = 0
    memory_limit: int | None = None
    watts: float | None = None
    gpus: list[GpuStatus] = field(default_factory=list)
    joules: float | None = None
    all_joules: float | None = None


@dataclass(frozen=True, kw_only=True)
class ContributionStatus:
    """Credit of a peer on the record chain, as `peer ledger` counts it.

    rounds: rounds that count its work.  tokens: tokens that it trained, and tokens of its rollouts that were learned from.
    tokens_today: tokens counted since midnight, local time.
    rank: its place in the ledger; None before its first credit.  contributors: peers with credit.
    streak: number of the latest rounds in a row that count its work.  days: number of days in a row with such a round, up to
    today or yesterday.
    """

    rounds: int = 0
    tokens: int = 0
    tokens_today: int = 0
    rank: int | None = None
    contributors: int = 0
    streak: int = 0
    days: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A peer as its node knows it.  The defaults describe a peer whose node does not run yet.

    peer: this peer's ID.  name: the name that it gives itself.
    run: the run's ID.  run_name: the run's name; empty until an invitation's manifest is fetched.
    role: trainer, rollout, validator or seed.
    phase: its work in one word: starting, syncing, computing, ready, exchanging, voting, applying, paused, seeding,
    generating, verifying or stopping.
    why_idle: the reason for not computing, in a few words; empty while it computes.
    why_detail: the reason in a sentence; while it trains ahead, the stage of the running round.  why_remedy: advice to its
    owner.
    finishing: after `peer finish`, a phrase that names the event for which the peer waits before it stops; otherwise empty.
    finishing_left_s: seconds until it leaves without that event; None if it was not asked to finish.
    round: number of committed rounds.  tip: hash of the last record; empty before the node runs.
    final_rounds, final_tip: number of final rounds, and the tip after them, which invitations name.
    provisional_rounds: number of the last rounds that some electors have not confirmed; another branch may replace them.
    unconfirmed_by: electors of the first provisional round that are away; it becomes final when enough of them are back.
    electors: IDs of the peers that vote on the next record; empty if its members do.
    founders_vote_until: the earliest round on which peers other than the founders vote; None unless the founders of an open
    run vote alone now.
    state_rounds, state_digest: number of rounds that the outer state has applied, and its digest.
    peers: number of other live peers of the run; before the node runs, number of connected peers.
    members, tokens: IDs of the members of the last committed round, and their tokens.
    steps, inner_steps: inner steps of the running round, done and wanted.
    fragment: the fragment of the parameters that the running round exchanges, counted from 0.  fragments: number of
    fragments; 1 if rounds exchange all parameters.
    ahead_steps, ahead_inner_steps: inner steps of the next round, done and wanted, which this peer trains while the running
    round is exchanged and agreed on; both 0 while it does not.
    tokens_per_s: the last known rate of training; 0 while paused.
    round_left_s: seconds to the last inner step of this round; None while it does not train.
    loss: training loss of the running round; before its first step, of the last committed round; None if there is neither.
    losses: training loss of the last committed round on each source of the run's data, by its name; empty without several
    sources.
    eval_loss, eval_rounds, eval_by: the newest held-out loss known here, the rounds of its state, and the peer that measured
    it or claims to have measured it; None while none is known.
    eval_losses: held-out loss on each source of the run's data, by its name; empty without several sources.
    eval_members: number of members of which eval_loss is the mean, in a run on the members' own data; `eval_by` is the last
    of them.
    eval_percent: progress of a measurement by this peer; None while it measures none.
    up_bytes, down_bytes: bytes sent and received since the start.
    block_bytes: bytes of the blocks that this peer needed of the run's corpora since the start, by their origin: peer
    (another trainer, or the organiser), seed, mirror, or disk (they were here), and under "copy" those of blocks fetched to
    keep them for others; empty in a run without corpora.
    copies: copies of the run's data, a map; None before the files of the run are here.
    trainer_pid: process ID of the trainer; None while none is ready.  device: name of its device and precision of its
    products; empty before it was ready.  mfu: share of the device's measured speed that training reaches; None while it does
    not train.  busy_share: share of the last hour in which it trained; None before it was ready.
    joules_per_token: energy that its GPUs drew for each token of the last round; None if they have no counter of it.
    version: version of the software.  swarm: the other peers of the run, a map for each.
    rollouts: this peer's work with rollouts, a map; None in a run without them.
    organiser: ID of the peer that signed the run; empty before the node runs.
    goal_unit, goal_total, goal_done: unit of the run's total ("tokens" or "rounds"), the total, and the amount done.
    data_total: tokens of all members after which data.epochs ends the run; 0 if its total comes first.
    goal_left_s: seconds until the run ends, at the speed of the last round made here; None before two rounds were made
    here.  run_ended: true if the run is at its end and no extension is known.
    run_tokens: tokens of all members so far, as the run counts them.
    run_tokens_per_s: tokens a second of all members in the last round; None before two rounds were made here.
    learning_rate, rate_phase: learning rate of the first step of the next round, and its phase: warm-up, stable or decay;
    None and empty before the node runs.
    clock_skew: difference of this computer's clock from the median of at least two peers' clocks, such as "2 h 3 min
    behind the clocks of 5 peers"; empty if it is within 60 s or fewer clocks are known.
    team: the team of this peer, as others see it; empty without one.
    """

    peer: str
    name: str
    run: str
    run_name: str
    role: str
    phase: str
    why_idle: str
    why_detail: str
    why_remedy: str = field(init=False)
    finishing: str = ""
    finishing_left_s: float | None = None
    round: int = 0
    tip: str = ""
    final_rounds: int = 0
    final_tip: str = ""
    provisional_rounds: int = 0
    unconfirmed_by: list[str] = field(default_factory=list)
    electors: list[str] = field(default_factory=list)
    founders_vote_until: int | None = None
    state_rounds: int = 0
    state_digest: str = ""
    peers: int = 0
    members: list[str] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    inner_steps: int = 0
    fragment: int = 0
    fragments: int = 1
    ahead_steps: int = 0
    ahead_inner_steps: int = 0
    tokens_per_s: float = 0.0
    round_left_s: float | None = None
    loss: float | None = None
    losses: dict[str, float] = field(default_factory=dict)
    eval_loss: float | None = None
    eval_losses: dict[str, float] = field(default_factory=dict)
    eval_rounds: int | None = None
    eval_by: str | None = None
    eval_members: int = 1
    eval_percent: int | None = None
    up_bytes: int = 0
    down_bytes: int = 0
    trainer_pid: int | None = None
    device: str = ""
    mfu: float | None = None
    busy_share: float | None = None
    joules_per_token: float | None = None
    version: str
    swarm: list[SwarmPeer] = field(default_factory=list)
    rollouts: RolloutStatus | None = None
    organiser: str = ""
    goal_unit: str = ""
    goal_total: int = 0
    goal_done: int = 0
    data_total: int = 0
    goal_left_s: float | None = None
    run_ended: bool = False
    run_tokens: int = 0
    run_tokens_per_s: float | None = None
    learning_rate: float | None = None
    rate_phase: str = ""
    clock_skew: str = ""
    team: str = ""
    block_bytes: dict[str, int] = field(default_factory=dict)
    copies: CopiesStatus | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "why_remedy", remedy(self.why_idle))

    @property
    def trains_ahead(self) -> bool:
        """True while it trains for the next round, not when it waits for the result of the running one."""
        return self.ahead_inner_steps > 0 and not self.why_idle

    def teams(self) -> dict[str, str]:
        """Return the teams of this peer and the other peers of the run, by peer ID; empty ones without a team."""
        return {self.peer: self.team, **{known.peer: known.team for known in self.swarm}}

    def names(self) -> dict[str, str]:
        """Return the names of this peer and the other peers of the run, by peer ID."""
        return {self.peer: self.name, **{known.peer: known.name for known in self.swarm}}


@dataclass(frozen=True, kw_only=True)
class PeerStatus(NodeStatus):
    """A running peer: its node and the process around it.

    pid: the peer's process ID.  uptime_s: seconds since its start.  mono: now on the monotonic clock of its events; 0 if an
    older peer does not tell it.  addresses: where it listens.
    invitation: an invitation to the run, if the run is open; otherwise empty.
    invite_command: command with which the organiser of a run that admits by token makes an invitation, with PEER_ID in place
    of the guest's ID; otherwise empty.
    reachable: reachable, unreachable or unknown, according to peers that were asked to dial back.
    reachability: the result for each address at which they see this peer or which it announces.
    run_definition: the run as its organiser signed it, a map; None until an invitation's manifest is fetched.
    computer: this computer, a map; None before its first reading.
    contribution: credit of this peer on the record chain, a map; None before it is counted.
    next_rest: a phrase that tells when this peer rests by its settings, such as "from Monday 08:00, on battery", or, while
    it rests by the clock, when it resumes; empty if no rest is planned.
    limits: the limits in force, as a person writes them, by the name of the setting.
    """

    pid: int
    uptime_s: float
    mono: float = 0.0
    addresses: list[str] = field(default_factory=list)
    invitation: str = ""
    invite_command: str = ""
    reachable: str = "unknown"
    reachability: dict[str, str] = field(default_factory=dict)
    run_definition: RunDefinition | None = None
    computer: ComputerStatus | None = None
    contribution: ContributionStatus | None = None
    next_rest: str = ""
    limits: dict[str, str] = field(default_factory=dict)

    @classmethod
    def around(cls, node: NodeStatus, *, pid: int, uptime_s: float, **around: Any) -> Self:
        """Return the status of the process `pid` around `node`; the other fields of this class are given by their names."""
        known = {each.name: getattr(node, each.name) for each in fields(NodeStatus) if each.init}
        return cls(**known, pid=pid, uptime_s=uptime_s, **around)

    def to_fields(self) -> dict[str, Any]:
        """Return the flat map on the control socket and in JSON; `swarm` is a list of maps."""
        return asdict(self)

    @classmethod
    def from_fields(cls, given: Any) -> Self:
        """Return the status in a map, ignoring fields of a newer version; raise ValueError if a field is missing."""
        try:
            status: Self = _read(cls, given)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"no status of a peer: {error}") from error
        return status


@lru_cache
def _nested(cls: Any) -> dict[str, type[Any] | None]:
    """Return the fields that the dataclass `cls` is made from, each with the dataclass of its values, if they have one."""
    hints = get_type_hints(cls)
    kinds = {each.name: (hints[each.name], *get_args(hints[each.name])) for each in fields(cls) if each.init}
    return {
        name: next((kind for kind in several if isinstance(kind, type) and is_dataclass(kind)), None)
        for name, several in kinds.items()
    }


def _read(cls: Any, given: Mapping[str, Any]) -> Any:
    """Return the dataclass `cls`, with the dataclasses in it, from a map; ignore entries that only a newer version knows."""
    known = _nested(cls)
    return cls(**{name: _value(known[name], value) for name, value in given.items() if name in known})


def _value(cls: type[Any] | None, given: Any) -> Any:
    if cls is None or given is None:
        return given
    return [_read(cls, each) for each in given] if isinstance(given, list) else _read(cls, given)
