"""Measurements of the rate of bulk data, and what follows from them.

`Gauge` measures what the links can carry: the best of the recent seconds in which data moved, counted by the kernel where it
tells (acknowledged and received bytes, so that a full buffer is not taken for bandwidth).

`pace` shares our line out to the sockets that use it.  Without it, one TCP connection may get a third of what another
gets over a full line, for the length of an exchange, which then ends with one flow alone on lines that idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from math import inf

from protocol.network.libp2p.link import SocketState

WINDOW_S = 1.0
WINDOWS = 64
SMALLEST_SAMPLE_BYTES = 256 << 10
PACED_BELOW = 125e6
"""Bytes a second from which a line is left to TCP: there the processor is the limit."""
GROWTH = 1.04
"""The line is offered this much more than it was seen to carry, so that the measurement can grow."""
FORGET_S = 600.0
"""Measurements of the line that are older are dropped."""
USED = 0.9
"""A window measures the line if it carried so much of what it was offered; otherwise other lines were the limit."""


class Gauge:
    """Measures the bytes a second that the bulk sockets together carry, up and down; 0 while nothing is known."""

    def __init__(self) -> None:
        self._up: deque[float] = deque(maxlen=WINDOWS)
        self._down: deque[float] = deque(maxlen=WINDOWS)
        self._full: deque[tuple[float, float]] = deque(maxlen=WINDOWS)
        self._before: dict[Hashable, SocketState] = {}
        self._at = 0.0

    def read(self, states: Mapping[Hashable, SocketState], now: float, offered: float) -> None:
        """Take the states of all sockets, about every `WINDOW_S`.  A window in which little moved is ignored.

        offered: bytes a second that the sockets were allowed all the time; 0 when there was not always something to send.
        """
        seconds, up, down = now - self._at, 0, 0
        for link, state in states.items():
            before = self._before.get(link)
            if before is not None:
                up += state.acked_bytes - before.acked_bytes
                down += state.received_bytes - before.received_bytes
        if self._before and seconds > 0:
            for size, rates in ((up, self._up), (down, self._down)):
                if size >= SMALLEST_SAMPLE_BYTES:
                    rates.append(size / seconds)
            if up >= SMALLEST_SAMPLE_BYTES and offered and (offered == inf or up / seconds >= USED * offered):
                self._full.append((now, up / seconds))
        while self._full and now - self._full[0][0] > FORGET_S:
            self._full.popleft()
        self._before, self._at = dict(states), now

    @property
    def up_bytes_per_s(self) -> float:
        """The best of the recent windows."""
        return max(self._up, default=0.0)

    @property
    def down_bytes_per_s(self) -> float:
        """The best of the recent windows."""
        return max(self._down, default=0.0)

    @property
    def line_bytes_per_s(self) -> float:
        """The rate of our line in windows in which it was always in use; 0 while that is not known."""
        return max((rate for _, rate in self._full), default=0.0)


def pace(line_bytes_per_s: float, flows: int) -> float:
    """Bytes a second at which each of the flows on a line may go; infinite where there is nothing to share out."""
    return line_bytes_per_s * GROWTH / flows if flows and 0 < line_bytes_per_s < PACED_BELOW else inf
