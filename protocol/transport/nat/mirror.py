"""The mirror: tells each peer that connects the IP address and port at which we see it.

A router that translates addresses gives a socket another port outside.  Many routers give the same outside port to the same
inside port, whichever address is dialled.  So a peer that knows its outside port can tell others to dial it there.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

import trio

from protocol.transport.doorstep import Doorstep, receive, send
from protocol.transport.ends import End
from protocol.transport.nat.dead_ends import address_of

FIRST_BYTE = b"\xb3"
MIRROR_S = 3.0
END = struct.Struct(">16sH")
"""An IP address (IPv4 as mapped to IPv6) and a port."""


def write_end(end: End) -> bytes:
    """Encode an end for the wire."""
    ip = ipaddress.ip_address(end[0].partition("%")[0])
    return END.pack(ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed, end[1])


def read_end(data: bytes) -> End:
    """Decode an end from any 18 bytes."""
    packed, port = END.unpack(data)
    ip = ipaddress.IPv6Address(packed)
    return str(address_of(str(ip)) or ip), port


class Mirror:
    """The answers on sockets that begin with `FIRST_BYTE`."""

    def __init__(self, doorstep: Doorstep) -> None:
        self._doorstep = doorstep

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """Tell the other end of a socket where we see it, and wait until it closes the socket, for `MIRROR_S` in all."""
        with self._doorstep.waits(sock, address), trio.move_on_after(MIRROR_S):
            await receive(sock, 1)
            await send(sock, write_end(sock.getpeername()[:2]))
            await sock.recv(1)


async def seen_at(sock: trio.socket.SocketType, mirror: End) -> End:
    """Return the end at which a mirror sees `sock`, bound and not yet connected.  Raises OSError or trio.TooSlowError."""
    with trio.fail_after(MIRROR_S):
        await sock.connect(mirror)
        await send(sock, FIRST_BYTE)
        data = b""
        while len(data) < END.size and (more := await sock.recv(END.size - len(data))):
            data += more
    if len(data) < END.size:
        raise OSError("the mirror says nothing")
    return read_end(data)


async def ports_outside(mirrors: Sequence[End]) -> tuple[int, list[int]]:
    """Return a port of ours, and the port at which each answering mirror sees it.  Raises OSError."""
    port, seen = 0, list[int]()
    for mirror in mirrors:
        sock = reusable_socket(port)
        with sock, suppress(OSError, trio.TooSlowError):
            port = sock.getsockname()[1]
            seen.append((await seen_at(sock, mirror))[1])
    return port, seen


def reusable_socket(port: int = 0) -> trio.socket.SocketType:
    """Return an IPv4 socket, to dial from, bound to a port that our other sockets may use too.  Raises OSError."""
    bare = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bare.bind(("0.0.0.0", port))  # noqa: S104 - to dial from, not to listen
        bare.setblocking(False)
    except OSError:
        bare.close()
        raise
    return trio.socket.from_stdlib_socket(bare)
