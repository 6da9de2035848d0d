"""The two ends of the socket under a connection of the library, which tells the remote one for IPv4 only."""

from __future__ import annotations

LAYERS = ("muxed_conn", "secured_conn", "_inner", "read_write_closer", "read_writer", "conn", "stream", "socket")
"""Names under which the layers of a connection hold the next lower one."""

End = tuple[str, int]
"""IP address and TCP port."""


def local_end(connection: object) -> End | None:
    """Our end; None when the socket is closed, or the library has changed its layers."""
    return _end(connection, "getsockname")


def remote_end(connection: object) -> End | None:
    """The other end; None likewise."""
    return _end(connection, "getpeername")


def _end(layer: object, which: str) -> End | None:
    for _ in range(2 * len(LAYERS)):
        if hasattr(layer, which):
            try:
                ip, port = getattr(layer, which)()[:2]
            except (OSError, ValueError):
                return None
            return str(ip), int(port)
        name = next((name for name in LAYERS if name in getattr(layer, "__dict__", {}) or _has_slot(layer, name)), None)
        if name is None:
            return None
        layer = getattr(layer, name)
    return None


def _has_slot(layer: object, name: str) -> bool:
    return name in getattr(type(layer), "__slots__", ())
