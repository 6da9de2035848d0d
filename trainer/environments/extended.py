"""Environment extended by sets of tasks that come and go; their problems have numbers beyond the environment's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.environments.environment import Environment, Problem
from trainer.environments.jsonl import RecordedTasks, open_rated
from trainer.environments.sandbox import SandboxUnavailable
from trainer.environments.solve_rates import ALL, SolveRates


@dataclass(frozen=True)
class TaskFile:
    """Set of tasks in a file.  first: number of its first problem.  count: tasks within the run's bounds on solve rates.

    digest: as in `open_rated`.
    """

    first: int
    count: int
    path: str
    digest: str


class Extended(Environment):
    """Environment with the problems of `own`, from 0 on, and of the sets given to `use`."""

    def __init__(self, own: Environment, rates: SolveRates = ALL) -> None:
        """rates: bounds on the solve rates of the sets' tasks; other tasks get no number."""
        self._own, self._rates = own, rates
        self._sets: dict[TaskFile, RecordedTasks] = {}
        self.max_turns = own.max_turns

    @property
    def size(self) -> int:
        """Number of problems of the environment itself, without the sets."""
        return self._own.size

    def use(
        self, files: Sequence[TaskFile], most_prompt_bytes: int, flaw_in: Callable[[str], str] = lambda prompt: ""
    ) -> dict[int, str]:
        """Use these sets only; return the unusable ones, by their first problem, with the reason in a sentence.

        most_prompt_bytes: the longest prompt that can be learned from.  flaw_in: returns the reason why no model can answer
        a prompt, as a phrase; empty if one can.
        """
        held: dict[TaskFile, RecordedTasks] = {}
        unusable: dict[int, str] = {}
        for file in files:
            try:
                held[file] = self._sets.get(file) or _opened(file, self._rates, most_prompt_bytes, flaw_in)
            except (ValueError, SandboxUnavailable) as error:
                unusable[file.first] = str(error)[:300]
        self._sets = held
        return unusable

    def problem(self, index: int) -> Problem:
        if index < self._own.size:
            return self._own.problem(index)
        environment, first = self._set_of(index)
        inner = environment.problem(index - first)
        return Problem(index, inner.prompt, inner.answer)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return self._of(problem).score(problem, turns)

    def is_exact(self, problem: Problem) -> bool:
        return self._of(problem).is_exact(problem)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return self._of(problem).solution(problem)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return self._of(problem).reply(problem, turns)

    def _of(self, problem: Problem) -> Environment:
        return self._own if problem.index < self._own.size else self._set_of(problem.index)[0]

    def _set_of(self, index: int) -> tuple[Environment, int]:
        for file, environment in self._sets.items():
            if file.first <= index < file.first + file.count:
                return environment, file.first
        raise ValueError(f"there is no problem {index}: no set of tasks that is here has it")


def _opened(file: TaskFile, rates: SolveRates, most_prompt_bytes: int, flaw_in: Callable[[str], str]) -> RecordedTasks:
    tasks = open_rated(file.path, file.digest, rates)
    if tasks.size != file.count:
        raise ValueError(f"the set has {tasks.size} tasks with solve rates of this run, and was said to have {file.count}")
    prompts = [tasks.problem(at).prompt for at in range(tasks.size)]
    longest = max(len(prompt.encode()) for prompt in prompts)
    if longest > most_prompt_bytes:
        raise ValueError(f"a prompt has {longest} bytes, more than the {most_prompt_bytes} that this run can learn from")
    for at, prompt in enumerate(prompts):
        if flaw := flaw_in(prompt):
            raise ValueError(f"the prompt of its task {at} {flaw}")
    return tasks
