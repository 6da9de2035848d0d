"""The offline filter: which tasks a run learns from, by the rate at which a model solved them before it.

A rate is measured (`trainer.rl.rating`) and stands in a task's record.  What is left follows from the file and the run's two
bounds alone, so that everybody has the same tasks in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.environments.records import Task


@dataclass(frozen=True)
class SolveRates:
    """The rates of tasks to learn from, 0 to 1, both bounds included."""

    low: float = 0.0
    high: float = 1.0

    def have(self, rate: float | None) -> bool:
        """Whether a task with this rate stays.  None: nobody measured it, and it stays."""
        return rate is None or self.low <= rate <= self.high

    def left(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks that stay, in their order.  Raises ValueError where none does."""
        kept = tuple(task for task in tasks if self.have(task.solve_rate))
        if not kept:
            raise ValueError(
                f"none of the {len(tasks)} tasks has a solve_rate from {self.low:g} to {self.high:g}; take easier or harder "
                "tasks, or set min_solve_rate and max_solve_rate in the run file's [rl]"
            )
        return kept


def told(left: int, total: int, rates: SolveRates) -> str:
    """For a person: how many tasks stay and why the others do not; how many there are where all stay."""
    if left == total:
        return f"{total}"
    return f"{left} of {total}, {total - left} left out by a solve_rate outside {rates.low:g} to {rates.high:g}"


ALL = SolveRates()
"""Leaves nothing out."""
