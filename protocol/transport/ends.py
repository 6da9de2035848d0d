"""Both ends of the socket under a connection of the library.  The library itself tells the remote end for IPv4 only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from protocol.transport.way import layers, way_of

End = tuple[str, int]
"""IP address and TCP port."""


class Socket(Protocol):
    """The methods that we use of a socket, trio's or Python's."""

    def getsockname(self) -> Any: ...

    def getpeername(self) -> Any: ...

    def getsockopt(self, level: int, option: int, size: int) -> bytes: ...


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
