"""Inbound sockets that are not libp2p connections and have not yet proved their right to be served.

An honest peer proves it within milliseconds, so its socket is through before it is in anyone's way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

MAX_PENDING = 64
"""Sockets that wait at one time.  One more replaces the oldest from the address with the most of them."""


class GoneAway(Exception):
    """The other end closed its socket before it had sent everything."""


class Doorstep:
    """The waiting sockets of our peer, for every purpose."""

    def __init__(self) -> None:
        self._waiting: dict[trio.socket.SocketType, str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def waits(self, sock: trio.socket.SocketType, address: str) -> Iterator[None]:
        """Count a socket from this address as waiting during the block.  It may be closed to make room for another."""
        if len(self._waiting) >= MAX_PENDING:
            (busiest, _), *_ = Counter(self._waiting.values()).most_common(1)
            oldest = next(other for other, where in self._waiting.items() if where == busiest)
            del self._waiting[oldest]
            oldest.close()
        self._waiting[sock] = address
        try:
            yield
        finally:
            self._waiting.pop(sock, None)


async def receive(sock: trio.socket.SocketType, size: int) -> bytes:
    """Return exactly `size` bytes.  Raises `GoneAway`, OSError or trio.ClosedResourceError."""
    data = b""
    while len(data) < size:
        more = await sock.recv(size - len(data))
        if not more:
            raise GoneAway("the other end closed its socket")
        data += more
    return data


async def send(sock: trio.socket.SocketType, data: bytes | memoryview) -> None:
    """Send all of `data`.  Raises OSError or trio.ClosedResourceError."""
    view = memoryview(data)
    while len(view):
        view = view[await sock.send(view) :]
