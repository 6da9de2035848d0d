"""Frames on the socket between peer and trainer: four bytes of length, then a JSON object.

Both ends are our own and on one computer, so the limit only catches mistakes. The format is JSON because a trainer must run
without msgpack.
"""

from __future__ import annotations

import json
import socket
from typing import Any

HEADER_BYTES = 4
MAX_FRAME_BYTES = 1 << 16


def pack(message: dict[str, Any]) -> bytes:
    """Return the bytes of a frame that holds `message`."""
    body = json.dumps(message, separators=(",", ":")).encode()
    assert len(body) <= MAX_FRAME_BYTES, "a frame may only hold a command"
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def take(buffer: bytearray) -> dict[str, Any] | None:
    """Remove and return the first whole message of `buffer`, or None if no whole message has arrived."""
    if len(buffer) < HEADER_BYTES:
        return None
    size = int.from_bytes(buffer[:HEADER_BYTES], "big")
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
    if len(buffer) < HEADER_BYTES + size:
        return None
    message = json.loads(bytes(buffer[HEADER_BYTES : HEADER_BYTES + size]))
    del buffer[: HEADER_BYTES + size]
    if not isinstance(message, dict):
        raise TypeError("frame is not an object")
    return message


def receive(connection: socket.socket, buffer: bytearray) -> dict[str, Any] | None:
    """Wait for the next message and return it; return None if the other end has closed."""
    while (message := take(buffer)) is None:
        try:
            data = connection.recv(MAX_FRAME_BYTES)
        except ConnectionError:
            return None
        if not data:
            return None
        buffer += data
    return message
