"""What one libp2p connection may cost, whatever is spoken on it: frames, streams, unread bytes, and who may have one.

The library announces a receive window for each stream and then takes whatever comes; it opens as many streams as are
asked for.  Here both have an end, and so has waiting for a peer that does not read.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import trio

from protocol.network.libp2p.conduct import FLOOD, OVER, Channel, Conduct
from protocol.wire.identity import PeerId

MAX_STREAMS_PER_PEER = 48
"""Streams that one peer has opened to us: its questions, its gossip, handshakes of its bulk sockets."""
LARGEST_FRAME = 1 << 20
"""Of yamux; everybody sends at most 64 KiB."""


def guard_connections(swarm: Any, conduct: Conduct) -> None:
    """From now on the connections of `swarm` answer to `conduct`.  The library makes no other yamux than its own."""
    muxers, guarded = swarm.upgrader.muxer_multistream, _guarded_yamux(conduct)

    async def new_connection(conn: Any, peer_id: Any) -> Any:
        protocol, _ = await muxers._selector.select(conn, conn.is_initiator, muxers.negotiate_timeout)
        return muxers._annotate_connection(guarded(conn, peer_id, is_initiator=conn.is_initiator), conn, protocol)

    muxers.new_conn = new_connection
    swarm._stream_semaphore = None  # one for all peers: whoever holds many streams would hold up everybody


def _guarded_yamux(conduct: Conduct) -> Any:
    from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, TYPE_PING, Yamux

    class Counted:
        """A secured connection that counts the heads of frames as they are read."""

        def __init__(self, inner: Any, peer: PeerId) -> None:
            self._inner, self._peer = inner, peer

        async def read(self, n: int | None = None) -> Any:
            data = await self._inner.read(n)
            if n == HEADER_SIZE and len(data) == n:
                channel = Channel.PING if data[1] == TYPE_PING else Channel.FRAME
                if not conduct.spend(self._peer, channel):
                    raise ConnectionError("a peer that is banned")
            return data

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    class GuardedYamux(Yamux):
        def __init__(self, secured_conn: Any, peer_id: Any, *rest: Any, **named: Any) -> None:
            self._sender = PeerId(peer_id.to_base58())
            self.ended = trio.Event()
            """The connection is over, whoever ended it."""
            super().__init__(Counted(secured_conn, self._sender), peer_id, *rest, **named)  # type: ignore[arg-type]

        async def start(self) -> None:
            try:
                await super().start()
            finally:
                self.ended.set()

        async def _read_data_body(self, length: int) -> bytes:
            """Before a frame's data is read: the windows of all streams are the most that may lie here unread."""
            unread = sum(map(len, self.stream_buffers.values()))
            allowed = sum(stream.target_recv_window for stream in self.streams.values())
            if length > LARGEST_FRAME or unread + length > allowed + LARGEST_FRAME:
                conduct.offend(self._sender, FLOOD, "more data than its window allows")
                raise ConnectionError("a peer that overruns its window")
            return await super()._read_data_body(length)

    return GuardedYamux


class Bounds:
    """What libp2p asks before it takes a connection or a stream.  Takes the place of its resource manager.

    That one counts connections and streams and miscounts those that end at the wrong moment (a stream that closes before
    its direction is noted, a connection refused after it was counted); what is lost that way never comes back.
    """

    connection_lifecycle = graceful_degradation = None
    limits = SimpleNamespace(max_streams=1)  # of a semaphore that `guard_connections` takes away

    def __init__(self, conduct: Conduct) -> None:
        self._conduct = conduct
        self._streams: Counter[str] = Counter()

    def open_connection(self, peer_id: Any = None, endpoint_ip: str | None = None, direction: str = "inbound") -> Any:
        """A scope with nothing in it, or None to refuse."""
        if peer_id is not None and self._conduct.is_banned(PeerId(str(peer_id))):
            return None
        return SimpleNamespace(close=lambda: None)

    def acquire_stream(self, peer_id: str, direction: Any) -> bool:
        if direction.name != "INBOUND":
            return True
        if self._streams[peer_id] >= MAX_STREAMS_PER_PEER:
            self._conduct.offend(PeerId(peer_id), OVER, "too many open streams")
            return False
        self._streams[peer_id] += 1
        return True

    def release_stream(self, peer_id: str, direction: Any) -> None:
        if direction.name == "INBOUND" and self._streams[peer_id] > 1:
            self._streams[peer_id] -= 1
        elif direction.name == "INBOUND":
            del self._streams[peer_id]

    def disconnected(self, peer: PeerId) -> None:
        """The last connection of `peer` has ended, and all streams with it."""
        self._streams.pop(peer, None)
