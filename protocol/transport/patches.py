"""Corrections of py-libp2p 0.8.1, applied once per process.

1. Receive credit: the library sends a window update for every read, even of one byte; we wait for half a window.
2. Send: the library polls the window every 10 ms and resets the stream of a reader that stalls for 5 s; we wait for an
   event.
3. Frame write: a write cancelled half-way leaves half a frame behind and desynchronises Noise for all streams; we shield a
   write once it has begun, and end the connection if the peer reads nothing for `STALL_S`.
4. Identify: the library gives its own name and accepts an answer of 1 MiB; we give this program's name and accept
   `IDENTIFY_BYTES`.
5. IPv6: a socket that listens at all IPv6 addresses would also take the IPv4 addresses of its port; we restrict it to IPv6.

`inbound` replaces the handling of inbound connections, `connection_limits` the counts of connections and streams.
"""

from __future__ import annotations

import socket
import struct
from functools import partial
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream
from protocol.version import version

STALL_S = 10.0
IDENTIFY_BYTES = 16 << 10
_applied = False


def apply() -> None:
    """Patch the library.  Later calls do nothing."""
    global _applied
    if _applied:
        return
    _applied = True
    _patch_yamux()
    _patch_identify()
    _patch_ipv6()


def _patch_ipv6() -> None:
    from libp2p.transport.tcp import tcp

    reuse = tcp._set_reuse_flags

    def set_flags(sock: trio.socket.SocketType) -> None:
        reuse(sock)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    _replace(tcp, "_set_reuse_flags", set_flags)


def _patch_yamux() -> None:
    from libp2p.stream_muxer.yamux import yamux

    _replace(yamux.YamuxStream, "_auto_tune_and_send_window_update", _credit)
    _replace(yamux.YamuxStream, "write", _write)
    _replace(yamux.YamuxStream, "send_window", _SendWindow())
    _replace(yamux.Yamux, "_write_frame", _write_frame)


def _replace(owner: object, name: str, value: object) -> None:
    """Set an attribute of the library; its annotations do not allow a plain assignment."""
    setattr(owner, name, value)


async def _credit(self: YamuxStream, *, bytes_read: int = 0) -> None:
    """Grant credit once half a window was read.  Replaces `YamuxStream._auto_tune_and_send_window_update`."""
    from libp2p.stream_muxer.yamux.yamux import MAX_WINDOW_SIZE

    self._pending_recv_release += bytes_read
    if self._pending_recv_release * 2 < self.target_recv_window or self.recv_closed:
        return
    increment = self._pending_recv_release
    self._pending_recv_release = 0
    if self.target_recv_window < MAX_WINDOW_SIZE:
        increment += self.target_recv_window
        self.target_recv_window *= 2
    self.recv_window += increment
    await self.send_window_update(increment)


async def _write(self: YamuxStream, data: bytes) -> None:
    """Write `data`, waiting for credit by event.  Replaces `YamuxStream.write`."""
    from libp2p.stream_muxer.exceptions import MuxedStreamError
    from libp2p.stream_muxer.yamux import yamux

    view, sent = memoryview(data), 0
    async with self.rw_lock.write_lock():
        while sent < len(view):
            if self.send_closed or self.closed:
                raise MuxedStreamError("Stream is closed for sending")
            if self.send_window <= 0:
                await _window_opens(self)
                continue
            size = min(self.send_window, yamux.MAX_MESSAGE_SIZE - yamux.HEADER_SIZE, len(view) - sent)
            self.send_window -= size
            header = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_DATA, 0, self.stream_id, size)
            await self.conn._write_frame(header + view[sent : sent + size])
            sent += size


async def _write_frame(self: Yamux, data: bytes) -> None:
    """Write one frame, shielded from cancellation.  Replaces `Yamux._write_frame`."""
    from libp2p.stream_muxer.exceptions import MuxedStreamError

    async with self._write_lock:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STALL_S) as scope:
            await self.secured_conn.write(data)
        if scope.cancelled_caught:
            self.event_shutting_down.set()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self.secured_conn.close()
            raise MuxedStreamError(f"the peer has read nothing for {STALL_S:g} s")


async def _window_opens(stream: YamuxStream) -> None:
    """Wait until the other end may have granted credit, 0.5 s at most."""
    event = stream.__dict__.get("_window_event")
    if event is None or event.is_set():
        event = stream.__dict__["_window_event"] = trio.Event()
    with trio.move_on_after(0.5):  # closing a stream sets no event, so the caller must check again
        await event.wait()


class _SendWindow:
    """The attribute `send_window` of a stream (bytes), which wakes the writer when credit arrives."""

    def __get__(self, stream: object, owner: type | None = None) -> object:
        return self if stream is None else stream.__dict__["_send_window"]

    def __set__(self, stream: object, value: int) -> None:
        stream.__dict__["_send_window"] = value
        event = stream.__dict__.get("_window_event")
        if value > 0 and event is not None:
            event.set()


def _patch_identify() -> None:
    from libp2p.host import basic_host
    from libp2p.identity.identify import identify

    limited = partial(vars(basic_host)["read_length_prefixed_protobuf"], max_length=IDENTIFY_BYTES)
    _replace(basic_host, "read_length_prefixed_protobuf", limited)
    _replace(identify, "AGENT_VERSION", agent_version())
    _replace(identify, "PROTOCOL_VERSION", "manyhands/1")


def agent_version() -> str:
    """Return our name and version, as the protocol `identify` gives them to peers."""
    return f"manyhands/{version()}"
