"""Limits on one libp2p connection for all its protocols: frames, streams and unread bytes.

The library announces a receive window for each stream but accepts more, and it opens any number of streams.  Here both are
limited.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol, cast

import trio

from protocol.transport.library import HostConnections, LibraryId, peer_id_of
from protocol.transport.reputation import ABUSE, EXCESS, Channel, Reputation
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from libp2p.abc import IMuxedConn, ISecureConn
    from libp2p.peer.id import ID
    from libp2p.stream_muxer.yamux.yamux import Yamux

MAX_STREAMS_PER_PEER = 48
"""Most streams that one peer has opened to us: its questions, its gossip, the handshakes of its bulk sockets."""
MAX_FRAME_BYTES = 1 << 20
"""Largest frame of yamux; every honest peer sends at most 64 KiB."""


def limit_connections(swarm: HostConnections, reputation: Reputation) -> None:
    """Limit the frames and the unread bytes of every connection of `swarm` from now on.  All of them use yamux."""
    muxers, limited = swarm.upgrader.muxer_multistream, _limited_yamux(reputation)

    async def new_connection(conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, _ = await muxers._selector.select(conn, conn.is_initiator, muxers.negotiate_timeout)
        return muxers._annotate_connection(limited(conn, peer_id, is_initiator=conn.is_initiator), conn, protocol)

    muxers.new_conn = new_connection  # type: ignore[method-assign]
    swarm._stream_semaphore = None  # it is shared by all peers: one that holds many streams would hold up all others


class _FrameCounter:
    """A secured connection that counts yamux frames by their headers as they are read."""

    def __init__(self, inner: ISecureConn, peer: PeerId, reputation: Reputation) -> None:
        from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, TYPE_PING

        self._inner, self._peer, self._reputation = inner, peer, reputation
        self._header_bytes, self._ping = HEADER_SIZE, TYPE_PING

    async def read(self, n: int | None = None) -> bytes:
        data = await self._inner.read(n)
        if n == self._header_bytes and len(data) == n:
            channel = Channel.PING if data[1] == self._ping else Channel.FRAME
            if not self._reputation.spend(self._peer, channel):
                raise ConnectionError("a peer that is banned")
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def _limited_yamux(reputation: Reputation) -> type[Yamux]:
    """Return the class of multiplexed connections with our limits, made here as its base is slow to import."""
    from libp2p.stream_muxer.yamux.yamux import Yamux

    class LimitedYamux(Yamux):
        def __init__(self, secured_conn: ISecureConn, peer_id: ID, is_initiator: bool | None = None) -> None:
            self._sender = peer_id_of(peer_id)
            self.ended = trio.Event()
            """Set when the connection is over, at either end."""
            counter = _FrameCounter(secured_conn, self._sender, reputation)
            super().__init__(cast("ISecureConn", counter), peer_id, is_initiator=is_initiator)

        async def start(self) -> None:
            try:
                await super().start()
            finally:
                self.ended.set()

        async def _read_data_body(self, length: int) -> bytes:
            """Read the data of a frame.  Ban the peer if the unread bytes would exceed the windows of all streams."""
            unread = sum(map(len, self.stream_buffers.values()))
            allowed = sum(stream.target_recv_window for stream in self.streams.values())
            if length > MAX_FRAME_BYTES or unread + length > allowed + MAX_FRAME_BYTES:
                reputation.penalise(self._sender, ABUSE, "more data than its window allows")
                raise ConnectionError("a peer that overruns its window")
            return await super()._read_data_body(length)

    return LimitedYamux


class _StreamDirection(Protocol):
    """A value of the library's enum of stream directions."""

    @property
    def name(self) -> str: ...


class ResourceLimits:
    """The limits that the library consults before it takes a connection or a stream, in place of its resource manager.

    The library's own manager miscounts connections and streams that end at the wrong moment (a stream that closes before its
    direction is noted, a connection that is refused after it was counted); such a place never becomes free again.
    """

    connection_lifecycle = graceful_degradation = None
    limits = SimpleNamespace(max_streams=1)  # size of a semaphore that `limit_connections` removes

    def __init__(self, reputation: Reputation) -> None:
        self._reputation = reputation
        self._streams: Counter[str] = Counter()

    def open_connection(
        self, peer_id: LibraryId | None = None, endpoint_ip: str | None = None, direction: str = "inbound"
    ) -> SimpleNamespace | None:
        """Return an empty scope for a new connection, or None to refuse it."""
        if peer_id is not None and self._reputation.is_banned(PeerId(str(peer_id))):
            return None
        return SimpleNamespace(close=lambda: None)

    def acquire_stream(self, peer_id: str, direction: _StreamDirection) -> bool:
        """Count a stream and return True if it may be opened.  Only inbound streams are counted and limited."""
        if direction.name != "INBOUND":
            return True
        if self._streams[peer_id] >= MAX_STREAMS_PER_PEER:
            self._reputation.penalise(PeerId(peer_id), EXCESS, "too many open streams")
            return False
        self._streams[peer_id] += 1
        return True

    def release_stream(self, peer_id: str, direction: _StreamDirection) -> None:
        """Free the place of a stream that `acquire_stream` allowed and that has closed."""
        if direction.name == "INBOUND" and self._streams[peer_id] > 1:
            self._streams[peer_id] -= 1
        elif direction.name == "INBOUND":
            del self._streams[peer_id]

    def disconnected(self, peer: PeerId) -> None:
        """Free the places of all streams of `peer`, whose last connection has ended."""
        self._streams.pop(peer, None)
