"""What one libp2p connection may cost, whatever is spoken on it: frames, streams, unread bytes, and who may have one.

The library announces a receive window for each stream and then takes whatever comes; it opens as many streams as are
asked for.  Here both have an end, and so has waiting for a peer that does not read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from protocol.identity import PeerId
from protocol.libp2p_network.conduct import FLOOD, OVER, Channel, Conduct

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
            super().__init__(Counted(secured_conn, self._sender), peer_id, *rest, **named)  # type: ignore[arg-type]

        async def _read_data_body(self, length: int) -> bytes:
            """Before a frame's data is read: the windows of all streams are the most that may lie here unread."""
            unread = sum(map(len, self.stream_buffers.values()))
            allowed = sum(stream.target_recv_window for stream in self.streams.values())
            if length > LARGEST_FRAME or unread + length > allowed + LARGEST_FRAME:
                conduct.offend(self._sender, FLOOD, "more data than its window allows")
                raise ConnectionError("a peer that overruns its window")
            return await super()._read_data_body(length)

    return GuardedYamux


def guarded_resources(conduct: Conduct) -> Any:
    """A resource manager that also refuses banned peers, too many connections from an address, and too many streams."""
    from libp2p.rcmgr import new_resource_manager
    from libp2p.rcmgr.metrics import Direction

    # the breaker and the degradation would shut out everybody because of one peer's failures
    manager: Any = new_resource_manager(enable_circuit_breaker=False, enable_graceful_degradation=False)
    open_connection, acquire, release = manager.open_connection, manager.acquire_stream, manager.release_stream
    streams: Counter[str] = Counter()

    def open_guarded(peer_id: Any = None, endpoint_ip: str | None = None, direction: str = "inbound") -> Any:
        if peer_id is not None and conduct.is_banned(PeerId(str(peer_id))):
            return None
        if peer_id is None and direction == "inbound" and endpoint_ip and not conduct.admits_connection(endpoint_ip):
            return None
        return open_connection(peer_id, endpoint_ip=endpoint_ip, direction=direction)

    def acquire_guarded(peer_id: str, direction: Any) -> bool:
        if direction is Direction.INBOUND:
            if streams[peer_id] >= MAX_STREAMS_PER_PEER:
                conduct.offend(PeerId(peer_id), OVER, "too many open streams")
                return False
            streams[peer_id] += 1
        acquired = bool(acquire(peer_id, direction))
        if not acquired:
            closed(peer_id, direction)
        return acquired

    def release_guarded(peer_id: str, direction: Any) -> None:
        closed(peer_id, direction)
        release(peer_id, direction)

    def closed(peer_id: str, direction: Any) -> None:
        if direction is Direction.INBOUND and streams[peer_id] > 1:
            streams[peer_id] -= 1
        elif direction is Direction.INBOUND:
            del streams[peer_id]

    manager.open_connection, manager.acquire_stream, manager.release_stream = open_guarded, acquire_guarded, release_guarded
    return manager
