"""`peer`, whose trainer process takes as long over its work as some other computer would: `PACE_` seconds at least.

What is asked of the process is really done; then the peer waits until the time is over, as if it were done only now.  A
trainer that reads text does so itself, step by step (`tests.e2e.paced_trainer`).  Every piece of work becomes a line of the
file `BUSY_FILE`: {what, begun, ended}, in seconds of the monotonic clock.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import trio

from peer.cli import main
from peer.trainer_process import process as trainer_process
from peer.trainer_process.process import RolloutProcess, TrainerProcess
from protocol.trainer_link import ComputeTask, Contribution, Generated, Progress, RolloutTask, RolloutVerdict

GENERATE, VERIFY, LEARN, READ = "generate", "verify", "learn", "read"
BUSY_FILE = "BUSY_FILE"
_compute, _generate, _verify = TrainerProcess.compute, RolloutProcess.generate, RolloutProcess.verify


@asynccontextmanager
async def paced(what: str) -> AsyncIterator[None]:
    """A piece of work, which takes as long as it should."""
    begun = time.monotonic()
    yield
    await trio.sleep(left_s(what, begun))
    note(what, begun)


def left_s(what: str, begun: float) -> float:
    """Return the seconds that a piece of work has yet to take."""
    return max(0.0, begun + float(os.environ.get(f"PACE_{what.upper()}", "0")) - time.monotonic())


def note(what: str, begun: float) -> None:
    """Add a piece of work that ends now to the file."""
    with open(os.environ[BUSY_FILE], "a") as file:
        print(json.dumps({"what": what, "begun": begun, "ended": time.monotonic()}), file=file)


async def _paced_compute(
    process: TrainerProcess,
    task: ComputeTask,
    theta: memoryview,
    on_progress: Callable[[Progress], None],
    applied: trio.Event | None = None,
) -> Contribution:
    async with paced(LEARN) if task.rollouts else nullcontext():
        return await _compute(process, task, theta, on_progress, applied)


async def _paced_generate(process: RolloutProcess, task: RolloutTask, path: Path, on_progress: Any) -> Generated:
    async with paced(GENERATE):
        return await _generate(process, task, path, on_progress)


async def _paced_verify(process: RolloutProcess, task: RolloutTask, path: Path) -> tuple[RolloutVerdict, ...]:
    async with paced(VERIFY):
        return await _verify(process, task, path)


if __name__ == "__main__":
    words = (f"{name}={value}" for name, value in os.environ.items() if name == BUSY_FILE or name.startswith("PACE_"))
    trainer_process.PROGRAM = ("tests.e2e.paced_trainer", *words)  # a peer passes no unknown variables on
    TrainerProcess.compute = _paced_compute  # type: ignore[method-assign,assignment]
    RolloutProcess.generate = _paced_generate  # type: ignore[method-assign,assignment]
    RolloutProcess.verify = _paced_verify  # type: ignore[method-assign,assignment]
    sys.exit(main())
