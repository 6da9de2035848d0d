"""Clock of a child's silence, which does not mistake a busy computer for a hung child.

A limit on elapsed time ends work that is merely slow: beside fifty processes on two cores, a start of ten seconds takes four
minutes.  A limit on processor time alone never ends a child that sleeps.  So `SilenceClock` runs at the speed of elapsed
time as long as the computer has cores to spare or the child does nothing, and at the speed of the child's processor time
while the child computes on a busy computer.  A limit by this clock ends a hung child as soon as a limit on elapsed time
would.  It ends a child that computes forever once the child has had that much time of a core, or after `LONGEST` times that
long.

This module imports the standard library alone, because the launcher of a sandbox uses it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

LOOK_S = 5.0
"""Longest time (s) between two checks of a silent child; its activity is judged for the whole time between them."""
LONGEST = 20.0
"""Factor by which elapsed time may exceed the limit."""
LEAST_SHARE = 0.1
"""Processor time of a child that computes, as a fraction of an equal share of the cores.

A child of lower priority gets less than an equal share, and a child that only looks for work takes less than a hundredth.
"""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float:
    """Return the number of processes that ran or waited for a core in the last minute; 0 if this system does not tell."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0


@dataclass
class SilenceClock:
    """Clock that starts with the silence of a child.  Times are in seconds.

    now: the time at the start, and then at the last check.  used_s: the processor time of the child and its children until
    then.  cores: cores that they may use.  counted_s: the silence as this clock counts it.  wall_s: the silence in elapsed
    time.  computed_s: the processor time in it.  busy: the sentence about a busy computer; empty if the child has been
    getting the processor time that it wants.
    """

    now: float
    used_s: float
    cores: int
    counted_s: float = 0.0
    wall_s: float = 0.0
    computed_s: float = 0.0
    busy: str = ""

    def look(self, now: float, used_s: float, load: float) -> None:
        """Count the time since the last check.  load: number of processes that run or wait for a core."""
        passed, used = max(0.0, now - self.now), max(0.0, used_s - self.used_s)
        self.now, self.used_s = now, used_s
        is_late = load > self.cores and used >= LEAST_SHARE * passed * self.cores / load
        self.counted_s += min(passed, used) if is_late else passed
        self.wall_s += passed
        self.computed_s += used
        is_starved = is_late and 2 * used < passed
        self.busy = f"this computer is too busy (load {load:.0f} on {self.cores} cores)" if is_starved else ""

    def is_over(self, limit_s: float) -> bool:
        """Return True if a silence of `limit_s` is over."""
        return self.counted_s > limit_s or self.wall_s > LONGEST * limit_s

    def describe(self) -> str:
        """Return the silence in words, as the end of a sentence."""
        return f"for {self.wall_s:.0f} s, in which it computed for {self.computed_s:.0f} s"
