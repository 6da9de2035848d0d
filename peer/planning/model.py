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

from peer.planning.cost import (
    EXCHANGE_RTTS,
    WIRE,
    Flags,
    RoundLoad,
    RoundRules,
    agreement_cost,
    beside_gossip,
    exchange_cost,
    exchange_end,
    gossip_cost,
)
from peer.planning.swarm import Numbers, PlannedPeers
from protocol.agreement.policy import ANSWER_S, FINISH_S, round_fair_time
from protocol.allreduce.lateness import STRANGERS, ExclusionBackoff
from protocol.chain.electorate import FEWEST_SEATED, MISSES, quorum_size
from protocol.node.contributor import SPARE_STEPS
from protocol.run.manifest import MAX_ELECTORS
from protocol.wire.identity import PeerId

Indices = npt.NDArray[np.intp]

ENCODE_PER_S, APPLY_PER_S = 200e6, 300e6
"""Parameters per second that one core encodes with int4, and to which it applies a result (docs/results/exchange.md)."""
ROUNDS, WARM_UP = 200, 4
"""Rounds that count at least, and rounds before them."""
MOST_ROUNDS, TRACED_ROUNDS = 3000, 3
PERIODS = 100
"""Periods online and offline, of all peers together, that the rounds cover if they are not more than `MOST_ROUNDS`."""
MOST_CHANGES = 10_000
"""Changes of presence while no round can close, after which the description is refused."""


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


