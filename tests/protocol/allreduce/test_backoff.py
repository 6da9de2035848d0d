"""Who stalls gets less time, then none for ever more rounds; only many good rounds make us forget."""

from __future__ import annotations

from dataclasses import replace

from protocol.allreduce.lateness import (
    FIRST_ROUNDS,
    FOR_PARTS,
    HURRIED,
    MAX_ROUNDS,
    MAX_STALLED,
    STRANGERS,
    WINDOW,
    ExclusionBackoff,
    LatenessBudget,
    MissingParts,
    Observed,
    Patience,
    judge,
    share_of,
)
from protocol.wire.identity import PeerId
from tests.protocol.council import BASE, PEERS

LATE = PEERS[0]
NEWCOMER, MEMBER = PeerId("newcomer"), PeerId("member")


def stalling(stalls: ExclusionBackoff, rounds: int, good_rounds: int = 0) -> dict[int, float]:
    """The rounds, of so many, that `LATE` stalls, and the share of our patience that each one costs.

    It does its part in so many rounds that count, then stalls one.
    """
    lost, good = {}, 0
    for round in range(rounds):
        share = stalls.share(LATE, round)
        if not share:
            stalls.delivered(LATE, round)
        elif good < good_rounds:
            stalls.delivered(LATE, round)
            good += 1
        else:
            stalls.lost_with(LATE, round)
            lost[round], good = share, 0
    return lost


def test_a_first_stall_means_less_time_and_further_ones_ever_more_rounds_without_any() -> None:
    assert stalling(ExclusionBackoff(), 100) == {0: 1, 1: HURRIED, 6: HURRIED, 15: HURRIED, 32: HURRIED, 65: HURRIED}
    assert list(stalling(ExclusionBackoff(lenient=False), 100)) == [0, 5, 10, 19, 36, 69]


def test_who_stalls_when_its_probation_is_over_does_so_ever_more_rarely() -> None:
    lost = stalling(ExclusionBackoff(), 2000, good_rounds=MAX_ROUNDS - 1)
    assert len(lost) <= 2000 // MAX_ROUNDS
    assert sum(stalling(ExclusionBackoff(), 2000, good_rounds=FIRST_ROUNDS).values()) <= 2000 / MAX_ROUNDS


def test_probation_ends_after_good_rounds_and_all_is_forgotten_after_many() -> None:
    stalls = ExclusionBackoff()
    stalls.lost_with(LATE, 0)
    for round in range(1, 1 + FIRST_ROUNDS):
        assert stalls.share(LATE, round) == HURRIED
        stalls.delivered(LATE, round)
    assert stalls.share(LATE, 5) == 1
    for round in range(5, 1 + MAX_ROUNDS):
        stalls.delivered(LATE, round)
    stalls.lost_with(LATE, 100)
    assert stalls.share(LATE, 101) == HURRIED, "as the first one"


def test_two_stalls_in_one_round_are_one() -> None:
    stalls = ExclusionBackoff()
    stalls.lost_with(LATE, 7)
    stalls.lost_with(LATE, 7)
    assert stalls.share(LATE, 8) == HURRIED


def test_a_round_in_which_it_does_not_count_is_not_to_its_credit() -> None:
    stalls = ExclusionBackoff(lenient=False)
    stalls.lost_with(LATE, 0)
    for round in range(1, 1 + FIRST_ROUNDS):
        stalls.delivered(LATE, round)
    assert stalls.share(LATE, 1 + FIRST_ROUNDS) == HURRIED


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
        judge(stalls, base, late, [LATE, MEMBER, NEWCOMER])
        assert {peer for peer in (LATE, MEMBER, NEWCOMER) if share_of(stalls, later, peer) < 1} == less
        assert stalls.share(NEWCOMER, later.round) == 1, "strangers are not remembered by name"
        judge(stalls, later, late, [LATE, MEMBER, NEWCOMER], each=True)
        assert stalls.share(late[0], later.round + 1) < 1


def test_strangers_are_out_for_few_rounds_only() -> None:
    stalls, tried = ExclusionBackoff(), []
    for round in range(100):
        if stalls.share(STRANGERS, round):
            stalls.lost_with(STRANGERS, round)
            tried.append(round)
    assert tried == [0, *range(1, 100, 1 + FIRST_ROUNDS)]


def test_what_others_say_is_a_reason_for_probation_and_for_no_more() -> None:
    stalls = ExclusionBackoff()
    for round in range(10):
        stalls.suspect(LATE, round)
        assert stalls.share(LATE, round + 1) == HURRIED


def test_a_peer_is_missed_when_more_miss_it_than_may_lie_each_within_the_window() -> None:
    missed = MissingParts()
    missed.note({LATE: {PEERS[1]}, PEERS[2]: {PEERS[1], PEERS[3]}}, 0)
    missed.note({LATE: {PEERS[1]}}, 1)
    assert missed.by_more_than(1, 1) == [PEERS[2]], "one signer counts once"
    missed.note({LATE: {PEERS[3]}}, 1 + WINDOW)
    assert missed.by_more_than(1, 1 + WINDOW) == [], "the others are too long ago"
    missed.note({LATE: {PEERS[1]}}, 2 + WINDOW)
    assert missed.by_more_than(1, 2 + WINDOW) == [LATE]


