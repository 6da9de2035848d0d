"""What is counted of tasks, and when a set falls out by it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chain.progress import TasksInForce, first_problem
from protocol.tasks.counting import LEAST_ATTEMPTS, MOST_MAKERS, OTHERS, ByMaker, OutcomeCounts, TaskCounts, fault_of
from protocol.trainer_link import Tried
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.rollouts import UNSCORED, AdmittedSet
from tests.protocol.peers import ANN

SETS = {slot: Hash(bytes([slot]) * 32) for slot in range(1, 10)}
MAKERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 60)]
ONE = MAKERS[:1]
"""The maker of a round's only batch."""


def tried(attempts: int, solved: int, *, makers: int = 2, twice: int = 0, same: int = 0) -> ByMaker:
    """A task of which each of these makers had so many attempts."""
    return {maker: TaskCounts(attempts, solved, 0, 0, twice, same) for maker in MAKERS[:makers]}


LIVE = tried(16, 8)
NEVER, ALWAYS = tried(16, 0), tried(16, 16)


def test_counts_are_those_of_the_tasks_and_no_others() -> None:
    counting, first = OutcomeCounts(), first_problem(3)
    rounds = [Tried(first, 4, 1, 1, 1), Tried(first + 7, 2, 2), Tried(first, 4, 0, 1, 0, 1), Tried(5, 9, 9)]
    counting.note_tried(rounds, [MAKERS[0], None], SETS)
    counting.note_scores([first, first, first + 7, 5], bytes([254, 0, UNSCORED, 1]), bytes([254, 254, 0, 1]), SETS)
    assert counting.of_set(3, SETS[3]) == {0: TaskCounts(8, 1, 2, 1, 2, 1), 7: TaskCounts(2, 2)}
    assert counting.of_set(0, SETS[1]) == {}, "problems of the environment are not counted"
    with pytest.raises(ValueError):
        TaskCounts(1, 2)


@pytest.mark.parametrize(
    ("counts", "fault"),
    [
        ([], ""),
        ([NEVER] * 15, ""),
        ([NEVER] * 16 + [LIVE] * 4, ""),
        ([NEVER] * 18 + [LIVE] * 2, "18 of 20 tasks were never solved"),
        ([ALWAYS] * 18 + [LIVE] * 2, "18 of 20 tasks were solved by every answer"),
        ([tried(15, 0)] * 20, ""),
        ([tried(8, 0, makers=4)] * 16, "16 of 16 tasks were never solved"),
        ([tried(9999, 0, makers=1)] * 20, ""),
        ([{OTHERS: TaskCounts(9999, 0), MAKERS[0]: TaskCounts(16, 0)}] * 20, ""),
        ([NEVER] * 20 + [tried(16, 8, makers=1)] * 10, ""),
        ([NEVER] * 20 + [tried(16, 8, makers=1)] * 9, "20 of 20 tasks were never solved"),
        ([tried(5, 2, twice=1)] * 7, ""),
        ([tried(5, 2, twice=2, same=2)] * 10, ""),
        ([tried(5, 2, twice=10, same=9)] * 10, ""),
        ([tried(5, 2, twice=2, same=1)] * 10, "20 of 40 answers that were scored twice got the same score"),
        ([tried(5, 2, twice=2, same=1, makers=1)] * 10, ""),
    ],
)
def test_sets_that_teach_nothing_or_cannot_be_scored_fall_out(counts: list[ByMaker], fault: str) -> None:
    assert fault_of(99, counts) == fault


def test_scores_that_are_not_repeatable_are_found_in_the_answers_of_most_makers() -> None:
    def task(against: int, makers: int) -> ByMaker:
        return {maker: TaskCounts(scored_twice=8, same=0 if at < against else 8) for at, maker in enumerate(MAKERS[:makers])}

    assert [bool(fault_of(99, [task(against, 5)])) for against in range(6)] == [False] * 3 + [True] * 3


def test_a_small_set_is_judged_by_all_of_its_tasks() -> None:
    assert fault_of(1, [NEVER]) == "1 of 1 tasks were never solved"


@pytest.mark.parametrize(("solved", "counts"), [(0, 0), (1, 1), (40, 1), (500, 8), (999, 15), (1000, 16)])
def test_one_maker_counts_for_half_of_what_judges_a_task(solved: int, counts: int) -> None:
    assert TaskCounts(1000, solved).of_one == TaskCounts(LEAST_ATTEMPTS // 2, counts)


def test_no_crowd_of_makers_makes_the_counts_of_a_task_grow() -> None:
    counting, first = OutcomeCounts(), first_problem(3)
    for maker in MAKERS:
        counting.note_tried([Tried(first, 16, 8)], [maker], SETS)
    assert counting.of_set(3, SETS[3]) == {0: TaskCounts(16 * len(MAKERS), 8 * len(MAKERS))}
    assert len(counting._sets[3, SETS[3]][0]) == MOST_MAKERS + 1


def test_a_ready_names_what_falls_out_and_has_not_yet() -> None:
    sets = tuple(
        AdmittedSet(name="s", count=1, size=9, root=SETS[slot], slot=slot, publisher=ANN.peer_id) for slot in (2, 3, 5)
    )
    counting = OutcomeCounts()
    assert counting.against(TasksInForce(1, 50, sets)) is None
    for maker in MAKERS[:2]:
        counting.note_tried([Tried(first_problem(slot), 100, 0) for slot in (3, 5)], [maker], SETS)
    assert counting.against(TasksInForce(1, 50, sets)) == 0b110
    assert counting.against(TasksInForce(1, 50, sets, frozenset({5}))) == 0b010


def test_a_slot_that_is_another_sets_on_another_branch_is_counted_apart() -> None:
    counting, other = OutcomeCounts(), {3: SETS[9]}
    counting.note_tried([Tried(first_problem(3), 100, 0)], ONE, SETS)
    counting.note_tried([Tried(first_problem(3), 50, 20)], ONE, other)
    counting.note_tried([Tried(first_problem(3), 7, 7)], ONE, {})
    assert counting.of_set(3, SETS[3]) == {0: TaskCounts(100, 0)} and counting.of_set(3, SETS[9]) == {0: TaskCounts(50, 20)}
    set_of_branch = AdmittedSet(name="s", count=1, size=9, root=SETS[9], slot=3, publisher=ANN.peer_id)
    assert counting.against(TasksInForce(1, 50, (set_of_branch,))) is None
    counting.keep_only(other)
    assert counting.of_set(3, SETS[3]) == {} != counting.of_set(3, SETS[9])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 99), st.integers(1, 50)), max_size=20))
def test_counts_outlast_a_life(noted: list[tuple[int, int, int]]) -> None:
    counting = OutcomeCounts()
    counting.note_tried(
        [Tried(first_problem(slot) + task, most, most // 2, most, most // 3, most % 3) for slot, task, most in noted],
        [*MAKERS[:2], None],
        SETS,
    )
    again = OutcomeCounts.decode(counting.encode())
    assert again._sets == counting._sets


@given(st.binary(max_size=60))
def test_damaged_counts_are_refused_with_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        OutcomeCounts.decode(data)
