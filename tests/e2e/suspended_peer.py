"""`peer` on a computer that sleeps while the process is stopped: the clock of its event loop stands still meanwhile.

A stopped process looks at no clock, and the event loop of one that runs looks several times a second.  So if nobody
looked for `GAP_S`, the process was stopped, and that time is taken off the loop's clock, as on a suspended computer.  The
boot clock is the real one, and has run on.
"""

from __future__ import annotations

import importlib
import sys
from time import perf_counter
from typing import Any

from peer.cli import main

GAP_S = 10.0
"""Longer than any pause of a process that runs, on a busy computer too."""


class SuspendableClock:
    """Monotonic clock that leaves out the time in which nobody looked at it."""

    def __init__(self) -> None:
        self._last, self._suspended_s = perf_counter(), 0.0

    def seconds(self) -> float:
        """Return the seconds for which the computer has been awake, from an arbitrary beginning."""
        now = perf_counter()
        if now - self._last > GAP_S:
            self._suspended_s += now - self._last
        self._last = now
        return now - self._suspended_s


if __name__ == "__main__":
    clock, core = SuspendableClock(), importlib.import_module("trio._core._run")

    def current_time(system: Any) -> float:
        return system.offset + clock.seconds()  # type: ignore[no-any-return]

    core.SystemClock.current_time = current_time  # type: ignore[attr-defined]
    sys.exit(main())
