"""A clock that runs on while the computer is suspended: the event loop's stands still then."""

from __future__ import annotations

import time

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has one for it; the monotonic clock of macOS is one, other than the one that Python's own functions read."""


def seconds_since_boot() -> float:
    """Suspended ones included."""
    return time.clock_gettime(CLOCK)
