"""Tasks that a model solved too rarely or too often before a run have no number in it, the same for everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.environments.lines import line
from trainer.environments.records import SolveRates, read_task, told
from trainer.environments.registry import open_environment, open_named
from trainer.environments.task_file import ExtendedEnvironment, TaskFile, digest_of

RATES = SolveRates(0.1, 0.8)
MEASURED: dict[str, float | None] = {"a": 0.0, "b": 0.1, "c": None, "d": 0.8, "e": 0.81, "f": 1, "g": 0.5}
LEFT = ["b", "c", "d", "g"]


def written(folder: Path, measured: dict[str, float | None] = MEASURED) -> tuple[Path, str]:
    """A file of tasks whose prompts are their names, and its digest."""
    lines = [line(problem_id=name, prompt=name, solve_rate=... if rate is None else rate) for name, rate in measured.items()]
    path = folder / "tasks.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path, digest_of(path.read_bytes())


@pytest.mark.parametrize("rate", [0, 0.0, 0.125, 1, 1.0])
def test_a_rate_is_read_with_the_number_of_its_samples(rate: float) -> None:
    assert read_task(line(solve_rate=rate, samples=8)).solve_rate == rate
    assert read_task(line(solve_rate=None, samples=None)).solve_rate is None
    assert read_task(line()).solve_rate is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"solve_rate": 1.01}, "solve_rate is not a number from 0 to 1"),
        ({"solve_rate": -0.1}, "solve_rate is not a number"),
        ({"solve_rate": True}, "solve_rate is not a number"),
        ({"solve_rate": "0.5"}, "solve_rate is not a number"),
        ({"solve_rate": [0.5]}, "solve_rate is not a number"),
        ({"solve_rate": 0.5, "samples": 0}, "samples is not a whole number"),
        ({"solve_rate": 0.5, "samples": 8.0}, "samples is not a whole number"),
        ({"solve_rate": 0.5, "samples": True}, "samples is not a whole number"),
        ({"solve_rate": 0.5, "samples": 10**30}, "samples is not a whole number"),
        ({"samples": 8}, "samples counts the answers behind solve_rate"),
    ],
)
def test_a_malformed_rate_is_a_malformed_record(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_task(line(**changes))
    with pytest.raises(ValueError, match="solve_rate is not a number"):
        read_task(line().replace(b'"problem_id"', b'"solve_rate": 1e400, "problem_id"'))


def test_a_runs_tasks_are_those_within_its_bounds_in_their_order(tmp_path: Path) -> None:
    path, digest = written(tmp_path)
    name = f'jsonl(path="tasks.jsonl", digest="{digest}")'
    files = {"tasks/tasks.jsonl": str(path)}
    environment = open_named(name, files, RATES)
    assert [environment.problem(at).prompt for at in range(environment.size)] == LEFT
    assert open_named(name, files).size == len(MEASURED)
    mixture = open_named(f"mixture(sort, {name})", files, RATES)
    assert [mixture.problem(2 * at + 1).prompt for at in range(4)] == LEFT


def test_a_set_has_as_many_tasks_as_are_left_of_it(tmp_path: Path) -> None:
    path, digest = written(tmp_path)
    extended, first = ExtendedEnvironment(open_environment("add"), RATES), 1 << 40
    assert extended.use([TaskFile(first, 4, str(path), digest)], 100) == {}
    assert [extended.problem(first + at).prompt for at in range(4)] == LEFT
    unusable = extended.use([TaskFile(first, 7, str(path), digest)], 100)
    assert "4 tasks with solve rates of this run, and was said to have 7" in unusable[first]


def test_a_file_of_which_nothing_is_left_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path, digest = written(tmp_path, {"a": 0, "b": 1})
    with pytest.raises(ValueError, match="none of the 2 tasks has a solve_rate from 0.1 to 0.8; take easier or harder"):
        open_named(f'jsonl(path="tasks.jsonl", digest="{digest}")', {"tasks/tasks.jsonl": str(path)}, RATES)


def test_a_person_is_told_how_many_stay() -> None:
    assert told(4, 7, RATES) == "4 of 7, 3 left out by a solve_rate outside 0.1 to 0.8"
    assert told(7, 7, RATES) == "7"
