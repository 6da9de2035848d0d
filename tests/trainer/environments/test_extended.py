"""Sets of tasks beside an environment: problems by number, strictly what was named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.environments.lines import line
from trainer.environments.registry import open_environment
from trainer.environments.task_file import ExtendedEnvironment, TaskFile, digest_of

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
    with pytest.raises(ValueError, match="no set of tasks"):
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
    assert "other tasks" in unusable[FIRST + 10] and "said to have 4" in unusable[FIRST + 20]
    assert "more than the 100" in unusable[FIRST + 30]


def test_a_set_with_a_prompt_that_no_model_can_answer_is_not_used(tmp_path: Path) -> None:
    files = [a_file(tmp_path, "good"), a_file(tmp_path, "bad", FIRST + 10, prompt="Stop.")]
    extended = ExtendedEnvironment(open_environment("add"))
    unusable = extended.use(files, 100, lambda prompt: "has no tokens" if prompt == "Stop." else "")
    assert unusable == {FIRST + 10: "the prompt of its task 0 has no tokens"}
    assert extended.problem(FIRST).prompt == "six times seven?"
