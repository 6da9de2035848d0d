"""How long members wait for each other: silence, lateness, and what both cost in later rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from protocol.allreduce.lateness import (
    FIRST_ROUNDS,
    HURRIED,
    MAX_ROUNDS,
    MAX_STALLED,
    SLACK,
    SLACK_FOR_PARTS,
    STRANGERS,
    WINDOW,
    AverageDeadline,
    ExchangeLimits,
    ExclusionBackoff,
    LatenessMemory,
    Observed,
    SilenceTracker,
    Slack,
    judge,
    share_of,
)
from protocol.allreduce.machine import (
    Ask,
    Asked,
    Averaged,
    ContributionReady,
    ExchangeEffect,
    ExchangeEvent,
    ExchangeMachine,
    ExchangeTick,
    Lost,
    PartArrived,
    Reduce,
    ResultArrived,
    SendPart,
    SendResult,
    SignedEarly,
)
from protocol.allreduce.runner import entry_of
from protocol.wire.hashes import chunk_hash
from protocol.wire.identity import Identity, PeerId
from tests.protocol.council import BASE, PEERS
from tests.protocol.members import a_plan_of
from tests.protocol.tables import cases

# -- silence --------------------------------------------------------------------------------------------------------------

A, B, C, D = SILENT = [PeerId(letter) for letter in "abcd"]
OWING = dict.fromkeys((B, C, D), 10.0)
CHUNK_S = 60.0


def silence() -> SilenceTracker:
    made = SilenceTracker(SILENT, 0.0, CHUNK_S)
    assert made.overdue(OWING, 0.0) == []
    return made


def test_whoever_delivers_may_take_as_long_for_its_next_chunk() -> None:
    known = silence()
    known.delivered(B, 50.0)
    for second in range(51, 200):
        known.moving(B, float(second))
    assert known.overdue({B: 10.0}, 50.0 + CHUNK_S + 9.0) == []
    assert known.overdue({B: 10.0}, 50.0 + CHUNK_S + 10.1) == [B]


def test_the_pace_is_that_of_half_of_those_who_have_something_to_send() -> None:
    known = silence()
    known.delivered(B, 4.0)
    known.delivered(B, 5.0)
    known.delivered(C, 6.0)
    known.delivered(D, 30.0)
    assert [known.pace_s(peers, 0.0, 99.0) for peers in ([B], [B, C], [C, B, D], [D])] == [4.0, 4.0, 6.0, 30.0]


# -- late averages --------------------------------------------------------------------------------------------------------

*_, F, G = JURY = [PeerId(letter) for letter in "abcdefg"]


def late(owners: str, here: Collection[int], *, then: Collection[int], later: float) -> str:
    """Who is late when some averages are here after a second, and further ones later."""
    by = [PeerId(owner) for owner in owners]
    ownership = AverageDeadline(by, len(JURY), 0.0)
    ownership.late(here, JURY, lambda chunk: by[chunk], 1.0)
    return "".join(sorted(ownership.late({*here, *then}, JURY, lambda chunk: by[chunk], later)))


FIFTEEN = "aaaabbbbccccdef"
SLOW_LINE = "a" * 7 + "bbbbbbbbbbccccccccccdddddddddd"
LARGE_SHARE = "ab" + "cde" * 2 + "fff"
"""The others own 8 of 11 chunks, and 1.6 of them each; three times five and eleven are 26, and not 19."""


@cases(
    "owners, here, then, later, found",
    {
        "averages of three of seven are here": ("abcdefg", {0, 1, 2}, (), 1.5, ""),
        "of more than half": ("abcdefg", {0, 1, 2, 3}, (), 1.5, "efg"),
        "all of three of six, and one of the fourth's": ("abcdefabcdef", {0, 1, 2, 3, 6, 7, 8}, (), 1.5, ""),
        "all of four of six": ("abcdefabcdef", {0, 1, 2, 3, 4, 6, 7, 8, 9}, (), 1.5, "ef"),
        "lines less than half as slow again": ("abcdefg", {0, 1, 2, 3}, (), 1.49, ""),
        "one comes in time": ("abcdefg", {0, 1, 2, 3}, {4}, 1.5, "fg"),
        "four of seven own nothing": ("abc", {0}, (), 1.5, ""),
        "two of three owners": ("abc", {0, 1}, (), 1.5, "c"),
        "three with one chunk each": (FIFTEEN, {12, 13, 14, 0, 1, 2}, (), 9.0, ""),
        "most owners, less than half of the chunks": (FIFTEEN, {12, 13, 14, 0, 1, 2, 3}, (), 9.0, ""),
        "most owners, and most chunks": (FIFTEEN, {12, 13, 14, *range(8)}, (), 2.1, "c"),
        "who owns more has more time": (LARGE_SHARE, range(8), (), 1.5 * 1.35, ""),
        "but not for ever": (LARGE_SHARE, range(8), (), 1.5 * 1.375, "f"),
        "who owns less has no less time, for its line may be slower": (SLOW_LINE, range(7, 37), (), 1.49, ""),
        "nor more": (SLOW_LINE, range(7, 37), (), 1.5, "a"),
    },
)
def test_owners_are_late(owners: str, here: Collection[int], then: Collection[int], later: float, found: str) -> None:
    """Where an exchange is long, half as slow again is much; where it is short, it is nothing."""
    assert late(owners, here, then=then, later=later) == found


def test_a_successor_is_not_late() -> None:
    by = [PeerId(owner) for owner in "abcdefg"]
    ownership = AverageDeadline(by, len(JURY), 0.0)
    ownership.late({0, 1, 2, 3}, JURY, lambda chunk: by[chunk], 1.0)
    assert ownership.late({0, 1, 2, 3}, JURY, lambda chunk: A if chunk == 4 else by[chunk], 2.0) == {F, G}


# -- later rounds ---------------------------------------------------------------------------------------------------------

LATE = PEERS[0]
NEWCOMER, MEMBER = PeerId("newcomer"), PeerId("member")


def stalling(stalls: ExclusionBackoff, rounds: int, good_rounds: int = 0) -> dict[int, float]:
    """The rounds, of so many, that `LATE` stalls, and the share of the waiting time that each one costs.

    It does its part in so many rounds that count, then stalls one.
    """
    lost, good = {}, 0
    for round in range(rounds):
        share = stalls.share(LATE, round)
        if share and good < good_rounds:
            good += 1
        elif share:
            stalls.lost_with(LATE, round)
            lost[round], good = share, 0
    return lost


def test_a_first_stall_means_less_time_and_further_ones_ever_more_rounds_without_any() -> None:
    assert stalling(ExclusionBackoff(), 100) == {0: 1, 1: HURRIED, 6: HURRIED, 15: HURRIED, 32: HURRIED, 65: HURRIED}


def test_who_stalls_when_its_probation_is_over_does_so_ever_more_rarely() -> None:
    assert len(stalling(ExclusionBackoff(), 2000, good_rounds=MAX_ROUNDS - 1)) <= 2000 // MAX_ROUNDS
    assert sum(stalling(ExclusionBackoff(), 2000, good_rounds=FIRST_ROUNDS).values()) <= 2000 / MAX_ROUNDS


def test_probation_ends_after_some_rounds_and_all_is_forgotten_after_many() -> None:
    stalls = ExclusionBackoff()
    stalls.lost_with(LATE, 0)
    assert [stalls.share(LATE, round) for round in (1, WINDOW, WINDOW + 1)] == [HURRIED, HURRIED, 1]
    stalls.lost_with(LATE, MAX_ROUNDS)
    later = MAX_ROUNDS + 1 + FIRST_ROUNDS
    assert [stalls.share(LATE, round) for round in (later - 1, later, later + WINDOW)] == [0, HURRIED, 1]
    stalls.lost_with(LATE, later + MAX_ROUNDS)
    assert stalls.share(LATE, later + MAX_ROUNDS + 1) == HURRIED, "as the first one"


def test_only_so_many_are_remembered() -> None:
    stalls = ExclusionBackoff()
    crowd = [PeerId(f"peer {number}") for number in range(MAX_STALLED + 1)]
    for peer in crowd:
        stalls.lost_with(peer, 0)
    assert [peer for peer in crowd if stalls.share(peer, 1) == 1] == crowd[:1], "the oldest is forgotten"


def test_strangers_answer_for_each_other_and_for_whoever_is_no_elector() -> None:
    base = BASE.__class__(BASE.round, 0, BASE.tip, (LATE,), (LATE, MEMBER))
    for late, less in [([LATE], {LATE}), ([MEMBER], {MEMBER, NEWCOMER}), ([NEWCOMER], {MEMBER, NEWCOMER})]:
        stalls, later = ExclusionBackoff(), replace(base, round=base.round + 1)
        judge(stalls, base, late)
        assert {peer for peer in (LATE, MEMBER, NEWCOMER) if share_of(stalls, later, peer) < 1} == less
        assert stalls.share(NEWCOMER, later.round) == 1, "strangers are not remembered by name"
        judge(stalls, later, late, each=True)
        assert stalls.share(late[0], later.round + 1) < 1


STALL_S, FAIR_S = 20.0, 1.0
SLACK_S, FOR_PARTS_S = SLACK * STALL_S, SLACK_FOR_PARTS * STALL_S


def test_slack_is_used_up_and_each_round_gives_a_part_of_it_back() -> None:
    slack = Slack()
    assert not slack.use(LATE, 0, 4.0, 8.0) and not slack.use(LATE, 0, 4.0, 8.0)
    assert [slack.left(LATE, round, 8.0) for round in (0, 1, WINDOW // 2, WINDOW, 2 * WINDOW)] == [0, 0.5, 4, 8, 8]
    assert slack.use(LATE, 1, 1.0, 8.0)
    assert slack.left(LATE, 2, 8.0) == 0.5, "nobody has less than none"


def test_slack_is_used_once_in_a_round_of_several_exchanges() -> None:
    each = [Observed({LATE: 3.0}, []), Observed({LATE: 2.0, PEERS[2]: 1.0}, [PEERS[3]])]
    assert Observed.of_round(each) == Observed({LATE: 3.0, PEERS[2]: 1.0}, {PEERS[3]})


def judged(lateness: LatenessMemory, late_s: dict[PeerId, float], *stalled: PeerId, round: int = 0) -> set[PeerId]:
    """Who has stalled such an exchange of all peers, who all are electors, in the eyes of the second one."""
    base = replace(BASE, round=round, electors=tuple(PEERS))
    return lateness.judge_exchange(PEERS[1], PEERS, base, Observed(late_s, stalled), STALL_S, FAIR_S)


def allowed(lateness: LatenessMemory, round: int) -> list[float]:
    """How late the averages of the first peer may be, and how long our own averages may wait."""
    base = replace(BASE, round=round, electors=tuple(PEERS))
    late_s = lateness.limits(PEERS[1], PEERS, base, STALL_S, FAIR_S).late_s
    return [late_s[LATE], late_s[PEERS[1]]]


def test_what_was_late_is_taken_off_what_may_be_late() -> None:
    lateness = LatenessMemory()
    full = [FAIR_S + SLACK_S, FAIR_S + FOR_PARTS_S]
    assert allowed(lateness, 0) == full
    assert judged(lateness, {LATE: 5.0, PEERS[1]: 4.0, PEERS[2]: FAIR_S}) == set()
    assert allowed(lateness, 0) == [full[0] - 4.0, full[1] - 3.0]
    assert allowed(lateness, WINDOW) == full


def test_the_lateness_of_ever_new_strangers_adds_up_and_that_of_many_at_a_time_counts_once() -> None:
    lateness, strangers = LatenessMemory(), [PeerId(f"stranger {number}") for number in range(100)]
    assert judged(lateness, dict.fromkeys(strangers, 9.0)) == set()
    assert judged(lateness, {PeerId("another"): 9.0}, round=1) == {STRANGERS}


# -- whole exchanges ------------------------------------------------------------------------------------------------------

SEVEN = sorted(Identity.from_seed(bytes([number]) * 32).peer_id for number in range(7))
LIARS, VICTIM = SEVEN[:2], SEVEN[2]
TICK_S = 0.25
PLAN = a_plan_of(SEVEN, range(7))

Delay = Callable[["Swarm", PeerId, PeerId], float]
"""How late a part, or an average, is that the one owes the other."""


def in_time(swarm: Swarm, sender: PeerId, to: PeerId) -> float:
    return 0.0


@dataclass
class Swarm:
    """All members' exchanges, round after round.  Liars' are honest, but for what they give how late.

    stalled: in each round, who stalled it in the eyes of whom.
    """

    part_s: Delay = in_time
    average_s: Delay = in_time
    round: int = 0
    lateness: dict[PeerId, LatenessMemory] = field(default_factory=lambda: {peer: LatenessMemory() for peer in SEVEN})
    limits: dict[PeerId, ExchangeLimits] = field(default_factory=dict)
    machines: dict[PeerId, ExchangeMachine] = field(default_factory=dict)
    stalled: list[dict[PeerId, set[PeerId]]] = field(default_factory=list)
    _signers: dict[tuple[int, bytes], PeerId] = field(default_factory=dict)
    _due: list[tuple[float, PeerId, ExchangeEvent]] = field(default_factory=list)

    def exchange(self) -> float:
        """One round; returns how long it took."""
        base = replace(BASE, round=self.round, electors=tuple(SEVEN))
        self._due, now = [], 0.0
        self.limits = {peer: self.lateness[peer].limits(peer, SEVEN, base, STALL_S, FAIR_S) for peer in SEVEN}
        self.machines = {
            peer: ExchangeMachine(peer, PLAN, replace(limits, ignored=()), 0.0) for peer, limits in self.limits.items()
        }
        for peer in SEVEN:
            self._handle(peer, ContributionReady(), 0.0)
        honest = [self.machines[peer] for peer in SEVEN if peer not in LIARS]
        while any(len(machine.entries) < machine.chunks for machine in honest) and now < 100.0:
            ripe = [each for each in self._due if each[0] <= now]
            self._due = [each for each in self._due if each[0] > now]
            for _, to, event in ripe:
                self._handle(to, event, now)
            if not ripe:
                now += TICK_S
                for peer in SEVEN:
                    self._handle(peer, ExchangeTick(), now)
        self.stalled.append({})
        for peer, machine in self.machines.items():
            seen = machine.observed()
            self.stalled[-1][peer] = self.lateness[peer].judge_exchange(peer, SEVEN, base, seen, STALL_S, FAIR_S)
        self.round += 1
        return now

    def _handle(self, peer: PeerId, event: ExchangeEvent, now: float) -> None:
        if isinstance(event, ResultArrived) and not self.machines[peer].failover.may_sign(event.signer, event.chunk):
            event = SignedEarly(event.signer, event.chunk)
        for effect in self.machines[peer].handle(event, now):
            self._perform(peer, effect, now)

    def _perform(self, peer: PeerId, effect: ExchangeEffect, now: float) -> None:
        if isinstance(effect, Reduce):
            entry = entry_of(chunk_hash(bytes(effect.members)), effect.members, 7)
            self._signers[effect.chunk, entry.hash] = peer
            self._handle(peer, Averaged(effect.chunk, entry), now)
        elif isinstance(effect, SendPart):
            self._due.append((now + self.part_s(self, peer, effect.to), effect.to, PartArrived(peer, effect.chunk)))
        elif isinstance(effect, SendResult):
            entry = self.machines[peer].entries[effect.chunk]
            result = ResultArrived(peer, effect.chunk, entry, self._signers[effect.chunk, entry.hash])
            self._due.append((now + self.average_s(self, peer, effect.to), effect.to, result))
        elif isinstance(effect, Ask):
            self._due.append((now, effect.peer, Asked(peer, effect.chunk)))

    def stalls_of(self, peer: PeerId, *, by: list[PeerId] | None = None) -> list[int]:
        """The rounds in which honest members took this one for one that stalled."""
        judges = [each for each in by or SEVEN if each not in LIARS]
        return [round for round, judged in enumerate(self.stalled) if any(peer in judged[each] for each in judges)]


@pytest.mark.slow
@pytest.mark.parametrize("late_s", [2.5, 9.0])
def test_averages_that_are_late_each_time_are_a_stall_when_it_adds_up(late_s: float) -> None:
    swarm = Swarm(average_s=lambda swarm, sender, to: late_s if sender == LIARS[0] else 0.0)
    took = [swarm.exchange() for _ in range(2 * WINDOW)]
    rounds = swarm.stalls_of(LIARS[0])
    assert rounds and rounds[0] < WINDOW
    assert all(swarm.stalls_of(peer) == [] for peer in SEVEN[1:])
    between = sum(took[: rounds[0] + 1])
    given_back_s = rounds[0] * SLACK_S / WINDOW
    assert between <= SLACK_S + given_back_s + (rounds[0] + 1) * (FAIR_S + 2 * TICK_S), "what it cost until then"


def withheld(give_s: float | None) -> Delay:
    """Liars give one honest owner its parts so late, or as late as it waits for them (None); all others get them."""

    def part_s(swarm: Swarm, sender: PeerId, to: PeerId) -> float:
        if sender not in LIARS or to != VICTIM:
            return 0.0
        return give_s if give_s is not None else max(0.0, swarm.limits[VICTIM].late_s[VICTIM] - TICK_S)

    return part_s


@pytest.mark.slow
@pytest.mark.parametrize(("give_s", "line_s"), product([1000.0, None, 5.0], [0.0, 0.5]))
def test_nobody_can_make_an_honest_owner_late_by_withholding_parts_from_it(give_s: float | None, line_s: float) -> None:
    """Not even where its averages take half a second longer than those of others each time."""
    swarm = Swarm(part_s=withheld(give_s), average_s=lambda swarm, sender, to: line_s if sender == VICTIM else 0.0)
    for _ in range(6 * WINDOW):
        if line_s and swarm.round % 2:
            swarm.average_s = in_time
        swarm.exchange()
    for peer in SEVEN:
        if peer not in LIARS:
            assert swarm.stalls_of(peer) == []


def test_an_owner_does_not_wait_longer_than_it_may_for_many_that_take_turns() -> None:
    """Each of two withholds its part from each owner in turn: together they cost an owner no more than one does."""

    def part_s(swarm: Swarm, sender: PeerId, to: PeerId) -> float:
        return 1000.0 if sender in LIARS and to == SEVEN[2 + (swarm.round + LIARS.index(sender)) % 5] else 0.0

    swarm = Swarm(part_s=part_s)
    waited = dict.fromkeys(SEVEN[2:], 0.0)
    for _ in range(WINDOW):
        swarm.exchange()
        for peer in waited:
            waited[peer] += max(0.0, swarm.machines[peer].lateness.seconds.get(peer, 0.0) - FAIR_S - TICK_S)
    assert all(seconds <= 2 * FOR_PARTS_S for seconds in waited.values()), "its slack, and what 16 rounds give back"


def test_an_owner_is_lost_when_its_averages_are_later_than_it_may_be() -> None:
    swarm = Swarm(average_s=lambda swarm, sender, to: 1000.0 if sender == LIARS[0] else 0.0)
    took = swarm.exchange()
    assert SLACK_S < took <= SLACK_S + FAIR_S + 2 * TICK_S
    assert all(LIARS[0] in swarm.machines[peer].lost for peer in SEVEN[2:])


def test_an_owner_averages_without_those_that_it_waited_for_long_enough() -> None:
    machine = ExchangeMachine(VICTIM, PLAN, ExchangeLimits(STALL_S, {VICTIM: 2.0}), 0.0)
    assert machine.handle(ContributionReady(), 0.0)
    for peer in SEVEN[3:]:
        machine.handle(PartArrived(peer, 2), 0.0)
    effects = {at / 4: machine.handle(ExchangeTick(), at / 4) for at in range(1, 12)}
    reduced = [(at, effect) for at, each in effects.items() for effect in each if isinstance(effect, Reduce)]
    assert reduced == [(2.5, Reduce(2, (2, 3, 4, 5, 6)))]
    assert not any(isinstance(effect, Lost) for each in effects.values() for effect in each), "they may give averages"