class CountedRound(NamedTuple):
    """Figures of a round.  sent, received: bytes of a member, median."""

    exchange_s: float
    agreement_s: float
    members: float
    sent: float
    received: float


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
        self._round = 0
        self._names = [PeerId(str(number)) for number in range(count)]
        self._stalls = ExclusionBackoff()
        self._in_a_row: Numbers = np.zeros(count)
        """Records in a row that name a peer, or if negative, that do not."""
        self._added_s = 0.0
        self._rounds: list[CountedRound] = []
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
        grace_s = max(self._rules.grace_s, fair_s)
        last = int(np.flatnonzero(self._is_on & (ends == quorum_s))[0])
        self._added_s += self._waits(last, quorum_s) + self._load.parameters / ENCODE_PER_S
        share = self._shares()
        awaited = self._is_on & (share > 0)
        asked_at = np.where(awaited, quorum_s + np.minimum(share * grace_s, fair_s / 2), np.inf)
        steps, ends = self._finish(wanted, ends, asked_at)
        given_up_at = quorum_s + share * (grace_s + FINISH_S)
        closed_at = max(quorum_s, float(np.minimum(ends, given_up_at)[awaited].max(initial=quorum_s)))
        ready = self._is_on & (ends <= closed_at)
        self._judge(awaited & (ends > min(closed_at, quorum_s + fair_s + ANSWER_S)), ready)
        members = self._choose(np.flatnonzero(ready))
        self._account(closed_at, ready, steps, ends, members)
        self._exchange(members, closed_at)
        self._seat(members)
        self._round += 1

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
        voters = self._is_on & self._is_elector if (self._is_on & self._is_elector).any() else self._is_on
        lead_s = np.minimum(self._committed_at - self._begun, self._load.delay * self._step_s)[voters]
        took_s = quorum_s - self._committed_at + max(0.0, float(np.median(lead_s)) if lead_s.size else 0.0)
        return round_fair_time(self._rules.grace_s, took_s, quorum_size(max(1, int(np.count_nonzero(voters)))))

    # -- memory of rounds -----------------------------------------------------------------------------------------------

    def _shares(self) -> Numbers:
        """Return the fraction of the time that each peer gets to become ready."""
        if self._stalls.is_blank:
            return np.ones(len(self._peers))
        shares = np.array([self._stalls.share(name, self._round) for name in self._names])
        strangers = self._stalls.share(STRANGERS, self._round)
        return np.where(self._is_elector, shares, np.minimum(shares, strangers))

    def _judge(self, late: Flags, ready: Flags) -> None:
        """Remember the peers that kept the round waiting, and credit those that did not (`protocol.allreduce.lateness`)."""
        tenured = self._is_elector.copy()
        tenured[self._members] = True
        good = ready & ~late
        if not late.any() and self._stalls.is_blank:
            return
        for peer in np.flatnonzero(late & tenured):
            self._stalls.lost_with(self._names[peer], self._round)
        for peer in np.flatnonzero(good & tenured):
            self._stalls.delivered(self._names[peer], self._round)
        if (late & ~self._is_elector).any():
            self._stalls.lost_with(STRANGERS, self._round)
        elif (good & ~self._is_elector).any():
            self._stalls.delivered(STRANGERS, self._round)

    def _seat(self, members: Indices) -> None:
        """Let peers earn and lose votes by the record of these members (`protocol.chain.electorate`)."""
        named = np.zeros(len(self._peers), np.bool_)
        named[members] = True
        self._in_a_row = np.where(named, np.maximum(self._in_a_row, 0) + 1, np.minimum(self._in_a_row, 0) - 1)
        seated = (self._is_elector & (self._in_a_row > -MISSES)) | (self._in_a_row >= self._rules.seasoning_rounds)
        if np.count_nonzero(seated) < FEWEST_SEATED:
            seated = named
        self._is_elector[:] = False
        first = self._order[seated[self._order]][:MAX_ELECTORS]
        self._is_elector[first] = True

    # -- the steps of a round -------------------------------------------------------------------------------------------

    def _finish(self, wanted: Numbers, ends: Numbers, asked_at: Numbers) -> tuple[Numbers, Numbers]:
        """Return the steps and ends of all peers if late ones finish the step in which they are at `asked_at`."""
        lead = np.minimum(self._load.delay, wanted)
        waited = np.maximum(self._begun + lead * self._step_s, self._result_at)
        before = np.clip((asked_at - self._begun) / self._step_s, 0, lead)
        done = np.minimum(wanted, np.ceil(before + np.maximum(0.0, asked_at - waited) / self._step_s))
        steps = np.where(ends > asked_at, np.maximum(done, 1), wanted)
        return steps, self._end(steps)

    def _choose(self, ready: Indices) -> Indices:
        """Return the members: all that are ready, or if they are too many, electors first, and always the same others."""
        if len(ready) <= self._rules.max_members:
            return ready
        rank = np.empty(len(self._order), np.intp)
        rank[self._order] = np.arange(len(self._order))
        return np.sort(ready[np.argsort(rank[ready])][: self._rules.max_members])

    def _exchange(self, members: Indices, closed_at: float) -> None:
        """Exchange, agree and apply; then every peer knows when it has the result."""
        load, peers = self._load, self._peers
        gossip = gossip_cost(int(np.count_nonzero(self._is_on)))
        up, down = (beside_gossip(line[members], gossip.bytes_per_s) for line in (peers.up, peers.down))
        voters = self._is_elector[members] if self._is_elector[members].any() else np.ones(len(members), np.bool_)
        cost = exchange_cost(up, down, load, int(np.count_nonzero(voters)))
        rtt = float(np.median(peers.rtt[members])) if len(members) > 1 else 0.0
        carried = exchange_end(cost.seconds)
        exchange_s = carried + EXCHANGE_RTTS * rtt
        agreed = agreement_cost(up, down, rtt, load, voters)
        committed_at = closed_at + exchange_s + agreed.seconds
        late: Numbers = np.zeros(len(peers))
        late[members] = np.maximum(0.0, cost.seconds - carried)
        others = self._is_on.copy()
        others[members] = False
        late[others] = WIRE * load.result_bytes / peers.down[others]
        self._result_at = np.where(
            self._is_on, np.maximum(self._result_at, committed_at + late + load.parameters / APPLY_PER_S), self._result_at
        )
        self._missed[~self._is_on] += 1
        gossiped = gossip.bytes_per_s * (committed_at - self._committed_at) + gossip.round_bytes
        medians = []
        for total, exchanged, said in (
            (self._sent, cost.sent, agreed.sent),
            (self._received, cost.received, agreed.received),
        ):
            of_members = WIRE * (exchanged + said)
            total[members] += of_members
            total[self._is_on] += gossiped
            medians.append(float(np.median(of_members)) + gossiped)
        self._received[others] += WIRE * load.result_bytes
        self._rounds.append(CountedRound(exchange_s, agreed.seconds, len(members), *medians))
        for course in self._courses:
            place = np.flatnonzero(members == course.peer)
            if place.size:
                course.exchanges.append((closed_at, closed_at + float(cost.seconds[place[0]])))
        self._closed_at, self._committed_at = closed_at, committed_at

    # -- accounts -------------------------------------------------------------------------------------------------------

    def _account(self, closed_at: float, ready: Flags, steps: Numbers, ends: Numbers, members: Indices) -> None:
        """Spend the time of all peers up to the end of their steps, and begin their next ones."""
        training = np.flatnonzero(self._is_on & (self._begun < closed_at))
        until = np.minimum(ends[training], closed_at)
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
        fetched = WIRE * np.minimum((self._missed[which] + 1) * self._load.result_bytes, self._rules.state_bytes)
        ready_at = now + fetched / down
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
        means = CountedRound(*(float(np.mean(column)) for column in zip(*self._rounds, strict=True)))
        present = sum(float(spent.sum()) for doing, spent in self._spent.items() if doing is not Doing.AWAY)
        shares = {doing: float(spent.sum()) / present for doing, spent in self._spent.items()}
        days = elapsed / 86_400
        up, down = self._sent / days, self._received / days
        return Forecast(
            step_s=float(np.median(self._step_s)),
            round_s=elapsed / len(self._rounds),
            exchange_s=means.exchange_s,
            agreement_s=means.agreement_s,
            members=means.members,
            exchange_share=self._added_s / elapsed,
            utilisation=shares[Doing.TRAIN],
            lost=float(self._lost.sum()) / present,
            surplus=float(self._surplus.sum()) / present,
            waits_peers=shares[Doing.WAIT_PEERS],
            waits_exchange=shares[Doing.WAIT_EXCHANGE],
            fetches=shares[Doing.FETCH],
            tokens_a_day=self._tokens / days,
            up_bytes=means.sent,
            down_bytes=means.received,
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
