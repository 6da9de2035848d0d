"""Replaces connections through relays by others, when there is a way, and closes them when there is.

Whoever opened the connection through the relay looks for the way; again after a while, for networks change.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from protocol.network.libp2p.library import Connection, Swarm, is_outbound, library_id
from protocol.network.libp2p.way import Way, raw_connection, way_of
from protocol.wire.identity import PeerId

FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 600.0
LINGER_S = 1.0
"""The relayed connection stays for so long after there is a better one: the other end may be using it this moment."""

log = logging.getLogger(__name__)


class Improving:
    """meet: finds a socket to a connected peer.  close: ends a connection.  on_improved: a peer has a better connection, and
    the relayed ones are closed.
    """

    def __init__(
        self,
        swarm: Swarm,
        meet: Callable[[PeerId], Awaitable[tuple[trio.socket.SocketType, Way]]],
        close: Callable[[Connection], Awaitable[None]],
        on_improved: Callable[[PeerId], None],
    ) -> None:
        self._swarm, self._meet, self._close, self._on_improved = swarm, meet, close, on_improved
        self._busy: set[PeerId] = set()

    async def on_opened(self, peer: PeerId, connection: Connection) -> None:
        """A connection to `peer` has been opened; raises nothing."""
        if peer in self._busy:
            return
        self._busy.add(peer)
        try:
            if is_outbound(connection) and way_of(connection).relay is not None:
                await self._improve(peer)
            await self._drop_relayed(peer)
        finally:
            self._busy.discard(peer)

    def ways(self, peer: PeerId) -> list[Way]:
        """Those of its open connections."""
        return [way_of(connection) for connection in self._open(peer)]

    async def _improve(self, peer: PeerId) -> None:
        """Until there is a better connection, or none."""
        pause_s = FIRST_PAUSE_S
        while (ways := self.ways(peer)) and all(way.relay is not None for way in ways):
            try:
                sock, way = await self._meet(peer)
                raw = raw_connection(trio.SocketStream(sock), way, dialled=True)
                await self._swarm.upgrade_outbound_raw_conn(raw, library_id(peer))
                return
            except Exception as error:  # noqa: BLE001 - the library raises anything
                log.debug("no better way to %s: %r", peer, error)
            await trio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)

    async def _drop_relayed(self, peer: PeerId) -> None:
        found = self._open(peer)
        relayed = [connection for connection in found if way_of(connection).relay is not None]
        if relayed and len(relayed) < len(found):
            await trio.sleep(LINGER_S)
            for connection in relayed:
                await self._close(connection)
            self._on_improved(peer)

    def _open(self, peer: PeerId) -> list[Connection]:
        return [each for each in self._swarm.connections.get(library_id(peer), []) if not each.is_closed]
