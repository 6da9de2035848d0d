"""Several environments as one: problem i is of environment i mod n."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.environments.environment import Environment, Problem


class Mixture(Environment):
    """Problems of all environments in turn.  A problem's answer is the problem of the environment that it comes from."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        if not environments:
            raise ValueError("a mixture needs at least one environment")
        self._environments = tuple(environments)
        self.max_turns = max(environment.max_turns for environment in environments)

    @property
    def size(self) -> int:
        return len(self._environments) * min(environment.size for environment in self._environments)

    def problem(self, index: int) -> Problem:
        number, part = divmod(self._checked(index), len(self._environments))
        inner = self._environments[part].problem(number)
        return Problem(index, inner.prompt, inner)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return self._of(problem).score(problem.answer, turns)

    def is_exact(self, problem: Problem) -> bool:
        return self._of(problem).is_exact(problem.answer)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return self._of(problem).solution(problem.answer)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return self._of(problem).reply(problem.answer, turns)

    def _of(self, problem: Problem) -> Environment:
        return self._environments[problem.index % len(self._environments)]
