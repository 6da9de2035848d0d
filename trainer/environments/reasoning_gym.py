"""Tasks of reasoning-gym (the extra `rl`): about a hundred families of procedural puzzles.

A problem follows from the task, its settings, the seed, the number and the version of the package, so all peers of a run
need the same version.  Five of the families depend on Python's hash seed; problems are therefore made in the sandbox, which
fixes the seed, some at a time.  The package also computes scores, in the sandbox as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from trainer.environments.environment import Environment, Problem
from trainer.environments.packages import MAKING, PackageProgram, installed_version

PACKAGE = ("reasoning_gym", "reasoning-gym", "reasoning-gym tasks")
"""Arguments of `installed_version`."""
SIZE = 1 << 20
"""Default number of a family's problems.  Few families (word_ladder) refuse so many."""
AT_ONCE = 16
"""Problems made in one process: starting one costs a second or so."""
BLOCKS_KEPT = 64

PROGRAM = """
import reasoning_gym

def answer(question):
    try:
        fixed = {"seed": question["seed"], "size": question["size"]}
        data = reasoning_gym.create_dataset(question["task"], **fixed, **question["settings"])
    except (ValueError, TypeError, AssertionError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    if "numbers" in question:
        made = [data[number] for number in question["numbers"]]
        return {"made": [[entry["question"], entry["answer"]] for entry in made]}
    entry = data[question["number"]]
    guard()
    return {"score": float(data.score_answer(question["said"], entry))}
"""


class ReasoningGym(Environment):
    """One family of puzzles.  The answer is the content of the last `<answer>` element, or the whole turn without one."""

    def __init__(self, task: str, seed: int = 0, size: int = SIZE, settings: Mapping[str, Any] | None = None) -> None:
        """settings: the family's own (see the package).  Raises ValueError if the package refuses them."""
        if type(size) is not int or size < 1:
            raise ValueError("size is how many problems there are, a whole number from 1 on")
        self.version = f"reasoning-gym {installed_version(*PACKAGE)}"
        self._what = {"task": task, "seed": seed, "size": size, "settings": dict(settings or {})}
        self._maker, self._scorer = PackageProgram(PROGRAM, MAKING), PackageProgram(PROGRAM)
        self._block = lru_cache(BLOCKS_KEPT)(self._make_block)
        self._size = size
        self._block(0)

    @property
    def size(self) -> int:
        return self._size

    def problem(self, index: int) -> Problem:
        number = self._checked(index)
        question, answer = self._block(number // AT_ONCE)[number % AT_ONCE]
        return Problem(index, question, answer)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        if len(turns) != 1:
            return 0.0
        said = answer_element(turns[0])
        if said == problem.answer:
            return 1.0  # as in all families of 0.1.25 that name an answer
        try:
            answer = self._scorer.ask({**self._what, "number": problem.index, "said": said})
            return in_range(answer["score"])
        except (ValueError, KeyError, TypeError):
            return 0.0

    def solution(self, problem: Problem) -> tuple[str, ...]:
        if problem.answer is None:
            raise ValueError(f"{self._what['task']} of reasoning-gym names no answers, so it has no examples")
        return (str(problem.answer),)

    def _make_block(self, block: int) -> list[tuple[str, str | None]]:
        numbers = list(range(block * AT_ONCE, min(self._size, (block + 1) * AT_ONCE)))
        answer = self._maker.ask({**self._what, "numbers": numbers})
        if "refused" in answer:
            raise ValueError(f"reasoning-gym refuses {self._what['task']!r}: {answer['refused']}")
        return [(str(question), None if solution is None else str(solution)) for question, solution in answer["made"]]


def answer_element(text: str) -> str:
    """Return the text between the last `<answer>` and `</answer>`, or the whole text; without blanks around it."""
    _, opened, rest = text.rpartition("<answer>")
    return (rest.partition("</answer>")[0] if opened else text).strip()


def in_range(score: Any) -> float:
    """Return a package's score clamped to [0, 1]; 0 for a value that is no finite number."""
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        return 0.0
    return min(1.0, max(0.0, float(score)))
