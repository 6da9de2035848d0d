"""The mirror: tells whoever comes at which IP address and port it is seen.

A router that translates addresses gives a socket another port outside; from the same port inside, many give the same one
whoever is dialled.  Who is shown what it has may tell others to dial it there.
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
"""An IP address, an IPv4 one as mapped to IPv6, and a port."""


def write_end(end: End) -> bytes:
    """Its form on the wire."""
    ip = ipaddress.ip_address(end[0].partition("%")[0])
    return END.pack(ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed, end[1])


def read_end(data: bytes) -> End:
    """The end in 18 bytes, which may be any."""
    packed, port = END.unpack(data)
    ip = ipaddress.IPv6Address(packed)
    return str(address_of(str(ip)) or ip), port


class Mirror:
    """Answers on sockets that begin with its byte."""

    def __init__(self, doorstep: Doorstep) -> None:
        self._doorstep = doorstep

    async def accept(self, sock: trio.socket.SocketType, address: str) -> None:
        """Tell one, and wait until it has gone."""
        with self._doorstep.waits(sock, address), trio.move_on_after(MIRROR_S):
            await receive(sock, 1)
            await send(sock, write_end(sock.getpeername()[:2]))
            await sock.recv(1)


async def seen_at(sock: trio.socket.SocketType, mirror: End) -> End:
    """Where `sock`, which is bound and not connected, is seen by the mirror.  Raises OSError and trio.TooSlowError."""
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
    """A port of ours, and the one at which each of `mirrors` that answers sees it.  Raises OSError."""
    port, seen = 0, list[int]()
    for mirror in mirrors:
        sock = reusable_socket(port)
        with sock, suppress(OSError, trio.TooSlowError):
            port = sock.getsockname()[1]
            seen.append((await seen_at(sock, mirror))[1])
    return port, seen


def reusable_socket(port: int = 0) -> trio.socket.SocketType:
    """A socket for IPv4 bound to a port which others of ours may use as well, to dial others from there.  Raises OSError."""
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
