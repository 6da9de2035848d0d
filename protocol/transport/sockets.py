"""Sockets under connections: the way by which a socket leads to its peer, its two ends, and sockets that are still unproven.

The way is a mark in the layers of the library.  Most sockets were dialled at an address of the peer.  If a router lets no
connection in, `nat.traversal` finds other ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, cast

import trio

from protocol.transport.library import Connection, is_inbound, is_outbound
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from libp2p.network.connection.raw_connection import RawConnection


LAYERS = ("muxed_conn", "secured_conn", "_inner", "read_write_closer", "read_writer", "conn", "stream", "socket")
"""Names under which the layers of a connection hold the next lower one."""


class LinkKind(Enum):
    """The origin of a connection to a peer."""

    DIRECT = "direct"
    """One of the two dialled an address of the other."""
    REVERSED = "reversed"
    """The peer was asked to dial us, as it could not be dialled."""
    PUNCHED = "punched"
    """Both dialled each other at the same moment, through their routers."""
    RELAYED = "relayed"
    """The bytes pass through a third peer, which both reach."""


@dataclass(frozen=True)
class Way:
    """The way of a connection.  relay: the peer in between, if any.  bytes_per_s: rate that the relay carries for all."""

    kind: LinkKind = LinkKind.DIRECT
    relay: PeerId | None = None
    bytes_per_s: float = inf


DIRECT = Way()


def layers(connection: object) -> Iterator[object]:
    """Yield the connection and the layers under it, down to the socket, unless the library has changed its layers."""
    layer = connection
    for _ in range(2 * len(LAYERS)):
        yield layer
        name = next((name for name in LAYERS if name in getattr(layer, "__dict__", {}) or _has_slot(layer, name)), None)
        if name is None:
            return
        layer = getattr(layer, name)


def way_of(connection: object) -> Way:
    """Return the way of a connection of the library."""
    return next((way for layer in layers(connection) if isinstance(way := getattr(layer, "way", None), Way)), DIRECT)


def is_dialled(connection: Connection) -> bool | None:
    """Return True if we dialled the peer where it listens, False if it dialled us where we listen, None if neither did.

    The end that speaks first in the library's handshake may be either: a peer that was asked to dial lets the other begin.
    """
    kind, speaks_first = way_of(connection).kind, is_outbound(connection)
    if kind not in (LinkKind.DIRECT, LinkKind.REVERSED) or not (speaks_first or is_inbound(connection)):
        return None
    return speaks_first is (kind is LinkKind.DIRECT)


def raw_connection(socket: trio.SocketStream, way: Way, *, dialled: bool) -> RawConnection:
    """Return the library's connection over this socket, not yet encrypted."""
    from libp2p.connection_types import ConnectionType
    from libp2p.network.connection.raw_connection import RawConnection

    kind = ConnectionType.DIRECT if way.relay is None else ConnectionType.RELAYED
    return RawConnection(marked_stream(socket, way), dialled, kind)


def marked_stream(socket: trio.SocketStream, way: Way) -> Any:
    """Return the library's stream over a socket, marked with its way."""
    return _marked_class()(socket, way)


@cache
def _marked_class() -> type[Any]:
    """Return the class of marked streams, made here as its base is slow to import."""
    from libp2p.io.trio import TrioTCPStream

    class MarkedStream(TrioTCPStream):
        def __init__(self, stream: trio.SocketStream, way: Way) -> None:
            super().__init__(stream)
            self.way = way

    return MarkedStream


def _has_slot(layer: object, name: str) -> bool:
    return name in getattr(type(layer), "__slots__", ())


# ------------------------------------------------------------------------------------------------------------------------
# Both ends of the socket under a connection of the library.  The library itself tells the remote end for IPv4 only.


End = tuple[str, int]
"""IP address and TCP port."""


class Socket(Protocol):
    """The methods that we use of a socket, trio's or Python's."""

    def getsockname(self) -> Any:
        """Return our end."""

    def getpeername(self) -> Any:
        """Return the other end."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return the raw value of an option."""


def local_end(connection: object) -> End | None:
    """Return our end; None if the socket is closed or the library has changed its layers."""
    sock = socket_of(connection)
    return local_end_of(sock) if sock is not None else None


def remote_end(connection: object) -> End | None:
    """Return the peer's end; None as for `local_end`, and if the socket leads to a relay."""
    sock = socket_of(connection)
    return remote_end_of(sock) if sock is not None and way_of(connection).relay is None else None


def local_end_of(sock: Socket) -> End | None:
    """Return our end; None if the socket is closed."""
    return _named(sock.getsockname)


def remote_end_of(sock: Socket) -> End | None:
    """Return the other end; None if it has gone or the socket is closed."""
    return _named(sock.getpeername)


def _named(name: Callable[[], Any]) -> End | None:
    try:
        ip, port = name()[:2]
    except (OSError, ValueError):
        return None
    return str(ip), int(port)


def socket_of(connection: object) -> Socket | None:
    """Return the socket under a connection; None if the library has changed its layers."""
    found = (layer for layer in layers(connection) if hasattr(layer, "getpeername") or hasattr(layer, "getsockname"))
    return cast(Socket | None, next(found, None))


# ------------------------------------------------------------------------------------------------------------------------
# Inbound sockets that are not libp2p connections and have not yet proved their right to be served.
#
# An honest peer proves it within milliseconds, so its socket is through before it is in anyone's way.


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
