"""`peer`, with one thing added: it writes down whenever its event loop is late.

`DELAYS` in its data directory gets one line for each such moment: the time (seconds of the system's monotonic clock), how
late, and how long the loop had been computing (seconds).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from peer.cli import main
from tests.attacks.cost import Cost, watch_loop

DELAYS = "delays"
LEAST_S = 0.002
"""Delays that are written down, at least."""
_run = trio.run


def _watched(folder: Path, live: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
    """As `trio.run`."""

    async def both() -> Any:
        with (folder / DELAYS).open("a", buffering=1) as delays:

            def tell(stall_s: float, busy_s: float) -> None:
                if stall_s > LEAST_S:
                    delays.write(f"{time.monotonic()} {stall_s} {busy_s}\n")

            trio.lowlevel.spawn_system_task(watch_loop, tell)
            return await live(*arguments)

    return _run(both, **options)


def read_delays(folder: Path, since: float, cost: Cost) -> None:
    """Note what the peer of this data directory wrote down after `since` (the same clock)."""
    for line in (folder / DELAYS).read_text().splitlines():
        at, stall_s, busy_s = map(float, line.split())
        if at >= since:
            cost.late(stall_s, busy_s)


if __name__ == "__main__":
    trio.run = partial(_watched, Path(sys.argv[sys.argv.index("--data-dir") + 1]))
    sys.exit(main())
