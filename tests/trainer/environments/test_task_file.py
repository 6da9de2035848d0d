"""Files of tasks: beside an environment by number, strictly what was named, and without those of other solve rates."""

from __future__ import annotations

import contextlib
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.environments.lines import line
from trainer.environments import task_file
from trainer.environments.records import SolveRates
from trainer.environments.registry import open_environment, open_named
from trainer.environments.task_file import MAX_SET_BYTES, ExtendedEnvironment, TaskFile, digest_of, read_task_set

FIRST = 1 << 41


def a_file(folder: Path, name: str, first: int = FIRST, count: int = 3, prompt: str = "six times seven?") -> TaskFile:
    info = {"ground_truth": "42"}
    lines = [
        line(problem_id=str(at), task_type="exact_answer", prompt=prompt, verification_info=info) for at in range(count)
    ]
    data = b"\n".join(lines)
    (folder / name).write_bytes(data)
    return TaskFile(first, count, str(folder / name), digest_of(data))


def test_problems_of_sets_come_and_go_beside_the_environments_own(tmp_path: Path) -> None:
    own = open_environment("guess")
    extended = ExtendedEnvironment(own)
    assert extended.use([a_file(tmp_path, "a")], 100) == {}
    problem = extended.problem(FIRST + 2)
    assert problem.prompt == "six times seven?" and problem.index == FIRST + 2
    assert (extended.score(problem, ["42"]), extended.score(problem, ["41"])) == (1, 0)
    assert extended.reply(problem, ["42"]) is None and extended.solution(problem) == ("42",)
    mine = extended.problem(5)
    assert mine == own.problem(5) and extended.reply(mine, ["1"]) == own.reply(mine, ["1"])
    assert extended.size == own.size
    assert extended.use([], 100) == {}
    with pytest.raises(ValueError, match="not in any set of tasks"):
        extended.problem(FIRST)


def test_scores_are_exact_where_no_program_runs_for_them(tmp_path: Path) -> None:
    info = {"language": "python", "test_cases": [{"type": "stdin_stdout", "input": "1", "output": "1"}]}
    data = line(problem_id="0", task_type="verifiable_code", prompt="?", verification_info=info)
    (tmp_path / "code").write_bytes(data)
    extended = ExtendedEnvironment(open_environment("mixture", of=[{"name": "add"}, {"name": "guess"}]))
    files = [a_file(tmp_path, "a"), TaskFile(FIRST + 10, 1, str(tmp_path / "code"), digest_of(data))]
    unusable = extended.use(files, 100)
    assert all(extended.is_exact(extended.problem(number)) for number in (0, 1, FIRST))
    assert unusable or not extended.is_exact(extended.problem(FIRST + 10)), "a computer may be too slow for it"


def test_a_set_that_cannot_be_used_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    good = a_file(tmp_path, "a")
    other = TaskFile(FIRST + 10, 3, good.path, "0" * 32)
    short = TaskFile(FIRST + 20, 4, good.path, good.digest)
    long = a_file(tmp_path, "long", FIRST + 30, prompt="x" * 101)
    unusable = ExtendedEnvironment(open_environment("add")).use([good, other, short, long], 100)
    assert {*unusable} == {FIRST + 10, FIRST + 20, FIRST + 30}
    assert "other tasks" in unusable[FIRST + 10] and "but 4 were announced" in unusable[FIRST + 20]
    assert "more than the 100" in unusable[FIRST + 30]


# -- solve rates ---------------------------------------------------------------------------------------------------------

RATES = SolveRates(0.1, 0.8)
MEASURED: dict[str, float | None] = {"a": 0.0, "b": 0.1, "c": None, "d": 0.8, "e": 0.81, "f": 1, "g": 0.5}
LEFT = ["b", "c", "d", "g"]


def written(folder: Path, measured: dict[str, float | None] = MEASURED) -> tuple[Path, str]:
    """A file of tasks whose prompts are their names, and its digest."""
    lines = [line(problem_id=name, prompt=name, solve_rate=... if rate is None else rate) for name, rate in measured.items()]
    path = folder / "tasks.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path, digest_of(path.read_bytes())


def test_a_runs_tasks_are_those_within_its_bounds_in_their_order(tmp_path: Path) -> None:
    path, digest = written(tmp_path)
    name = f'jsonl(path="tasks.jsonl", digest="{digest}")'
    files = {"tasks/tasks.jsonl": str(path)}
    environment = open_named(name, files, RATES)
    assert [environment.problem(at).prompt for at in range(environment.size)] == LEFT
    assert open_named(name, files).size == len(MEASURED)
    mixture = open_named(f"mixture(sort, {name})", files, RATES)
    assert [mixture.problem(2 * at + 1).prompt for at in range(4)] == LEFT


# -- sets of the crowd ---------------------------------------------------------------------------------------------------

SET = b"\n".join(line(problem_id=str(number)) for number in range(10))


def test_set_is_named_by_its_bytes_however_it_was_sent() -> None:
    plain, compressed = read_task_set(SET), read_task_set(zstandard.compress(SET))
    assert plain == compressed
    assert len(plain.tasks) == 10
    assert read_task_set(SET + b"\n").digest != plain.digest


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (SET + b"\n{}", "line 11: not a task: it has neither task_type"),
        (zstandard.compress(SET)[:-9], "damaged"),
        (zstandard.compress(bytes(MAX_SET_BYTES + 1)), "at most 16 MiB"),
        (zstandard.compress(b"nonsense"), "line 1: it is not JSON"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(SET), "does not say its size"),
    ],
)
def test_what_is_no_set_is_refused_with_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_task_set(data)


def test_size_that_lies_takes_no_memory_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_file, "MAX_SET_BYTES", 1 << 16)
    bomb = zstandard.compress(bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            read_task_set(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.integers(0, 2**32), st.integers(0, 255))
def test_damaged_sets_are_read_or_refused_and_arbitrary_bytes_are_refused(other: bytes, place: int, value: int) -> None:
    for data in (other, task_file.ZSTANDARD + other):
        with pytest.raises(ValueError):
            read_task_set(data)
    damaged = bytearray(zstandard.compress(SET))
    damaged[place % len(damaged)] = value
    with contextlib.suppress(ValueError):
        read_task_set(bytes(damaged))
