"""Forecast of the rounds of a run: the times in which each peer trains or waits, and the reason for waiting.

Pure.  All times are seconds.  The peers that are online repeat one round, which `settle` computes.
`docs/internals/agreement.md` and `exchange.md` have the rules, and the numbers in them come from the protocol's modules.

* Every peer trains its steps at its own speed.  It may train `delay` steps before it has the result of the round before;
  then it waits.
* When a quorum of the electors is ready, the others get half of the fair time, then finish their step and contribute the
  steps that they have done.  A peer whose step takes longer than the fair time is not a member, and nobody waits for it.  A
  peer whose line delivers the last result late gets the grace time.
* The members exchange.  Owners get chunks by their lines, and the slowest line decides, unless it is so slow that the others
  go on without it; then its peer has the result later.
* The result is agreed on, and applied.

If peers come and go, the forecast is the mean over drawn sets of peers that are online.  A peer that returns fetches the
results that it missed, or the state if that is smaller, and a peer that leaves loses the steps of the running round.
Deaths, lies, lost packets, and rounds that wait in vain for a peer are not in the forecast.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

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
from peer.planning.swarm import Indices, Numbers, PlannedPeers
from protocol.agreement.policy import ANSWER_S, FINISH_S, round_fair_time
from protocol.chain.electorate import quorum_size
from protocol.node.contributor import SPARE_STEPS
from protocol.run.manifest import MAX_ELECTORS

DAY_S = 86_400.0
ENCODE_PER_S, APPLY_PER_S = 200e6, 300e6
"""Parameters per second that one core encodes with int4, and to which it applies a result (docs/results/exchange.md)."""
SETTLING = 8
"""Rounds after which peers that begin together repeat the same round, or nearly."""
MOST_ROUND = 100.0
"""Ratio of a round's length to a peer's time online from which none of its rounds counts."""
DRAWS = 200
"""Sets of peers over which a forecast with peers that come and go takes the mean."""


class Doing(Enum):
    """Occupation of a trainer.  WAIT_PEERS: it is ready, others are not.  WAIT_EXCHANGE: it lacks the round's result."""

    TRAIN = "train"
    ENCODE = "encode"
    WAIT_PEERS = "wait for peers"
    WAIT_EXCHANGE = "wait for the exchange"


@dataclass(frozen=True)
class TrainerCourse:
    """Course of one peer through a round of `seconds` that it repeats, from the close of a round on.

    speed: tokens per second.  begun: time at which its trainer begins.  changes: activities of the trainer
    and the time at which each ends, in order.  exchange_s: seconds in which its line carries the exchange.
    """

    speed: float
    seconds: float
    begun: float
    changes: tuple[tuple[Doing, float], ...]
    exchange_s: float

    def doing(self, at: float) -> Doing:
        """Return the activity of the trainer at a time."""
        at = self.begun + (at - self.begun) % self.seconds
        return next((doing for doing, until in self.changes if at < until), Doing.ENCODE)


@dataclass(frozen=True)
class RoundTrace:
    """Courses of a fast, a median and a slow member through a round of `seconds`."""

    seconds: float
    courses: tuple[TrainerCourse, ...]


