"""What is counted of tasks, and when a set falls out by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.state.tasks_in_force import TasksInForce, first_problem
from protocol.tasks.counting import LEAST_ATTEMPTS, Counting, TaskCounts, fault_of
from protocol.trainer_link import Tried
from protocol.wire.hashes import Hash
from protocol.wire.rollouts import UNSCORED
from protocol.wire.tasks import AdmittedSet
from tests.protocol.peers import ANN

SETS = {slot: Hash(bytes([slot]) * 32) for slot in range(1, 10)}
LIVE = TaskCounts(100, 50)
NEVER, ALWAYS = TaskCounts(100, 0), TaskCounts(100, 100)


def test_counts_are_those_of_the_tasks_and_no_others() -> None:
    counting, first = Counting(), first_problem(3)
    tried = [Tried(first, 4, 1, 1, 1), Tried(first + 7, 2, 2), Tried(first, 4, 0, 1, 0), Tried(5, 9, 9)]
    counting.note_tried(tried, SETS)
    counting.note_scores([first, first, first + 7, 5], bytes([254, 0, UNSCORED, 1]), bytes([254, 254, 0, 1]), SETS)
    assert counting.of_set(3, SETS[3]) == {0: TaskCounts(8, 1, 2, 1, 2, 1), 7: TaskCounts(2, 2)}
    assert counting.of_set(0, SETS[1]) == {}, "problems of the environment are not counted"
    with pytest.raises(ValueError):
        TaskCounts(1, 2)


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        ([], ""),
        ([NEVER] * 7, ""),
        ([NEVER] * 8 + [LIVE] * 2, ""),
        ([NEVER] * 9 + [LIVE], "9 of 10 tasks were never solved"),
        ([ALWAYS] * 9 + [LIVE], "9 of 10 tasks were solved by every answer"),
        ([TaskCounts(LEAST_ATTEMPTS - 1, 0)] * 10, ""),
        ([TaskCounts(10, 5, 0, 0, 3, 2)] * 10, ""),
        ([TaskCounts(10, 5, 0, 0, 4, 3)] * 10, "30 of 40 answers that were scored twice got the same score"),
        ([TaskCounts(10, 5, 0, 0, 10, 9)] * 10, ""),
        ([TaskCounts(10, 5, 1000, 0)] * 10, ""),
    ],
)
def test_sets_that_teach_nothing_or_cannot_be_scored_fall_out(counts: list[TaskCounts], fault: str) -> None:
    assert fault_of(10, counts) == fault


def test_a_small_set_is_judged_by_all_of_its_tasks() -> None:
    assert fault_of(1, [NEVER]) == "1 of 1 tasks were never solved"


def test_a_ready_names_what_falls_out_and_has_not_yet() -> None:
    sets = tuple(
        AdmittedSet(name="s", count=1, size=9, root=SETS[slot], slot=slot, publisher=ANN.peer_id) for slot in (2, 3, 5)
    )
    counting = Counting()
    assert counting.against(TasksInForce(1, 50, sets)) is None
    counting.note_tried([Tried(first_problem(slot), 100, 0) for slot in (3, 5)], SETS)
    assert counting.against(TasksInForce(1, 50, sets)) == 0b110
    assert counting.against(TasksInForce(1, 50, sets, frozenset({5}))) == 0b010


def test_a_slot_that_is_another_sets_on_another_branch_is_counted_apart() -> None:
    counting, other = Counting(), {3: SETS[9]}
    counting.note_tried([Tried(first_problem(3), 100, 0)], SETS)
    counting.note_tried([Tried(first_problem(3), 50, 20)], other)
    counting.note_tried([Tried(first_problem(3), 7, 7)], {})
    assert counting.of_set(3, SETS[3]) == {0: TaskCounts(100, 0)} and counting.of_set(3, SETS[9]) == {0: TaskCounts(50, 20)}
    set_of_branch = AdmittedSet(name="s", count=1, size=9, root=SETS[9], slot=3, publisher=ANN.peer_id)
    assert counting.against(TasksInForce(1, 50, (set_of_branch,))) is None
    counting.keep_only(other)
    assert counting.of_set(3, SETS[3]) == {} != counting.of_set(3, SETS[9])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 99), st.integers(1, 50)), max_size=20))
def test_counts_outlast_a_life(noted: list[tuple[int, int, int]]) -> None:
    counting = Counting()
    counting.note_tried(
        [Tried(first_problem(slot) + task, most, most // 2, most, most // 3) for slot, task, most in noted], SETS
    )
    again = Counting.decode(counting.encode())
    assert all(again.of_set(*each) == counting.of_set(*each) for each in SETS.items())


@given(st.binary(max_size=60))
def test_damaged_counts_are_refused_with_a_value_error(data: bytes) -> None:
    try:
        Counting.decode(data)
    except ValueError:
        pass
