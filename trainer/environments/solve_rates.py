"""Offline filter: chooses the tasks that a run learns from, by the rate at which a model solved them before the run.

A rate is measured (`trainer.rl.rating`) and written into a task's record.  The chosen tasks follow only from the file and
the run's two bounds, so that all peers have the same tasks in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.environments.records import TaskRecord


@dataclass(frozen=True)
class SolveRates:
    """Bounds on the solve rates of tasks to learn from, 0 to 1, both included."""

    low: float = 0.0
    high: float = 1.0

    def have(self, rate: float | None) -> bool:
        """Return True if a task with this rate stays; a task without a measured rate (None) stays."""
        return rate is None or self.low <= rate <= self.high

    def left(self, tasks: Sequence[TaskRecord]) -> tuple[TaskRecord, ...]:
        """Return the tasks that stay, in their order.  Raises ValueError if none stays."""
        kept = tuple(task for task in tasks if self.have(task.solve_rate))
        if not kept:
            raise ValueError(
                f"none of the {len(tasks)} tasks has a solve_rate from {self.low:g} to {self.high:g}; take easier or harder "
                "tasks, or set min_solve_rate and max_solve_rate in the run file's [rl]"
            )
        return kept


def told(left: int, total: int, rates: SolveRates) -> str:
    """Describe for a person the number of tasks that stay, and the reason why others do not, if any."""
    if left == total:
        return f"{total}"
    return f"{left} of {total}, {total - left} left out by a solve_rate outside {rates.low:g} to {rates.high:g}"


ALL = SolveRates()
"""Bounds that leave nothing out."""