def test_who_is_never_given_up_but_late_each_time_has_stalled_when_it_adds_up() -> None:
    slowness, judged = LatenessBudget(), []
    for round in range(12):
        slowness.note({LATE: 5.0, PEERS[1]: 1.0}, replace(BASE, round=round), fair_s=1.0)
        if slowness.take_beyond(10.0):
            judged.append(round)
    assert judged == [2, 5, 8, 11], "4 s too late three times; a second of it is fair"


def test_lateness_is_forgotten_after_some_rounds() -> None:
    slowness = LatenessBudget()
    for round in range(0, 20 * WINDOW, WINDOW):
        slowness.note({LATE: 10.0}, replace(BASE, round=round), fair_s=0.0)
        assert slowness.take_beyond(10.0) == []
    slowness.note({LATE: 1.0}, replace(BASE, round=20 * WINDOW - 1), fair_s=0.0)
    assert slowness.take_beyond(10.0) == [LATE]


def test_the_lateness_of_ever_new_strangers_adds_up_and_that_of_many_at_a_time_counts_once() -> None:
    slowness = LatenessBudget()
    slowness.note({PeerId(f"stranger {number}"): 4.0 for number in range(100)}, replace(BASE, round=0), fair_s=0.0)
    slowness.note({PeerId("another"): 4.0}, replace(BASE, round=1), fair_s=0.0)
    assert slowness.take_beyond(8.0) == []
    assert slowness.take_beyond(7.9) == [STRANGERS]


STALL_S, FAIR_S = 10.0, 1.0


def test_what_was_late_is_taken_off_what_may_be_late_and_given_back_after_some_rounds() -> None:
    patience, base = Patience(), replace(BASE, electors=tuple(PEERS))
    allowed = patience.limits(PEERS[1], [LATE], base, STALL_S, FAIR_S)
    assert (allowed.wait_s, allowed.owner_s) == (FAIR_S + FOR_PARTS * STALL_S, {LATE: FAIR_S + STALL_S})
    late = patience.judge_late(PEERS[1], Observed({LATE: 3.0}, {LATE: 5.0}, 4.0, [], []), base, STALL_S, FAIR_S)
    assert late == set()
    for passed in range(1, WINDOW):
        allowed = patience.limits(PEERS[1], [LATE], replace(base, round=base.round + passed), STALL_S, FAIR_S)
        assert (allowed.wait_s, allowed.owner_s) == (FAIR_S + FOR_PARTS * STALL_S - 3.0, {LATE: FAIR_S + STALL_S - 4.0})
    allowed = patience.limits(PEERS[1], [LATE], replace(base, round=base.round + WINDOW), STALL_S, FAIR_S)
    assert (allowed.wait_s, allowed.owner_s) == (FAIR_S + FOR_PARTS * STALL_S, {LATE: FAIR_S + STALL_S})


def test_late_parts_and_late_averages_are_one_stall_each_for_itself_and_one_together() -> None:
    base = replace(BASE, electors=tuple(PEERS))
    most = FAIR_S + FOR_PARTS * STALL_S

    def judged(seen: Observed, patience: Patience) -> set[PeerId]:
        return patience.judge_late(PEERS[1], seen, base, STALL_S, FAIR_S)

    assert judged(Observed({LATE: most}, {LATE: FAIR_S + STALL_S}, 0.0, [], []), Patience()) == set()
    assert judged(Observed({LATE: most + 0.1}, {}, 0.0, [], []), Patience()) == {LATE}
    assert judged(Observed({}, {LATE: FAIR_S + STALL_S + 0.1}, 0.0, [], []), Patience()) == {LATE}
    for seen in (
        Observed({LATE: most + 0.1}, {LATE: 2.0}, 0.0, [], []),
        Observed({LATE: 2.0}, {LATE: 2.0}, 0.0, [], [LATE]),
    ):
        patience = Patience()
        assert judged(seen, patience) == {LATE}
        assert patience.limits(PEERS[1], [LATE], base, STALL_S, FAIR_S).owner_s == {LATE: FAIR_S + STALL_S}


def test_our_own_waiting_is_nobodys_stall() -> None:
    patience = Patience()
    assert patience.judge_late(PEERS[1], Observed({}, {}, 1e3, [], []), BASE, STALL_S, FAIR_S) == set()
    assert patience.limits(PEERS[1], PEERS[:2], BASE, STALL_S, FAIR_S).wait_s < 0, "until some rounds have passed"


def test_who_is_left_out_has_stalled_when_half_of_our_waiting_was_for_it() -> None:
    half = FOR_PARTS * STALL_S / 2
    for own, left_out, stalled in [(half, [LATE], {LATE}), (half - 0.1, [LATE], set()), (half, [], set())]:
        patience = Patience()
        for round, delays in enumerate([{LATE: own + FAIR_S}, {PEERS[2]: 2 * half - own + FAIR_S}]):
            base = replace(BASE, round=round, electors=tuple(PEERS))
            assert not patience.judge_late(PEERS[1], Observed(delays, {}, own, [], []), base, STALL_S, FAIR_S)
        base = replace(base, round=2)
        assert (
            patience.judge_late(PEERS[1], Observed({LATE: FAIR_S}, {}, FAIR_S, left_out, []), base, STALL_S, FAIR_S)
            == stalled
        )
