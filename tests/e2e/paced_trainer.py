"""`trainer`, whose inner steps on text take as long as on some other computer: `PACE_READ` seconds each, at least.

Each step is really done; then the trainer sleeps until its time is over.  So it can be asked to finish between two steps,
and goes on before it has the last round's result as a real one does.  What it does between steps, such as evaluating, is
part of the next step's time.  Every step becomes a line of the file `BUSY_FILE`, as other work (`tests.e2e.paced_peer`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from tests.e2e.paced_peer import READ, left_s, note
from trainer.__main__ import main
from trainer.parameters import F32
from trainer.worker import Applied, Between, Done, Task, Worker, refuse_to_wait

_compute = Worker.compute


class StepClock:
    """Clock of the steps of a compute."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def begin(self) -> None:
        """Begin the time of a step now."""
        self._begun = time.monotonic()

    def end(self) -> None:
        """Sleep until the time of the step is over, note the step, and begin the next one."""
        time.sleep(left_s(READ, self._begun))
        note(READ, self._begun)
        self.begin()


def _paced_compute(
    worker: Worker,
    task: Task,
    theta: F32,
    out: memoryview,
    after_step: Callable[[int, float, int, float], bool],
    between: Between = refuse_to_wait,
    applied: Applied = lambda needed: True,
) -> Done:
    clock = StepClock()

    def after_paced_step(steps: int, loss: float, tokens: int, tokens_per_s: float) -> bool:
        clock.end()
        return after_step(steps, loss, tokens, tokens_per_s)

    def applied_before_step(needed: bool) -> bool:
        is_applied = applied(needed)
        if needed:
            clock.begin()  # it has perhaps waited
        return is_applied

    return _compute(worker, task, theta, out, after_paced_step, between, applied_before_step)


if __name__ == "__main__":
    Worker.compute = _paced_compute  # type: ignore[method-assign,assignment]
    while "=" in sys.argv[1]:
        name, _, value = sys.argv.pop(1).partition("=")
        os.environ[name] = value
    status = main()
    sys.stdout.flush()
    os._exit(status)
