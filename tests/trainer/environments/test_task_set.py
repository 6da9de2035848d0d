"""Sets of the crowd are read within bounds, and fall out by what is counted of their tasks."""

from __future__ import annotations

import io
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.environments.lines import line
from trainer.environments import task_set
from trainer.environments.task_set import (
    LEAST_ATTEMPTS,
    LEAST_VERDICTS,
    MAX_SET_BYTES,
    TaskCounts,
    TaskSet,
    TaskStanding,
    fault_of,
    read_task_set,
    standing,
)

SET = b"\n".join(line(problem_id=str(number)) for number in range(10))


def test_set_is_named_by_its_bytes_however_it_was_sent() -> None:
    plain, compressed = read_task_set(SET), read_task_set(zstandard.compress(SET))
    assert plain == compressed
    assert len(plain.tasks) == 10
    assert read_task_set(SET + b"\n").digest != plain.digest


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "there is no task"),
        (SET + b"\n{}", "line 11: the line has no problem_id"),
        (zstandard.compress(SET)[:-9], "damaged"),
        (zstandard.compress(SET)[:6], "damaged"),
        (zstandard.compress(bytes(MAX_SET_BYTES + 1)), "at most 64 MiB"),
        (zstandard.compress(b"nonsense"), "line 1: not JSON"),
    ],
)
def test_what_is_no_set_is_refused_with_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_task_set(data)


def test_compressed_set_must_say_its_size() -> None:
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as writer:
        writer.write(SET)
    with pytest.raises(ValueError, match="does not say its size"):
        read_task_set(out.getvalue())


def test_size_that_lies_takes_no_memory_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_set, "MAX_SET_BYTES", 1 << 16)
    bomb = zstandard.compress(bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            read_task_set(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_refused(data: bytes, compressed: bool) -> None:
    with pytest.raises(ValueError):
        read_task_set(task_set.ZSTANDARD + data if compressed else data)


@given(st.integers(0, 2**32), st.integers(0, 255))
def test_damaged_sets_are_read_or_refused(place: int, value: int) -> None:
    damaged = bytearray(zstandard.compress(SET))
    damaged[place % len(damaged)] = value
    try:
        read_task_set(bytes(damaged))
    except ValueError:
        pass


def test_counts_add_up() -> None:
    counts = sum((TaskCounts.of_score(score) for score in (1.0, 0.0, 0.5, 0.6)), TaskCounts())
    counts += TaskCounts.of_second_score(1.0, 1.0) + TaskCounts.of_second_score(1.0, 0.0)
    assert counts == TaskCounts(attempts=4, solved=2, verdicts=2, agreeing=1)
    assert counts.solve_rate == 0.5
    assert TaskCounts().solve_rate == 0.0
    for wrong in ((1, 2, 0, 0), (1, -1, 0, 0), (0, 0, 1, 2)):
        with pytest.raises(ValueError):
            TaskCounts(*wrong)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (TaskCounts(), TaskStanding.UNKNOWN),
        (TaskCounts(LEAST_ATTEMPTS - 1, 0), TaskStanding.UNKNOWN),
        (TaskCounts(LEAST_ATTEMPTS, 0), TaskStanding.TOO_HARD),
        (TaskCounts(100, 9), TaskStanding.TOO_HARD),
        (TaskCounts(100, 10), TaskStanding.USEFUL),
        (TaskCounts(100, 80), TaskStanding.USEFUL),
        (TaskCounts(100, 81), TaskStanding.TOO_EASY),
        (TaskCounts(100, 50, LEAST_VERDICTS - 1, 0), TaskStanding.USEFUL),
        (TaskCounts(100, 50, LEAST_VERDICTS, LEAST_VERDICTS - 1), TaskStanding.DISPUTED),
        (TaskCounts(0, 0, 100, 89), TaskStanding.DISPUTED),
        (TaskCounts(100, 50, 100, 90), TaskStanding.USEFUL),
    ],
)
def test_standing_of_a_task(counts: TaskCounts, expected: TaskStanding) -> None:
    assert standing(counts) is expected


def judged(count: int, dead: TaskCounts, live: TaskCounts) -> str | None:
    """What is wrong with the set when `count` of its ten tasks have the first counts and the others the second."""
    return fault_of(THE_SET, {str(number): dead if number < count else live for number in range(10)})


THE_SET: TaskSet = read_task_set(SET)
LIVE = TaskCounts(100, 50)


def test_set_stays_while_nothing_is_known_of_it() -> None:
    assert fault_of(THE_SET, {}) is None
    assert judged(10, TaskCounts(LEAST_ATTEMPTS - 1, 0), LIVE) is None
    assert fault_of(THE_SET, {str(number): TaskCounts(100, 0) for number in range(7)}) is None
    assert fault_of(THE_SET, {"another": TaskCounts(100, 0, 1000, 0)}) is None


def test_set_of_tasks_that_nobody_solves_falls_out() -> None:
    assert judged(8, TaskCounts(100, 0), LIVE) is None
    assert judged(9, TaskCounts(100, 0), LIVE) == "9 of 10 tasks were never solved"


def test_set_of_tasks_that_everything_solves_falls_out() -> None:
    assert judged(8, TaskCounts(100, 100), LIVE) is None
    assert judged(9, TaskCounts(100, 100), LIVE) == "9 of 10 tasks were solved by every answer"


def test_set_whose_scores_are_not_repeatable_falls_out() -> None:
    assert judged(10, TaskCounts(10, 5, 3, 2), LIVE) is None
    assert (
        judged(10, TaskCounts(10, 5, 4, 3), LIVE)
        == "validators agree on less than 90% of the answers that were scored twice"
    )
    assert judged(10, TaskCounts(10, 5, 10, 9), LIVE) is None


def test_small_set_is_judged_by_all_of_its_tasks() -> None:
    small = read_task_set(line(problem_id="0"))
    assert fault_of(small, {"0": TaskCounts(100, 0)}) == "1 of 1 tasks were never solved"