@dataclass(frozen=True)
class Forecast:
    """Means over rounds, and over the time for which peers are online.

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
# The exchange of a round, and the agreement on it.


class RoundTraffic(NamedTuple):
    """Times and bytes of a round's exchange and agreement; a value of each array belongs to one peer.

    lines_s: seconds in which a member's line carries the exchange.  result_s: seconds until a peer has the applied result.
    sent, received: bytes without gossip.
    """

    exchange_s: float
    agreement_s: float
    lines_s: Numbers
    result_s: Numbers
    sent: Numbers
    received: Numbers


def round_traffic(load: RoundLoad, peers: PlannedPeers, members: Indices) -> RoundTraffic:
    """Return the traffic of a round of these members among the peers that are online."""
    up, down = (beside_gossip(line[members], gossip_cost(len(peers)).bytes_per_s) for line in (peers.up, peers.down))
    votes = np.arange(len(members)) < MAX_ELECTORS
    cost = exchange_cost(up, down, load, int(np.count_nonzero(votes)))
    rtt = float(np.median(peers.rtt[members])) if len(members) > 1 else 0.0
    carried_s = exchange_end(cost.seconds)
    agreed = agreement_cost(up, down, rtt, load, votes)
    exchange_s = carried_s + EXCHANGE_RTTS * rtt
    result_s = exchange_s + agreed.seconds + WIRE * load.result_bytes / peers.down
    result_s[members] = exchange_s + agreed.seconds + np.maximum(0.0, cost.seconds - carried_s)
    lines_s, sent, received = np.zeros((3, len(peers)))
    received[:] = WIRE * load.result_bytes
    lines_s[members] = cost.seconds
    sent[members], received[members] = WIRE * (cost.sent + agreed.sent), WIRE * (cost.received + agreed.received)
    return RoundTraffic(exchange_s, agreed.seconds, lines_s, result_s + load.parameters / APPLY_PER_S, sent, received)


# ------------------------------------------------------------------------------------------------------------------------
# The round that peers repeat.  Times are seconds after the round before was closed.


class Trainers(NamedTuple):
    """Trainers that begin a round's steps and get the last round's result at these times; an array has a value for each."""

    delay: int
    step_s: Numbers
    begun: Numbers
    result_s: Numbers

    def times(self, steps: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return the times at which each trainer stops for lack of the result, goes on, and has done this many steps."""
        lead = np.minimum(self.delay, steps)
        stops = self.begun + lead * self.step_s
        goes_on = np.maximum(stops, self.result_s)
        return stops, goes_on, goes_on + (steps - lead) * self.step_s

    def wanted(self, steps: int, voters: Indices) -> Numbers:
        """Return the number of steps that each trainer intends to do in a round: fewer if it begins later than most."""
        start = np.maximum(self.begun, self.result_s - self.delay * self.step_s)
        done = np.floor(np.maximum(0.0, start - np.median(start[voters])) / np.median(self.step_s[voters]))
        return np.where(done > 0, np.maximum(1.0, steps - done - SPARE_STEPS), float(steps))

    def steps_at(self, at: float, steps: Numbers) -> Numbers:
        """Return the number of its `steps`, at least one, that each trainer has done or begun at a time."""
        _, goes_on, ends = self.times(steps)
        lead = np.clip((at - self.begun) / self.step_s, 0, np.minimum(self.delay, steps))
        begun = np.ceil(lead + np.maximum(0.0, at - goes_on) / self.step_s)
        return np.where(ends > at, np.clip(begun, 1, steps), steps)


