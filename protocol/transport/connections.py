"""The connected peers, by the connections of the swarm; a peer can have several.

A peer is connected while it has a live connection and is no stranger: we dialled it, or it has greeted us.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import trio

from protocol.transport.ends import remote_end
from protocol.transport.inbound import RELAYED_BY, InboundConnections, address_group, relayed_group
from protocol.transport.library import Connection, HostConnections, is_outbound, library_id
from protocol.transport.reputation import Reputation
from protocol.transport.way import way_of
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from libp2p.abc import INetConn, INetStream, INetwork
    from multiaddr import Multiaddr

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gone:
    """The peer has no connection left, not even as a stranger."""


@dataclass(frozen=True)
class Banned:
    """The peer is banned, and its connections must be closed."""


@dataclass(frozen=True)
class Connected:
    """The peer has become connected."""


@dataclass(frozen=True)
class Disconnected:
    """The peer is no longer connected, after `lasted_s`."""

    lasted_s: float


Change = Gone | Banned | Connected | Disconnected


class Connections:
    """The connected peers of one swarm."""

    def __init__(self, swarm: HostConnections, reputation: Reputation, inbound: InboundConnections) -> None:
        self._swarm, self._reputation, self._inbound = swarm, reputation, inbound
        self._since: dict[PeerId, float] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._since

    def __len__(self) -> int:
        return len(self._since)

    def peers(self) -> list[PeerId]:
        """Return the connected peers, the longest connected first."""
        return list(self._since)

    def update(self, peer: PeerId) -> list[Change]:
        """Return the changes for `peer` after one of its connections opened or closed, or after it has greeted us."""
        alive = self._alive(peer)
        known = peer in self._since or self._inbound.has_greeted(peer)
        connected = bool(alive) and (known or any(is_outbound(connection) for connection in alive))
        changes: list[Change] = [] if alive else [Gone()]
        if alive and self._reputation.is_banned(peer):
            changes.append(Banned())
        elif connected and peer not in self._since:
            self._since[peer] = trio.current_time()
            changes.append(Connected())
        elif not connected and peer in self._since:
            changes.append(Disconnected(trio.current_time() - self._since.pop(peer)))
        return changes

    def address_group_of(self, peer: PeerId) -> str | None:
        """Return the group of addresses from which `peer` is connected, as for inbound connections; None if unknown."""
        relay: PeerId | None = None
        for connection in self._swarm.connections.get(library_id(peer), []):
            address, relay = remote_end(connection), way_of(connection).relay or relay
            if address is not None:
                return address_group(address[0])
        return relayed_group(relay) if relay is not None else None

    def address_groups(self) -> dict[PeerId, str]:
        """Return the connected peers whose group of addresses is known, with the group, without peers behind relays."""
        found = {peer: self.address_group_of(peer) for peer in self._since}
        return {peer: group for peer, group in found.items() if group is not None and not group.startswith(RELAYED_BY)}

    async def close_all(self) -> None:
        """Close every connection of every peer."""
        async with trio.open_nursery() as nursery:
            for connections in list(self._swarm.connections.values()):
                for connection in list(connections):
                    nursery.start_soon(close, connection)

    def _alive(self, peer: PeerId) -> list[Connection]:
        connections = self._swarm.connections.get(library_id(peer), [])
        return [connection for connection in connections if not connection.is_closed]


async def close(connection: Connection) -> None:
    """Close a connection.  Raises nothing."""
    try:
        await connection.close()
    except Exception as error:  # noqa: BLE001 - the connection may be closing already
        log.debug("closing a connection: %r", error)


def watch(swarm: HostConnections, opened: Callable[[Connection], None], closed: Callable[[Connection], None]) -> None:
    """Call `opened` and `closed` for each connection of `swarm` from now on."""
    from libp2p.abc import INotifee

    class Watcher(INotifee):
        async def connected(self, network: INetwork, conn: INetConn) -> None:
            opened(cast(Connection, conn))

        async def disconnected(self, network: INetwork, conn: INetConn) -> None:
            closed(cast(Connection, conn))

        async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
            return

        async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
            return

        async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
            return

        async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
            return

    swarm.register_notifee(Watcher())
