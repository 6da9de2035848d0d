"""Sockets that have come to where we listen, are no connections of libp2p, and have not proved their right yet.

They prove it within milliseconds, so an honest one is through before it is in anybody's way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

MAX_PENDING = 64
"""At one time.  The next one replaces the oldest from the address with the most of them."""


class GoneAway(Exception):
    """The other end closed its socket before it said all."""


class Doorstep:
    """Those of one peer, whatever they are to be."""

    def __init__(self) -> None:
        self._waiting: dict[trio.socket.SocketType, str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def waits(self, sock: trio.socket.SocketType, address: str) -> Iterator[None]:
        """A socket from this address waits here for the length of the block, or until it is closed to make room."""
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
    """Exactly so many bytes.  Raises `GoneAway`, and OSError or trio.ClosedResourceError."""
    data = b""
    while len(data) < size:
        more = await sock.recv(size - len(data))
        if not more:
            raise GoneAway("the other end closed its socket")
        data += more
    return data


async def send(sock: trio.socket.SocketType, data: bytes | memoryview) -> None:
    """All of it.  Raises OSError or trio.ClosedResourceError."""
    view = memoryview(data)
    while len(view):
        view = view[await sock.send(view) :]
