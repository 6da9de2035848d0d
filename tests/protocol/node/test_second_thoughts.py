"""How often others may make us look at our own state again."""

from __future__ import annotations

from protocol.node.state import FIRST_DISTANCE, MAX_DISTANCE, StateRecheckBackoff


def test_each_time_that_ours_was_right_the_next_look_is_twice_as_far() -> None:
    thoughts, looks, rounds = StateRecheckBackoff(), list[int](), 0
    while rounds < 16 * FIRST_DISTANCE:
        if thoughts.are_due(rounds):
            looks.append(rounds)
            thoughts.had(rounds, ours_was_right=True)
        rounds += 1
    assert looks == [0, FIRST_DISTANCE, 3 * FIRST_DISTANCE, 7 * FIRST_DISTANCE, 15 * FIRST_DISTANCE]
    for _ in range(20):
        thoughts.had(rounds, ours_was_right=True)
    assert not thoughts.are_due(rounds + MAX_DISTANCE - 1) and thoughts.are_due(rounds + MAX_DISTANCE)


def test_a_state_that_was_wrong_is_looked_at_again_on_the_next_tip() -> None:
    thoughts = StateRecheckBackoff()
    thoughts.had(5, ours_was_right=True)
    thoughts.had(6, ours_was_right=False)
    assert not thoughts.are_due(6) and thoughts.are_due(7)
