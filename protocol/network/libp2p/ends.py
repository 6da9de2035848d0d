"""The two ends of the socket under a connection of the library, which tells the remote one for IPv4 only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

LAYERS = ("muxed_conn", "secured_conn", "_inner", "read_write_closer", "read_writer", "conn", "stream", "socket")
"""Names under which the layers of a connection hold the next lower one."""

End = tuple[str, int]
"""IP address and TCP port."""


class Socket(Protocol):
    """What is asked of a socket here, trio's or Python's."""

    def getsockname(self) -> Any: ...

    def getpeername(self) -> Any: ...

    def getsockopt(self, level: int, option: int, size: int) -> bytes: ...


def local_end(connection: object) -> End | None:
    """Our end; None when the socket is closed, or the library has changed its layers."""
    sock = socket_of(connection)
    return local_end_of(sock) if sock is not None else None


def remote_end(connection: object) -> End | None:
    """The other end; None likewise."""
    sock = socket_of(connection)
    return _named(sock.getpeername) if sock is not None else None


def local_end_of(sock: Socket) -> End | None:
    """Our end; None when the socket is closed."""
    return _named(sock.getsockname)


def _named(name: Callable[[], Any]) -> End | None:
    try:
        ip, port = name()[:2]
    except (OSError, ValueError):
        return None
    return str(ip), int(port)


def socket_of(connection: object) -> Socket | None:
    """The socket under it; None when the library has changed its layers."""
    layer = connection
    for _ in range(2 * len(LAYERS)):
        if hasattr(layer, "getpeername") or hasattr(layer, "getsockname"):
            return cast(Socket, layer)
        name = next((name for name in LAYERS if name in getattr(layer, "__dict__", {}) or _has_slot(layer, name)), None)
        if name is None:
            return None
        layer = getattr(layer, name)
    return None


def _has_slot(layer: object, name: str) -> bool:
    return name in getattr(type(layer), "__slots__", ())