@dataclass(frozen=True)
class SettledRound:
    """Round that peers repeat; a value of each array belongs to one of them.

    seconds: time from one close to the next.  is_ready: True for a peer that is ready at the close.  begun: time at which a
    peer begins its steps, which may be before the close.  stops: time at which it has done all steps that it may do without
    the last result.  goes_on: time at which it has that result.  ends: time at which it has done its steps, or the round is
    closed.  adds_s: time that the exchange adds.
    """

    traffic: RoundTraffic
    members: Indices
    is_ready: Flags
    seconds: float
    steps: Numbers
    begun: Numbers
    stops: Numbers
    goes_on: Numbers
    ends: Numbers
    adds_s: float

    @property
    def others_s(self) -> Numbers:
        """Times until which trainers that have stopped wait for other peers; from then on they wait for the exchange."""
        others: Numbers = np.minimum(np.clip(0.0, self.stops, self.ends), self.goes_on)
        return others

    def trace(self, speed: Numbers) -> RoundTrace:
        """Return the courses of a fast, a median and a slow member.  speed: speeds of all peers."""
        order = self.members[np.argsort(-speed[self.members], kind="stable")]
        places = dict.fromkeys((0, (len(order) - 1) // 2, len(order) - 1))
        return RoundTrace(self.seconds, tuple(self._course(int(order[place]), speed) for place in places))

    def _course(self, peer: int, speed: Numbers) -> TrainerCourse:
        changes = (
            (Doing.TRAIN, float(self.stops[peer])),
            (Doing.WAIT_PEERS, float(self.others_s[peer])),
            (Doing.WAIT_EXCHANGE, float(self.goes_on[peer])),
            (Doing.TRAIN, float(self.ends[peer])),
        )
        exchange_s = float(self.traffic.lines_s[peer])
        return TrainerCourse(float(speed[peer]), self.seconds, float(self.begun[peer]), changes, exchange_s)


def settle(load: RoundLoad, rules: RoundRules, peers: PlannedPeers) -> SettledRound:
    """Return the round that these peers repeat if all are online.

    The first of the awaited peers vote, and get the places.
    """
    step_s, encode_s = load.step_tokens / peers.speed, load.parameters / ENCODE_PER_S
    begun: Numbers = np.full(len(peers), encode_s)
    is_awaited: Flags = np.ones(len(peers), np.bool_)
    repeated = 0
    while True:
        awaited = np.flatnonzero(is_awaited)
        members, voters = awaited[: rules.max_members], awaited[:MAX_ELECTORS]
        traffic = round_traffic(load, peers, members)
        trainers = Trainers(load.delay, step_s, begun, traffic.result_s)
        steps = trainers.wanted(load.steps, voters)
        ends = trainers.times(steps)[-1]
        quorum = quorum_size(len(voters))
        quorum_s = float(max(np.sort(ends[voters])[quorum - 1], np.sort(ends[awaited])[rules.min_members - 1]))
        fair_s = _fair_s(traffic, trainers, voters, quorum_s, rules.grace_s)
        last = int(np.flatnonzero(is_awaited & (ends == quorum_s))[0])
        steps = trainers.steps_at(quorum_s + fair_s / 2, steps)
        stops, goes_on, ends = trainers.times(steps)
        by_line_s = goes_on - np.maximum(stops, traffic.result_s[members].min())
        in_time = ends - by_line_s <= quorum_s + fair_s + ANSWER_S
        if not in_time[awaited].all():
            is_awaited &= in_time
            continue
        seconds = min(float(ends[awaited].max()), quorum_s + max(rules.grace_s, fair_s) + FINISH_S)
        is_ready = is_awaited & (ends <= seconds)
        stops, goes_on, ends = (np.minimum(each, seconds) for each in (stops, goes_on, ends))
        repeated += 1
        next_begun = ends - seconds + encode_s
        if repeated == SETTLING or np.allclose(next_begun, begun):
            adds_s = encode_s + max(0.0, float(goes_on[last]) - max(float(stops[last]), 0.0))
            members = np.flatnonzero(is_ready)[: rules.max_members]
            return SettledRound(traffic, members, is_ready, seconds, steps, begun, stops, goes_on, ends, adds_s)
        begun = next_begun


def _fair_s(traffic: RoundTraffic, trainers: Trainers, voters: Indices, quorum_s: float, grace_s: float) -> float:
    """Return the fair time of a round: the time for which it waits for one more trainer."""
    committed_s = traffic.exchange_s + traffic.agreement_s
    ahead_s = np.median(np.minimum(committed_s - trainers.begun, trainers.delay * trainers.step_s)[voters])
    return round_fair_time(grace_s, quorum_s - committed_s + max(0.0, float(ahead_s)), quorum_size(len(voters)))


# ------------------------------------------------------------------------------------------------------------------------
# The forecast: means over rounds of the peers that are online.


def _round_figures(load: RoundLoad, found: SettledRound, gossiped: float) -> dict[str, float]:
    """Return the figures of a round if nobody goes away, in the words of `Forecast`.

    gossiped: bytes of gossip that each peer sends, and receives.  late: share of work that is too late for the record.
    tokens: tokens of all members that count.
    """
    traffic, members = found.traffic, found.members
    trained = (found.stops - found.begun) + (found.ends - found.goes_on)
    surplus = found.is_ready.copy()
    surplus[members] = False
    present_s = found.seconds * len(trained)
    return {
        "round_s": found.seconds,
        "exchange_s": traffic.exchange_s,
        "agreement_s": traffic.agreement_s,
        "members": len(members),
        "exchange_share": found.adds_s / found.seconds,
        "utilisation": trained.sum() / present_s,
        "late": trained[~found.is_ready].sum() / present_s,
        "surplus": trained[surplus].sum() / present_s,
        "waits_peers": (found.others_s - found.stops).sum() / present_s,
        "waits_exchange": (found.goes_on - found.others_s).sum() / present_s,
        "tokens": found.steps[members].sum() * load.step_tokens,
        "up_bytes": float(np.median(traffic.sent[members])) + gossiped,
        "down_bytes": float(np.median(traffic.received[members])) + gossiped,
    }


def forecast_rounds(load: RoundLoad, rules: RoundRules, peers: PlannedPeers) -> Forecast:
    """Return the forecast of a run's rounds, the same for the same peers.  Raises NeverTogether."""
    if len(peers) < rules.min_members:
        raise NeverTogether(f"a round needs {rules.min_members} members, and {len(peers)} are described")
    rng, goes = np.random.default_rng(1), peers.offline_s > 0
    online = peers.online_s / (peers.online_s + peers.offline_s)
    draws = DRAWS if goes.any() else 1
    drawn = (rng.permutation(np.flatnonzero(rng.random(len(peers)) < online)) for _ in range(draws))
    figures: list[dict[str, float]] = []
    up, down = np.zeros((2, len(peers)))
    trace = None
    for which in (each for each in drawn if len(each) >= rules.min_members):
        here = peers.take(which)
        found, gossip = settle(load, rules, here), gossip_cost(len(here))
        gossiped = gossip.bytes_per_s * found.seconds + gossip.round_bytes
        figures.append(_round_figures(load, found, gossiped))
        up[which] += DAY_S / draws * (found.traffic.sent + gossiped) / found.seconds
        down[which] += DAY_S / draws * (found.traffic.received + gossiped) / found.seconds
        trace = trace or found.trace(here.speed)
    if trace is None:
        raise NeverTogether(f"a round needs {rules.min_members} members, and so many are hardly ever online together")
    rates = np.array([1 / each["round_s"] for each in figures])
    rates /= rates.sum()
    shares = {name: float(np.mean([each[name] for each in figures])) for name in figures[0]}
    mean = {name: float(np.average([each[name] for each in figures], weights=rates)) for name in figures[0]}
    round_s = mean["round_s"] * draws / len(figures)
    # In each period online a peer first fetches what it missed, and its work in the round in which it leaves does not count.
    fetched = goes * WIRE * np.minimum((peers.offline_s / round_s + 1) * load.result_bytes, rules.state_bytes)
    down += DAY_S * fetched / (peers.online_s + peers.offline_s)
    fetches = float(np.average(np.minimum(1.0, fetched / peers.down / peers.online_s), weights=online))
    part = np.minimum(round_s / peers.online_s, MOST_ROUND)
    leaves = float(np.average(goes * (1 - part / np.expm1(part)), weights=online))
    return Forecast(
        step_s=float(np.median(load.step_tokens / peers.speed)),
        round_s=round_s,
        exchange_s=mean["exchange_s"],
        agreement_s=mean["agreement_s"],
        members=mean["members"],
        exchange_share=shares["exchange_share"],
        utilisation=(1 - fetches) * shares["utilisation"],
        lost=(1 - fetches) * (shares["late"] + leaves * (shares["utilisation"] - shares["late"])),
        surplus=(1 - fetches) * shares["surplus"],
        waits_peers=(1 - fetches) * shares["waits_peers"],
        waits_exchange=(1 - fetches) * shares["waits_exchange"],
        fetches=fetches,
        tokens_a_day=(1 - fetches) * (1 - leaves) * DAY_S / round_s * mean["tokens"],
        up_bytes=mean["up_bytes"],
        down_bytes=mean["down_bytes"],
        up_day=(float(up.mean()), float(up.max())),
        down_day=(float(down.mean()), float(down.max())),
        trace=trace,
    )
