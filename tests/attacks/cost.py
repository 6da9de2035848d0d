"""What an attack costs a process: memory, and how long its event loop kept everybody waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

MAX_GROWTH = 160 << 20
MAX_STALL_S = 0.1
"""Of processor time: what a busy machine adds to it is no fault of the process."""
TICK_S = 0.01


@dataclass
class Cost:
    """grown: bytes of resident memory, at the peak of a peer, and what remains in this process.  details: what was done.

    stall_s: the longest time that the event loop was late.  busy_s: the part of one such time that it computed itself; the
    rest it waited for a processor, or for another thread.
    """

    grown: int = 0
    stall_s: float = 0.0
    busy_s: float = 0.0
    details: str = ""

    def late(self, stall_s: float, busy_s: float) -> None:
        """Take note of a delay."""
        self.stall_s, self.busy_s = max(self.stall_s, stall_s), max(self.busy_s, min(stall_s, busy_s))

    @contextmanager
    def step(self) -> Iterator[None]:
        """What the event loop would do in one go."""
        began, busy = time.perf_counter(), time.thread_time()
        yield
        self.late(time.perf_counter() - began, time.thread_time() - busy)

    def flaw(self, *, timed: bool) -> str | None:
        """Why this is too much, as a phrase; None when it is borne.  timed: whether delays count."""
        if self.grown > MAX_GROWTH:
            return f"memory grew by {self.grown >> 20} MiB"
        if timed and self.busy_s > MAX_STALL_S:
            return f"the event loop was busy for {self.busy_s * 1000:.0f} ms"
        return None


async def watch_loop(tell: Callable[[float, float], None]) -> None:
    """Until cancelled: tell by how much each tick is late, and how long this thread computed since the last one (s)."""
    while True:
        due, busy = time.perf_counter() + TICK_S, time.thread_time()
        await trio.sleep(TICK_S)
        tell(max(0.0, time.perf_counter() - due), time.thread_time() - busy)
