"""The user's limits on traffic, one for each direction, on all bytes that move in it.

Small messages never wait.  A large transfer pays for each piece before the piece moves; the next piece also pays for the
control traffic in between.  Pieces move in the order in which they asked, so the flows of all peers get equal turns, but
`Priority` moves some kinds of pieces forward in the queue and others back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from math import inf

import trio

SMALLEST_FRAME_BYTES = 16 << 10
FRAMES_A_SECOND = 10
"""Smallest number of frames per second under a limit, unless frames would be smaller than `SMALLEST_FRAME_BYTES`."""
BURST_S = 0.25
"""Seconds' worth of the limit that can be saved up."""
BUFFER_S = 0.1
"""Seconds' worth of the limit that may wait in the receive buffer of one socket."""
SMALLEST_BUFFER_BYTES = 32 << 10
PACKET_SHARE = 1448 / 1500
"""Part of a full packet that remains after IPv4 and TCP headers: sockets get this part of the limit."""


class Priority(Enum):
    """The priority of a piece in the queue: the value is added to the time at which the piece asked (s)."""

    ANSWER = -1.0
    PUSH = 0.0
    SPARE = 1.0


@dataclass(order=True)
class _WaitingPiece:
    at: float
    number: int
    woken: trio.Event = field(default_factory=trio.Event, compare=False)


class RateLimit:
    """A limit on all traffic in one direction.

    bytes_per_s: None for no limit.  control_bytes: all control traffic in this direction so far.
    """

    def __init__(self, bytes_per_s: float | None = None, control_bytes: Callable[[], int] = lambda: 0) -> None:
        assert bytes_per_s is None or bytes_per_s > 0
        self.bytes_per_s = bytes_per_s
        self._control_bytes = control_bytes
        self._control_paid = 0
        self._paid_at = -BURST_S
        self._waiting: list[_WaitingPiece] = []
        self._numbers = count()

    @classmethod
    def of_line(cls, bytes_per_s: float | None, control_bytes: Callable[[], int]) -> RateLimit:
        """Return the limit on sockets' data for a limit on the line, whose packets also have headers."""
        return cls(bytes_per_s and bytes_per_s * PACKET_SHARE, control_bytes)

    def change(self, bytes_per_s: float | None) -> None:
        """Set a new limit, which also applies to waiting pieces.  Traffic under the old limit counts as paid for."""
        assert bytes_per_s is None or bytes_per_s > 0
        if bytes_per_s == self.bytes_per_s:
            return
        self.bytes_per_s = bytes_per_s
        self._control_paid, self._paid_at = self._control_bytes(), min(self._paid_at, trio.current_time())
        if self._waiting:
            self._waiting[0].woken.set()

    def frame(self, largest: int) -> int:
        """Return the size of the next frame in bytes, `largest` at most."""
        if self.bytes_per_s is None:
            return largest
        return min(largest, max(SMALLEST_FRAME_BYTES, int(self.bytes_per_s / FRAMES_A_SECOND)))

    def buffer_bytes(self) -> int | None:
        """Return the size of a socket's receive buffer in bytes; None for the system's choice."""
        return None if self.bytes_per_s is None else max(SMALLEST_BUFFER_BYTES, int(self.bytes_per_s * BUFFER_S))

    def at_most(self, bytes_per_s: float) -> float:
        """Return a bandwidth, capped by the limit; the limit itself if the bandwidth is unknown (0)."""
        return min(bytes_per_s or inf, self.bytes_per_s or inf) if bytes_per_s or self.bytes_per_s else 0.0

    def slowest(self, bytes_per_s: float) -> float:
        """Return the least rate that we expect of a peer; without a limit this is `bytes_per_s`."""
        return bytes_per_s if self.bytes_per_s is None else min(bytes_per_s, self.bytes_per_s / 64)

    async def pay(self, size: int, priority: Priority = Priority.PUSH) -> None:
        """Wait for our turn and until all earlier traffic is within the limit.  Then `size` bytes may move."""
        if self.bytes_per_s is not None:
            await self._come_first(priority)
            self._take(size)

    async def pay_ahead(self, size: int) -> None:
        """Wait as `pay` does, but ahead of pushes, for a piece that `control_bytes` will also count."""
        if self.bytes_per_s is not None:
            await self._come_first(Priority.ANSWER)
            self._take(size)
            self._control_paid += size

    def _take(self, size: int) -> None:
        if self.bytes_per_s is not None:  # the limit may have been removed in the meantime
            self._paid_at += size / self.bytes_per_s

    async def _come_first(self, priority: Priority) -> None:
        mine = _WaitingPiece(trio.current_time() + priority.value, next(self._numbers))
        heapq.heappush(self._waiting, mine)
        try:
            await trio.lowlevel.checkpoint()  # so that tasks that ask now join the queue first
            while True:
                is_first = self._waiting[0] is mine
                free_at = self._free_at() if is_first else inf
                if free_at <= trio.current_time():
                    return
                with trio.move_on_at(free_at):
                    await mine.woken.wait()
                mine.woken = trio.Event()
        finally:
            self._waiting.remove(mine)
            heapq.heapify(self._waiting)
            if self._waiting:
                self._waiting[0].woken.set()

    def _free_at(self) -> float:
        """Return the time from which all traffic that has moved or was paid for is within the limit."""
        if self.bytes_per_s is None:
            return -inf
        unpaid = max(0, self._control_bytes() - self._control_paid)
        self._control_paid += unpaid
        self._paid_at = max(self._paid_at, trio.current_time() - BURST_S) + unpaid / self.bytes_per_s
        return self._paid_at
