"""By which way a socket leads to its peer, and how the layers of the library carry that knowledge.

Most sockets were dialled at an address of the peer.  Where a router lets nobody in, `traversal` finds other ways.
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
    """How a connection to a peer came about."""

    DIRECT = "direct"
    """One of the two dialled an address of the other."""
    REVERSED = "reversed"
    """The peer was asked to dial us, as it could not be dialled."""
    PUNCHED = "punched"
    """Both dialled each other at the same moment, through their routers."""
    RELAYED = "relayed"
    """Through a third peer, which both reach."""


@dataclass(frozen=True)
class Way:
    """kind: how it came about.  relay: the peer in between, if there is one.  bytes_per_s: what it carries for all."""

    kind: LinkKind = LinkKind.DIRECT
    relay: PeerId | None = None
    bytes_per_s: float = inf


DIRECT = Way()


def layers(connection: object) -> Iterator[object]:
    """The connection and the layers under it, down to the socket, as far as the library has not changed them."""
    layer = connection
    for _ in range(2 * len(LAYERS)):
        yield layer
        name = next((name for name in LAYERS if name in getattr(layer, "__dict__", {}) or _has_slot(layer, name)), None)
        if name is None:
            return
        layer = getattr(layer, name)


def way_of(connection: object) -> Way:
    """The way of a connection of the library."""
    return next((way for layer in layers(connection) if isinstance(way := getattr(layer, "way", None), Way)), DIRECT)


def is_dialled(connection: Connection) -> bool | None:
    """Whether we have dialled the peer where it listens; False if it has dialled us there, None if neither has.

    Who speaks first in the library's handshake says nothing about that: a peer that was asked to dial lets the other speak.
    """
    kind, speaks_first = way_of(connection).kind, is_outbound(connection)
    if kind not in (LinkKind.DIRECT, LinkKind.REVERSED) or not (speaks_first or is_inbound(connection)):
        return None
    return speaks_first is (kind is LinkKind.DIRECT)


def raw_connection(socket: trio.SocketStream, way: Way, *, dialled: bool) -> RawConnection:
    """The library's connection over this socket, not yet encrypted."""
    from libp2p.connection_types import ConnectionType
    from libp2p.network.connection.raw_connection import RawConnection

    kind = ConnectionType.DIRECT if way.relay is None else ConnectionType.RELAYED
    return RawConnection(marked_stream(socket, way), dialled, kind)


def marked_stream(socket: trio.SocketStream, way: Way) -> Any:
    """The library's stream over a socket, which knows its way."""
    return _marked_class()(socket, way)


@cache
def _marked_class() -> type[Any]:
    """Made here because its base is heavy to import."""
    from libp2p.io.trio import TrioTCPStream

    class MarkedStream(TrioTCPStream):
        def __init__(self, stream: trio.SocketStream, way: Way) -> None:
            super().__init__(stream)
            self.way = way

    return MarkedStream


def _has_slot(layer: object, name: str) -> bool:
    return name in getattr(type(layer), "__slots__", ())
