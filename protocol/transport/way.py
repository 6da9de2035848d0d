"""The way by which a socket leads to its peer, as a mark in the layers of the library.

Most sockets were dialled at an address of the peer.  If a router lets no connection in, `traversal` finds other ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

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
