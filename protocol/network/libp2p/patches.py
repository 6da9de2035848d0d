"""What py-libp2p 0.8.1 does too slowly or too rashly, corrected once per process.

1. Receive credit: stock sends a window update for every read, even of one byte; we wait for half a window.
2. Send: stock polls the window every 10 ms and resets the stream of a reader that stalls for 5 s; we wait for an event.
3. Frame write: cancelling one in the middle leaves half a frame behind and desynchronises Noise for all streams; a
   write that has begun is shielded, and ends the connection when the peer does not read for `STALL_S`.
4. Gossip: stock verifies the same signed peer record on every message; we remember the last one that was good.
5. Identify: stock names the library, and takes an answer of 1 MiB; we say what program this is, and take `IDENTIFY_BYTES`.

Inbound connections are `door`'s, connections' and streams' counts `guard`'s.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import trio

from protocol.version import version

STALL_S = 10.0
IDENTIFY_BYTES = 16 << 10
_MAX_RECORDS = 1024
_applied = False


def apply() -> None:
    """Patch the library; does nothing the second time."""
    global _applied
    if _applied:
        return
    _applied = True
    _patch_yamux()
    _patch_signed_records()
    _patch_identify()


def _patch_yamux() -> None:
    from libp2p.stream_muxer.exceptions import MuxedStreamError
    from libp2p.stream_muxer.yamux import yamux

    header = struct.Struct(yamux.YAMUX_HEADER_FORMAT)
    largest = yamux.MAX_MESSAGE_SIZE - yamux.HEADER_SIZE

    async def credit(self: Any, *, bytes_read: int = 0) -> None:
        self._pending_recv_release += bytes_read
        if self._pending_recv_release * 2 < self.target_recv_window or self.recv_closed:
            return
        increment = self._pending_recv_release
        self._pending_recv_release = 0
        if self.target_recv_window < yamux.MAX_WINDOW_SIZE:
            increment += self.target_recv_window
            self.target_recv_window *= 2
        self.recv_window += increment
        await self.send_window_update(increment)

    async def write(self: Any, data: bytes) -> None:
        view = memoryview(data)
        sent = 0
        async with self.rw_lock.write_lock():
            while sent < len(view):
                if self.send_closed or self.closed:
                    raise MuxedStreamError("Stream is closed for sending")
                if self.send_window <= 0:
                    await _window_opens(self)
                    continue
                size = min(self.send_window, largest, len(view) - sent)
                self.send_window -= size
                frame = header.pack(0, yamux.TYPE_DATA, 0, self.stream_id, size) + view[sent : sent + size]
                await self.conn._write_frame(frame)
                sent += size

    async def write_frame(self: Any, data: bytes) -> None:
        async with self._write_lock:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STALL_S) as scope:
                await self.secured_conn.write(data)
            if scope.cancelled_caught:
                self.event_shutting_down.set()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                    await self.secured_conn.close()
                raise MuxedStreamError(f"the peer has read nothing for {STALL_S:g} s")

    stream: Any = yamux.YamuxStream
    stream._auto_tune_and_send_window_update = credit
    stream.write = write
    stream.send_window = _SendWindow()
    connection: Any = yamux.Yamux
    connection._write_frame = write_frame


async def _window_opens(stream: Any) -> None:
    event = stream.__dict__.get("_window_event")
    if event is None or event.is_set():
        event = stream._window_event = trio.Event()
    with trio.move_on_after(0.5):  # a stream that closes sets no event: look again
        await event.wait()


class _SendWindow:
    """The attribute `send_window`, which wakes the writer when credit arrives."""

    def __get__(self, stream: Any, owner: type | None = None) -> Any:
        return self if stream is None else stream.__dict__["_send_window"]

    def __set__(self, stream: Any, value: int) -> None:
        stream.__dict__["_send_window"] = value
        event = stream.__dict__.get("_window_event")
        if value > 0 and event is not None:
            event.set()


def _patch_signed_records() -> None:
    from libp2p.pubsub import gossipsub, pubsub, utils

    modules: tuple[Any, ...] = (utils, gossipsub, pubsub)
    original = modules[0].maybe_consume_signed_record
    seen: dict[tuple[int, Any], bytes] = {}

    def remembered(message: Any, host: Any, peer_id: Any) -> bool:
        record = message.senderRecord if message.HasField("senderRecord") else b""
        key = (id(host), peer_id)
        if record and seen.get(key) == record:
            return True
        good = bool(original(message, host, peer_id))
        if good and record:
            while len(seen) >= _MAX_RECORDS:
                seen.pop(next(iter(seen)))
            seen[key] = record
        return good

    for module in modules:
        if hasattr(module, "maybe_consume_signed_record"):
            module.maybe_consume_signed_record = remembered


def _patch_identify() -> None:
    from libp2p.host import basic_host
    from libp2p.identity.identify import identify

    host: Any = basic_host
    host.read_length_prefixed_protobuf = partial(host.read_length_prefixed_protobuf, max_length=IDENTIFY_BYTES)
    identify.AGENT_VERSION = agent_version()
    identify.PROTOCOL_VERSION = "manyhands/1"


def agent_version() -> str:
    """What identify says that we are."""
    return f"manyhands/{version()}"
