"""`peer`, whose trainer takes as long over an inner step on text as some other computer; and that trainer process.

Each step is really done; then the trainer sleeps until `STEP_S` seconds are over.  So it can be asked to finish between two
steps, and goes on before it has the last round's result as a real one does.  What it does between steps, such as evaluating,
is part of the next step's time.  Every step becomes a line of the file `BUSY_FILE`, the fields of a `Work`.

The trainer gets both variables as words, because a peer passes no unknown variables on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

BUSY_FILE, STEP_S = "BUSY_FILE", "STEP_S"
TRAINER = "--paced-trainer"


@dataclass(frozen=True)
class Work:
    """A step of a trainer process.  begun, ended: s, monotonic clock."""

    begun: float
    ended: float

    def within(self, begin: float, end: float) -> float:
        """Return the seconds of it between these."""
        return max(0.0, min(self.ended, end) - max(self.begun, begin))


class StepClock:
    """Clock of the steps of a compute, which last `step_s` at least and are noted in `busy_file`."""

    def __init__(self, step_s: float, busy_file: str) -> None:
        self._step_s, self._busy_file = step_s, busy_file
        self._begun = time.monotonic()

    def begin(self) -> None:
        """Begin the time of a step now."""
        self._begun = time.monotonic()

    def end(self) -> None:
        """Sleep until the time of the step is over, note the step, and begin the next one."""
        time.sleep(max(0.0, self._begun + self._step_s - time.monotonic()))
        with open(self._busy_file, "a") as file:
            print(json.dumps(asdict(Work(self._begun, time.monotonic()))), file=file)
        self.begin()


def run_trainer(step_s: float, busy_file: str) -> int:
    """Be the trainer process."""
    from trainer.__main__ import main
    from trainer.worker import Done, Worker, refuse_to_wait

    compute = Worker.compute

    def paced(
        worker: Worker,
        task: Any,
        theta: Any,
        out: memoryview,
        after_step: Callable[..., bool],
        between: Any = refuse_to_wait,
        applied: Callable[[bool], bool] = lambda needed: True,
    ) -> Done:
        clock = StepClock(step_s, busy_file)

        def after_paced_step(*step: Any) -> bool:
            clock.end()
            return after_step(*step)

        def applied_before_step(needed: bool) -> bool:
            is_applied = applied(needed)
            if needed:
                clock.begin()  # it has perhaps waited
            return is_applied

        return compute(worker, task, theta, out, after_paced_step, between, applied_before_step)

    Worker.compute = paced  # type: ignore[method-assign,assignment]
    return main()


def run_peer() -> int:
    """Be a peer that starts its trainer by this module."""
    from peer.cli import main
    from peer.trainer_process import process

    process.PROGRAM = ("tests.e2e.paced_peer", TRAINER, os.environ[STEP_S], os.environ[BUSY_FILE])
    return main()


if __name__ == "__main__":
    if sys.argv[1:2] == [TRAINER]:
        step_s, busy_file = sys.argv[2:4]
        del sys.argv[1:4]
        status = run_trainer(float(step_s), busy_file)
        sys.stdout.flush()
        os._exit(status)
    sys.exit(run_peer())
