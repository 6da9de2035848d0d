"""Who stalls is not waited for: twice as long each time, and less again once it does its part."""

from __future__ import annotations

from protocol.consensus.patience import FIRST_ROUNDS, MAX_ROUNDS, MAX_STALLED, Stalls
from protocol.wire.identity import PeerId
from tests.protocol.consensus.examples import PEERS

LATE = PEERS[0]


def rounds_lost(stalls: Stalls, rounds: int) -> list[int]:
    """The rounds, of so many, that `LATE` stalls when it stalls each one in which it is waited for."""
    lost = []
    for round in range(rounds):
        if stalls.has_for(LATE, round):
            stalls.lost_with(LATE, round)
            lost.append(round)
    return lost


def test_each_stall_costs_twice_as_many_rounds_as_the_last() -> None:
    lost = rounds_lost(Stalls(), 200)
    waits = [later - round - 1 for round, later in zip(lost, lost[1:], strict=False)]
    assert waits[:5] == [FIRST_ROUNDS, 8, 16, 32, MAX_ROUNDS]


def test_two_stalls_in_one_round_are_one() -> None:
    stalls = Stalls()
    stalls.lost_with(LATE, 7)
    stalls.lost_with(LATE, 7)
    assert [round for round in range(7, 15) if stalls.has_for(LATE, round)] == [12, 13, 14]


def test_a_round_in_which_it_counts_and_does_its_part_forgives_one_stall() -> None:
    stalls = Stalls()
    assert rounds_lost(stalls, 20) == [0, 5, 14]
    stalls.delivered(LATE, 40)
    stalls.lost_with(LATE, 41)
    assert [round for round in range(42, 60) if stalls.has_for(LATE, round)] == [58, 59], "sixteen rounds, not thirty-two"


def test_a_round_in_which_it_is_not_waited_for_forgives_nothing() -> None:
    stalls = Stalls()
    stalls.lost_with(LATE, 0)
    stalls.delivered(LATE, 1)
    stalls.lost_with(LATE, 5)
    assert not stalls.has_for(LATE, 13) and stalls.has_for(LATE, 14)


def test_only_so_many_are_remembered() -> None:
    stalls = Stalls()
    crowd = [PeerId(f"peer {number}") for number in range(MAX_STALLED + 1)]
    for peer in crowd:
        stalls.lost_with(peer, 0)
    assert [peer for peer in crowd if stalls.has_for(peer, 1)] == crowd[:1], "the oldest is forgotten"
