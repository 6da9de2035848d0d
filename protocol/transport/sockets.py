"""Sockets under connections: the path of a socket to its peer (`Way`), its two endpoints, and unauthenticated sockets.

The `Way` is an attribute of one of the library's layers.  Most sockets were dialled at an address of the peer.  If a router
lets no connection in, `nat.traversal` finds other paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
"""Attributes under which each layer of a connection holds the next lower layer."""


class LinkKind(Enum):
    """The origin of a connection to a peer."""

    DIRECT = "direct"
    """One of the two peers dialled an address of the other."""
    REVERSED = "reversed"
    """A peer that could not be dialled was asked to dial the other peer."""
    PUNCHED = "punched"
    """Both peers dialled each other at the same moment, through their routers."""
    RELAYED = "relayed"
    """The bytes pass through a third peer that both peers can reach."""


@dataclass(frozen=True)
class Way:
    """The path of a connection.

    relay: the peer in between, if any.  bytes_per_s: the relay's rate for all circuits.  seen: the endpoint at which it sees
    the peer, or an invalid one; None without a relay.
    """

    kind: LinkKind = LinkKind.DIRECT
    relay: PeerId | None = None
    bytes_per_s: float = inf
    seen: End | None = None


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
    """Return the `Way` of a connection of the library."""
    return next((way for layer in layers(connection) if isinstance(way := getattr(layer, "way", None), Way)), DIRECT)


def is_dialled(connection: Connection) -> bool | None:
    """Return True if we dialled the peer's listening port, False if the peer dialled ours, None for any other connection.

    The peer that begins the library's handshake may not have dialled: a peer that was asked to dial lets the asker begin.
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
    """Return the library's stream over a socket, marked with the socket's `Way`."""
    return _marked_class()(socket, way)


@cache
def _marked_class() -> type[Any]:
    """Return the class of marked streams, defined here because its base is slow to import."""
    from libp2p.io.trio import TrioTCPStream

    class MarkedStream(TrioTCPStream):
        def __init__(self, stream: trio.SocketStream, way: Way) -> None:
            super().__init__(stream)
            self.way = way

    return MarkedStream


def _has_slot(layer: object, name: str) -> bool:
    return name in getattr(type(layer), "__slots__", ())


# ------------------------------------------------------------------------------------------------------------------------
# Both endpoints of the socket under a connection of the library, which itself reports the remote endpoint only for IPv4.


End = tuple[str, int]
"""An endpoint: IP address and TCP port."""


class Socket(Protocol):
    """The methods that we use of a socket of trio or of Python."""

    def getsockname(self) -> Any:
        """Return our endpoint."""

    def getpeername(self) -> Any:
        """Return the other endpoint."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return the raw value of an option."""


def local_end(connection: object) -> End | None:
    """Return our endpoint; None if the socket is closed or the library has changed its layers."""
    sock = socket_of(connection)
    return local_end_of(sock) if sock is not None else None


def remote_end(connection: object) -> End | None:
    """Return the peer's endpoint; None in the cases of `local_end`, if the peer has gone, and on a relayed connection."""
    sock = socket_of(connection)
    return remote_end_of(sock) if sock is not None and way_of(connection).relay is None else None


def local_end_of(sock: Socket) -> End | None:
    """Return our endpoint; None if the socket is closed."""
    return _named(sock.getsockname)


def remote_end_of(sock: Socket) -> End | None:
    """Return the other endpoint; None if either end has closed the socket."""
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
# Bytes of one size on a socket.


class GoneAway(Exception):
    """The error for a socket that the other end closed before it had sent all data."""


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
