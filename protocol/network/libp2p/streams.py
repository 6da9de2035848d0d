"""Frames on a libp2p stream: four bytes of length, then that many bytes.  Shared by requests and the bulk handshake."""

from __future__ import annotations

import struct
from typing import Any

import trio

from protocol.network.interface import NetworkError, Unreachable

_LENGTH = struct.Struct(">I")


class BadFrame(NetworkError):
    """The other end sent something that is no frame."""


async def read_exactly(stream: Any, size: int) -> bytes:
    """`size` bytes; raises whatever the stream raises, or `Unreachable` at its end."""
    parts = bytearray()
    while len(parts) < size:
        data = await stream.read(min(size - len(parts), 1 << 16))
        if not data:
            raise Unreachable("the stream ended early")
        parts += data
    return bytes(parts)


async def read_length(stream: Any, max_bytes: int) -> int:
    """How many bytes the frame that begins here has; raises `BadFrame` for more than `max_bytes`."""
    (size,) = _LENGTH.unpack(await read_exactly(stream, _LENGTH.size))
    if size > max_bytes:
        raise BadFrame(f"a frame of {size} bytes is over the limit of {max_bytes}")
    return int(size)


async def read_frame(stream: Any, max_bytes: int) -> bytes:
    return await read_exactly(stream, await read_length(stream, max_bytes))


async def write_frame(stream: Any, data: bytes) -> None:
    await stream.write(_LENGTH.pack(len(data)) + data)


async def discard(stream: Any) -> None:
    """Reset a stream, whatever state it is in; never raises, at most two seconds."""
    with trio.CancelScope(deadline=trio.current_time() + 2, shield=True):
        try:
            await stream.reset()
        except Exception:  # noqa: BLE001 - the stream is being thrown away
            return


async def finish(stream: Any) -> None:
    """Close a stream in good order, at most two seconds."""
    with trio.CancelScope(deadline=trio.current_time() + 2, shield=True):
        try:
            await stream.close()
        except Exception:  # noqa: BLE001 - the answer is already sent; the peer may be gone
            return
