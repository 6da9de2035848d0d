"""Discrete simulation of the rounds of a run: who trains, who waits, and for what.

Pure and seeded.  All times are seconds.  A round goes like this; `docs/internals/agreement.md` and `exchange.md` have the
rules, and the numbers in them come from the protocol's own modules.

* Every peer that is online trains its steps at its own speed.  It may train `delay` steps before it has the result of the
  round before; then it waits.  A peer that begins late does fewer steps (`protocol.node.contributor`).
* When a quorum of the electors is ready, the others get half of the fair time, then finish their step and contribute the
  steps that they have done.  A peer that needs much longer for its step is no member.
* The members exchange.  Owners get chunks by their lines, and the slowest line decides, unless it is so slow that the others
  go on without it; then its peer has the result later.
* The result is agreed on, and applied.

A peer that returns after its absence fetches the results that it missed, or the state if that is smaller.  A peer that
leaves loses the steps of the running round; it says goodbye, so nobody waits for it.  Deaths, lies, audits and lost packets
are not simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts, fragment_length
from peer.planning.swarm import Numbers, PlannedPeers
from protocol.agreement.ballot import most_chunks
from protocol.agreement.policy import ANSWER_S
from protocol.allreduce.assignment import share_out
from protocol.allreduce.lateness import SPREAD, fair_time
from protocol.chain.electorate import quorum_size
from protocol.node.contributor import SPARE_STEPS
from protocol.run.manifest import MAX_ELECTORS, RunManifest

Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]

WIRE = 1.07
"""Time of an exchange over bytes by bandwidth: headers, and the end at which not all lines are full.  Measured with 4 and 8
peers (docs/results/exchange.md)."""
EXCHANGE_RTTS = 8.0
"""Round trips that an exchange takes besides: lines that are far from each other become full slowly.  Fitted to the same
page."""
AGREEMENT_RTTS = 4.0
"""Round trips of the agreement: eight statements one after the other, from READY to COMMIT."""
AGREEMENT_S = 0.3
"""Seconds of the agreement without the round trips: signatures, writes to the disk, audits."""
ENCODE_PER_S, APPLY_PER_S = 200e6, 300e6
"""Parameters per second that one core encodes with int4, and to which it applies a result (docs/results/exchange.md)."""
AGREEMENT_BYTES = 9e3
"""Bytes of statements and heartbeats that a peer sends, and receives, in a round for each peer, up to `MAX_ELECTORS`
(docs/results/simulator.md)."""
ROUNDS, WARM_UP = 200, 4
"""Rounds that count at least, and rounds before them."""
MOST_ROUNDS, TRACED_ROUNDS = 3000, 3
PERIODS = 100
"""Periods online and offline, of all peers together, that the rounds cover if they are not more than `MOST_ROUNDS`."""
MOST_CHANGES = 10_000
"""Changes of presence while no round can close, after which the description is refused."""


# ------------------------------------------------------------------------------------------------------------------------
# Facts about a run on which its time depends.


class RoundSetting(NamedTuple):
    """Settings of a run file that decide how often how many bytes are exchanged, in the words of a run file."""

    codec: str
    inner_steps: int
    fragments: int
    delay: int

    @classmethod
    def of(cls, manifest: RunManifest) -> RoundSetting:
        """Return the settings of a run."""
        return cls(manifest.codec, manifest.rounds.inner_steps, manifest.fragments, manifest.rounds.delay)


@dataclass(frozen=True)
class RoundLoad:
    """Work of one member in one round.  steps: inner steps.  delay: steps that it may train before it has the last result.

    parameters: number of parameters that a round exchanges.
    """

    steps: int
    delay: int
    step_tokens: int
    parameters: int
    contribution_bytes: int
    result_bytes: int
    chunks: int

    @classmethod
    def of(cls, manifest: RunManifest, setting: RoundSetting) -> RoundLoad:
        """Return the load of a run's rounds with these settings instead of its own."""
        codec = LADDER[setting.codec]
        parameters = fragment_length(manifest.parameters, codec.block, setting.fragments)
        chunk = -(-manifest.chunk_parameters // codec.block) * codec.block
        layouts = chunk_layouts(codec, parameters, chunk)
        return cls(
            steps=setting.inner_steps // setting.fragments,
            delay=setting.delay,
            step_tokens=manifest.data.sequences_per_step * manifest.data.row_tokens,
            parameters=parameters,
            contribution_bytes=layouts.contribution.payload_bytes,
            result_bytes=layouts.result.payload_bytes,
            chunks=len(layouts.result),
        )


@dataclass(frozen=True)
class RoundRules:
    """Rules of a run that no setting of the exchange changes."""

    grace_s: float
    min_members: int
    max_members: int
    state_bytes: int

    @classmethod
    def of(cls, manifest: RunManifest) -> RoundRules:
        """Return the rules of a run."""
        rounds = manifest.rounds
        return cls(rounds.grace_s, rounds.min_members, rounds.max_members, manifest.state_bytes)


# ------------------------------------------------------------------------------------------------------------------------
# Time and bytes of one exchange.


class ExchangeCost(NamedTuple):
    """Cost of an exchange for each member: seconds in which its line carries all bytes, and the bytes sent and received."""

    seconds: Numbers
    sent: Numbers
    received: Numbers


def exchange_cost(up: Numbers, down: Numbers, load: RoundLoad, electors: int) -> ExchangeCost:
    """Return the cost of an exchange of members with these lines (bytes per second).

    With N members, an owner with a share f of the chunks sends (1 - f) of its contribution and f (N - 1) results, and
    receives (1 - f) of the results and f (N - 1) contributions.
    """
    members = len(up)
    most = most_chunks(load.chunks, electors, min(electors, members))
    counts = share_out(np.minimum(up, down).tolist(), load.chunks, most)
    own = np.array(counts, np.float64) / load.chunks
    sent = (1 - own) * load.contribution_bytes + own * (members - 1) * load.result_bytes
    received = (1 - own) * load.result_bytes + own * (members - 1) * load.contribution_bytes
    if members == 1:
        sent, received = np.zeros(1), np.zeros(1)
    return ExchangeCost(WIRE * np.maximum(sent / up, received / down), sent, received)


def exchange_end(seconds: Numbers) -> float:
    """Return the time after which an exchange ends: the slowest line's, unless the others go on without it.

    They wait half as long again as more than half of the members took, and the fair time.
    """
    half = float(np.sort(seconds)[min(len(seconds) - 1, len(seconds) // 2)])
    waits = (1 + SPREAD) * half + fair_time(half, len(seconds))
    return float(seconds[seconds <= waits].max())


# ------------------------------------------------------------------------------------------------------------------------
# Time of a peer, by what it does, and the outcome of a simulation.


class Doing(Enum):
    """Occupation of a trainer.  WAIT_PEERS: it is ready, others are not.  WAIT_EXCHANGE: it lacks the round's result."""

    TRAIN = "train"
    ENCODE = "encode"
    WAIT_PEERS = "wait for peers"
    WAIT_EXCHANGE = "wait for the exchange"
    FETCH = "fetch"
    AWAY = "away"


class Stretch(NamedTuple):
    """Stretch of time in which a trainer does one thing."""

    doing: Doing
    begin: float
    end: float


@dataclass
class TrainerCourse:
    """Course of one peer: its trainer's stretches, and the times in which its line carries an exchange (begin, end)."""

    peer: int
    stretches: list[Stretch] = field(default_factory=list)
    exchanges: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class RoundTrace:
    """Courses of a fast, a median and a slow member through some rounds, between the times `begin` and `end`."""

    begin: float
    end: float
    courses: tuple[TrainerCourse, ...]


@dataclass(frozen=True)
class Forecast:
    """Outcome of a simulation: means over rounds, and over the time for which peers are online.

    exchange_share: share of the time that the exchange adds to rounds, because the trainer that completes the quorum waits
    for it or encodes.  utilisation: share of the time in which trainers train.  lost: share in which they train steps that
    no record counts, because they leave or are too late.  surplus: share in which they train for a round whose places are
    all taken.  waits_peers, waits_exchange, fetches: other shares; the rest is encoding.  up_bytes, down_bytes: of a
    member in a round, median.  up_day, down_day: bytes of a peer on a day, mean and most.
    """

    step_s: float
    round_s: float
    exchange_s: float
    agreement_s: float
    members: float
    exchange_share: float
    utilisation: float
    lost: float
    surplus: float
    waits_peers: float
    waits_exchange: float
    fetches: float
    tokens_a_day: float
    up_bytes: float
    down_bytes: float
    up_day: tuple[float, float]
    down_day: tuple[float, float]
    trace: RoundTrace


class NeverTogether(ValueError):
    """The described peers cannot hold a round, because too few of them are online at a time."""


# ------------------------------------------------------------------------------------------------------------------------


def simulate(load: RoundLoad, rules: RoundRules, peers: PlannedPeers, *, rounds: int = ROUNDS, seed: int = 1) -> Forecast:
    """Simulate rounds, and return the forecast.  Raises NeverTogether.

    rounds: least number of rounds that count; peers that come and go need more.
    """
    if len(peers) < rules.min_members:
        raise NeverTogether(f"a round needs {rules.min_members} members, and {len(peers)} are described")
    simulation = RoundSimulation(load, rules, peers, seed)
    for _ in range(WARM_UP):
        simulation.advance()
    simulation.count_from_here()
    done = 0
    while done < rounds or (simulation.periods < PERIODS and done < MOST_ROUNDS):
        simulation.advance()
        done += 1
    return simulation.forecast()


class RoundSimulation:
    """Simulation of a run, round by round; a value of each array belongs to one peer."""

    def __init__(self, load: RoundLoad, rules: RoundRules, peers: PlannedPeers, seed: int) -> None:
        self._load, self._rules, self._peers = load, rules, peers
        self._rng = np.random.default_rng(seed)
        self._step_s: Numbers = load.step_tokens / peers.speed
        count = len(peers)
        self._order: Indices = self._rng.permutation(count)
        self._is_elector: Flags = np.zeros(count, np.bool_)
        self._is_elector[self._order[:MAX_ELECTORS]] = True
        share = peers.online_s / (peers.online_s + peers.offline_s)
        self._is_on: Flags = self._rng.random(count) < share
        self._switch_at = self._period(np.arange(count))
        self._begun: Numbers = np.zeros(count)
        """Time at which each trainer began the running round's steps."""
        self._result_at: Numbers = np.zeros(count)
        """Time at which each peer has the last result."""
        self._missed: Numbers = np.zeros(count)
        """Rounds committed since a peer went away."""
        self._committed_at, self._closed_at = 0.0, 0.0
        self._spent = {doing: np.zeros(count) for doing in Doing}
        self._lost, self._surplus = np.zeros(count), np.zeros(count)
        self._sent, self._received = np.zeros(count), np.zeros(count)
        self._tokens = 0.0
        self._members: Indices = np.arange(0)
        """Members of the last round."""
        self._added_s = 0.0
        self._rounds: list[tuple[float, float, float, float]] = []
        """Exchange (s), members, and median bytes sent and received by a member, of each counted round."""
        self._counted_from = 0.0
        self._courses: tuple[TrainerCourse, ...] = ()

    def _period(self, which: Indices) -> Numbers:
        """Return the length of a period online or offline, whichever each peer is in; infinity if it is always online."""
        peers = self._peers
        mean = np.where(self._is_on[which], peers.online_s[which], peers.offline_s[which])
        drawn = self._rng.exponential(1.0, len(which)) * mean
        return np.where(peers.offline_s[which] > 0, drawn, np.inf)

    def count_from_here(self) -> None:
        """Forget what was spent so far, so that only the following rounds count."""
        for spent in (*self._spent.values(), self._lost, self._surplus, self._sent, self._received):
            spent[:] = 0
        self._tokens, self._added_s, self._counted_from = 0.0, 0.0, self._committed_at
        self._rounds.clear()

    # -- one round ------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Simulate one round."""
        wanted, ends, quorum_s = self._settle_presence()
        fair_s = self._fair(quorum_s)
        asked_at = quorum_s + min(self._rules.grace_s, fair_s / 2)
        last = int(np.flatnonzero(self._is_on & (ends == quorum_s))[0])
        self._added_s += self._waits(last, quorum_s) + self._load.parameters / ENCODE_PER_S
        steps, ends = self._finish(wanted, ends, asked_at)
        ready = self._is_on & (ends <= quorum_s + fair_s + ANSWER_S)
        members = self._choose(np.flatnonzero(ready))
        closed_at = float(ends[ready].max())
        self._account(ready, steps, ends, members)
        self._exchange(members, ends, closed_at)

    def _settle_presence(self) -> tuple[Numbers, Numbers, float]:
        """Let peers come and go until a quorum is ready; return each peer's steps, their ends, and the quorum's time."""
        for _ in range(MOST_CHANGES):
            wanted = self._wanted()
            ends = self._end(wanted)
            stays = self._is_on & (self._switch_at >= ends)
            quorum_s = self._quorum(ends, stays)
            last = quorum_s + (self._fair(quorum_s) / 2 if math.isfinite(quorum_s) else 0.0)
            leaves = self._is_on & (self._switch_at < np.minimum(ends, last))
            comes = ~self._is_on & (self._switch_at < quorum_s)
            if not math.isfinite(quorum_s) and not leaves.any():
                comes &= self._switch_at == self._switch_at[~self._is_on].min(initial=np.inf)
            elif not math.isfinite(quorum_s):
                comes[:] = False
            if not leaves.any() and not comes.any():
                if math.isfinite(quorum_s):
                    return wanted, ends, quorum_s
                break
            self._leave(np.flatnonzero(leaves))
            self._come(np.flatnonzero(comes))
        raise NeverTogether(f"a round needs {self._rules.min_members} members, and so many are hardly ever online together")

    def _wanted(self) -> Numbers:
        """Return the steps that each peer means to do: fewer if it begins late."""
        start = np.maximum(self._begun, self._result_at - self._load.delay * self._step_s)
        voters = self._is_on & self._is_elector
        usual = np.median(start[voters]) if voters.any() else 0.0
        usual_step_s = np.median(self._step_s[voters]) if voters.any() else 1.0
        done = np.floor(np.maximum(0.0, start - usual) / usual_step_s)
        left = np.maximum(1.0, self._load.steps - done - SPARE_STEPS)
        return np.where(done > 0, left, float(self._load.steps))

    def _end(self, steps: Numbers) -> Numbers:
        """Return the time at which each peer has done so many steps of this round, and has the last round's result."""
        lead = np.minimum(self._load.delay, steps)
        return np.maximum(self._begun + lead * self._step_s, self._result_at) + (steps - lead) * self._step_s

    def _quorum(self, ends: Numbers, stays: Flags) -> float:
        """Return the time at which a quorum of the electors is ready; infinity if too few peers are there."""
        if np.count_nonzero(stays) < self._rules.min_members:
            return math.inf
        voters = ends[stays & self._is_elector]
        voters = voters if voters.size else ends[stays]
        needed = np.sort(voters)[quorum_size(len(voters)) - 1]
        return float(max(needed, np.sort(ends[stays])[self._rules.min_members - 1]))

    def _fair(self, quorum_s: float) -> float:
        """Return the fair time of this round: the time for which it waits for one more trainer."""
        took = quorum_s - self._committed_at
        voters = int(np.count_nonzero(self._is_on & self._is_elector)) or int(np.count_nonzero(self._is_on))
        if took < ANSWER_S:
            return self._rules.grace_s
        return min(self._rules.grace_s, fair_time(took, quorum_size(max(1, voters))))

    def _finish(self, wanted: Numbers, ends: Numbers, asked_at: float) -> tuple[Numbers, Numbers]:
        """Return the steps and ends of all peers if late ones finish the step in which they are at `asked_at`."""
        lead = np.minimum(self._load.delay, wanted)
        waited = np.maximum(self._begun + lead * self._step_s, self._result_at)
        before = np.clip((asked_at - self._begun) / self._step_s, 0, lead)
        done = np.ceil(before + np.maximum(0.0, asked_at - waited) / self._step_s)
        steps = np.where(ends > asked_at, np.clip(done, 1, wanted), wanted)
        return steps, self._end(steps)

    def _choose(self, ready: Indices) -> Indices:
        """Return the members: all that are ready, or if they are too many, electors first, and always the same others."""
        if len(ready) <= self._rules.max_members:
            return ready
        rank = np.empty(len(self._order), np.intp)
        rank[self._order] = np.arange(len(self._order))
        return np.sort(ready[np.argsort(rank[ready])][: self._rules.max_members])

    def _exchange(self, members: Indices, ends: Numbers, closed_at: float) -> None:
        """Exchange, agree and apply; then every peer knows when it has the result."""
        load, peers = self._load, self._peers
        electors = max(1, int(np.count_nonzero(self._is_elector[members])))
        cost = exchange_cost(peers.up[members], peers.down[members], load, electors)
        rtt = float(np.median(peers.rtt[members])) if len(members) > 1 else 0.0
        carried = exchange_end(cost.seconds)
        exchange_s = carried + EXCHANGE_RTTS * rtt
        agreed_s = AGREEMENT_RTTS * rtt + AGREEMENT_S
        committed_at = closed_at + exchange_s + agreed_s
        late: Numbers = np.zeros(len(peers))
        late[members] = np.maximum(0.0, cost.seconds - carried)
        others = self._is_on.copy()
        others[members] = False
        late[others] = load.result_bytes / peers.down[others]
        self._result_at = np.where(
            self._is_on, np.maximum(self._result_at, committed_at + late + load.parameters / APPLY_PER_S), self._result_at
        )
        self._missed[~self._is_on] += 1
        statements = AGREEMENT_BYTES * min(int(np.count_nonzero(self._is_on)), MAX_ELECTORS)
        for total, exchanged in ((self._sent, cost.sent), (self._received, cost.received)):
            total[members] += exchanged
            total[self._is_on] += statements
        self._received[others] += load.result_bytes
        medians = (float(np.median(cost.sent)) + statements, float(np.median(cost.received)) + statements)
        self._rounds.append((exchange_s, len(members), *medians))
        for course in self._courses:
            place = np.flatnonzero(members == course.peer)
            if place.size:
                course.exchanges.append((closed_at, closed_at + float(cost.seconds[place[0]])))
        self._closed_at, self._committed_at = closed_at, committed_at

    # -- accounts -------------------------------------------------------------------------------------------------------

    def _account(self, ready: Flags, steps: Numbers, ends: Numbers, members: Indices) -> None:
        """Spend the time of all peers up to the end of their steps, and begin their next ones."""
        training = np.flatnonzero(self._is_on & (self._begun < ends[ready].max()))
        until = np.minimum(ends[training], ends[ready].max())
        trained = self._spend(training, until)
        late, beyond = ~ready[training], ready.copy()
        beyond[members] = False
        self._members = members
        self._lost[training[late]] += trained[late]
        self._surplus[training] += trained * beyond[training]
        self._tokens += float(steps[members].sum()) * self._load.step_tokens
        self._begun[training] = until + self._load.parameters / ENCODE_PER_S
        self._spent[Doing.ENCODE][training] += self._load.parameters / ENCODE_PER_S
        self._draw(Doing.ENCODE, training, until, self._begun[training])

    def _waits(self, peer: int, until: float) -> float:
        """Return the seconds for which a peer waits for the last round's exchange before `until`."""
        stops = float(self._begun[peer] + self._load.delay * self._step_s[peer])
        return max(0.0, min(until, float(self._result_at[peer])) - max(stops, self._closed_at))

    def _spend(self, which: Indices, until: Numbers) -> Numbers:
        """Account for the time of these peers from the begin of their steps until `until`; return the trained seconds."""
        begun, result_at = self._begun[which], self._result_at[which]
        stops = np.minimum(until, begun + self._load.delay * self._step_s[which])
        peers_until = np.clip(self._closed_at, stops, until)
        goes_on = np.clip(result_at, stops, until)
        peers_until = np.minimum(peers_until, goes_on)
        parts = (
            (Doing.TRAIN, begun, stops),
            (Doing.WAIT_PEERS, stops, peers_until),
            (Doing.WAIT_EXCHANGE, peers_until, goes_on),
            (Doing.TRAIN, goes_on, until),
        )
        for doing, begin, end in parts:
            self._spent[doing][which] += end - begin
            self._draw(doing, which, begin, end)
        return (stops - begun) + (until - goes_on)

    def _draw(self, doing: Doing, which: Indices, begin: Numbers, end: Numbers) -> None:
        for course in self._courses:
            for place in np.flatnonzero(which == course.peer):
                if end[place] > begin[place]:
                    course.stretches.append(Stretch(doing, float(begin[place]), float(end[place])))

    def _leave(self, which: Indices) -> None:
        """Let peers go; the steps of this round are lost."""
        if not which.size:
            return
        now = self._switch_at[which]
        self._lost[which] += self._spend(which, np.maximum(now, self._begun[which]))
        self._is_on[which] = False
        self._missed[which] = 0
        self._switch_at[which] = now + self._period(which)
        self._draw(Doing.AWAY, which, now, self._switch_at[which])

    def _come(self, which: Indices) -> None:
        """Let peers return: each fetches what it lacks, and begins to train."""
        if not which.size:
            return
        now, down = self._switch_at[which], self._peers.down[which]
        fetched = np.minimum((self._missed[which] + 1) * self._load.result_bytes, self._rules.state_bytes)
        ready_at = now + WIRE * fetched / down
        self._received[which] += fetched
        self._spent[Doing.FETCH][which] += ready_at - now
        self._draw(Doing.FETCH, which, now, ready_at)
        self._is_on[which] = True
        self._begun[which], self._result_at[which] = ready_at, ready_at
        self._switch_at[which] = now + self._period(which)

    @property
    def periods(self) -> float:
        """Mean number of periods online and offline in the counted time, of all peers; infinity if nobody goes away."""
        peers = self._peers
        goes = peers.offline_s > 0
        periods = (self._committed_at - self._counted_from) / (peers.online_s[goes] + peers.offline_s[goes])
        return float(periods.sum()) if goes.any() else math.inf

    # -- outcome --------------------------------------------------------------------------------------------------------

    def forecast(self) -> Forecast:
        """Return the outcome of the counted rounds."""
        elapsed = self._committed_at - self._counted_from
        exchange_s, members, sent, received = (float(np.mean(column)) for column in zip(*self._rounds, strict=True))
        present = sum(float(spent.sum()) for doing, spent in self._spent.items() if doing is not Doing.AWAY)
        shares = {doing: float(spent.sum()) / present for doing, spent in self._spent.items()}
        days = elapsed / 86_400
        up, down = self._sent / days, self._received / days
        rtt = float(np.median(self._peers.rtt)) if len(self._peers) > 1 else 0.0
        return Forecast(
            step_s=float(np.median(self._step_s)),
            round_s=elapsed / len(self._rounds),
            exchange_s=exchange_s,
            agreement_s=AGREEMENT_RTTS * rtt + AGREEMENT_S,
            members=members,
            exchange_share=self._added_s / elapsed,
            utilisation=shares[Doing.TRAIN],
            lost=float(self._lost.sum()) / present,
            surplus=float(self._surplus.sum()) / present,
            waits_peers=shares[Doing.WAIT_PEERS],
            waits_exchange=shares[Doing.WAIT_EXCHANGE],
            fetches=shares[Doing.FETCH],
            tokens_a_day=self._tokens / days,
            up_bytes=sent,
            down_bytes=received,
            up_day=(float(up.mean()), float(up.max())),
            down_day=(float(down.mean()), float(down.max())),
            trace=self._trace(),
        )

    def _trace(self) -> RoundTrace:
        """Simulate a few further rounds, and return the courses of some of the last members."""
        order = self._members[np.argsort(-self._peers.speed[self._members], kind="stable")]
        places = dict.fromkeys((0, (len(order) - 1) // 2, len(order) - 1))
        self._courses = tuple(TrainerCourse(int(order[place])) for place in places)
        begin = self._committed_at
        for _ in range(TRACED_ROUNDS):
            self.advance()
        end = self._committed_at
        self.advance()  # which accounts for what trainers did until then
        return RoundTrace(begin, end, self._courses)
