"""The connected peers, derived from the connections of the swarm, and the search for dead connections.

A peer can have several connections.  A peer counts as connected while it has a live connection and is not a stranger: we
dialled it, or it has greeted us.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import trio

from protocol.transport.addresses import Address, address_of, own_addresses
from protocol.transport.bulk_link import socket_state
from protocol.transport.inbound import RELAYED_BY, InboundConnections, address_group, relayed_group
from protocol.transport.library import Connection, HostConnections, is_outbound, library_id, peer_id_of
from protocol.transport.limits import Reputation
from protocol.transport.sockets import Socket, local_end_of, remote_end, socket_of, way_of
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from libp2p.abc import IMuxedConn, INetConn, INetStream, INetwork
    from multiaddr import Multiaddr


# ------------------------------------------------------------------------------------------------------------------------
# Connections that are dead although neither end closed them: our address has changed, or the other end no longer answers.
#
# TCP notices a dead connection only after a quarter of an hour.  Here a connection is dead if its local address is gone, or
# if no data that we sent was acknowledged for `SILENT_S`.  That time is only `REPLACED_S` if the peer has connected again
# since, as it does when its address has changed.  A connection on which nothing is under way never counts as silent, so we
# then ask for a sign of life on it: the peer's bulk sockets restart when it ends.  If our address is gone, we reconnect to
# the peer before we close its old connection, so that no part of the program takes the peer for gone, and a running exchange
# continues.


log = logging.getLogger(__name__)

LOOK_S = 1.0
SILENT_S = 20.0
"""Seconds without an acknowledgement after which a connection is dead; also seconds for which we try to reconnect before we
close a connection."""
REPLACED_S = 2.0
"""Seconds without an acknowledgement after which a connection is dead if its peer has connected again since."""


class Silences:
    """The time without an acknowledgement on each connection, while sent data waits for one."""

    def __init__(self) -> None:
        self._since: dict[object, tuple[int, float]] = {}

    def silent_s(self, connection: object, acked_bytes: int, unacked: int, now: float) -> float:
        """Return the seconds for which sent data on a connection was not acknowledged.

        acked_bytes: bytes acknowledged since the connection began.  unacked: number of segments not acknowledged.  now: trio
        time.
        """
        before = self._since.get(connection)
        if not unacked or before is None or before[0] != acked_bytes:
            before = self._since[connection] = acked_bytes, now
        return now - before[1]

    def keep(self, connections: Collection[object]) -> None:
        """Forget all connections except these."""
        self._since = {connection: since for connection, since in self._since.items() if connection in connections}


class DeadEnds:
    """The search for dead connections, while `run` runs.

    renew: opens a new connection to a connected peer; returns True on success.  close: ends a connection.  on_renewed:
    called when a peer's old connection was closed and a newer one exists, with True if the old one's local address was gone.
    """

    def __init__(
        self,
        swarm: HostConnections,
        renew: Callable[[PeerId], Awaitable[bool]],
        close: Callable[[Connection], Awaitable[None]],
        on_renewed: Callable[[PeerId, bool], None],
        addresses: Callable[[], Collection[Address]] = own_addresses,
    ) -> None:
        self._swarm, self._renew, self._close, self._on_renewed = swarm, renew, close, on_renewed
        self.addresses = addresses
        self._silences = Silences()
        self._ours: set[Address] = set()
        """Local addresses of connections that the system has listed; it may not list every address that it uses."""
        self._sockets: dict[Connection, Socket | None] = {}
        """The sockets of all connections, kept because finding a socket under the library's layers takes long."""
        self._asked: dict[Connection, Connection] = {}
        """Older connections on which we asked for a sign of life, and the newest one at that time."""
        self._ending: dict[Connection, bool] = {}
        """Dead connections that are not closed yet; True while we reconnect because our address is gone."""

    @property
    def is_moving(self) -> bool:
        """True while one of our addresses is gone and not every peer connected through it is reconnected."""
        return any(self._ending.values())

    def sockets_to(self, peer: PeerId) -> list[Socket]:
        """Return the sockets of the connections to a peer, the oldest first."""
        connections = self._swarm.connections.get(library_id(peer), [])
        self._sockets |= {each: socket_of(each) for each in connections if self._sockets.get(each) is None}
        return [sock for each in connections if (sock := self._sockets[each]) is not None]

    async def run(self) -> None:
        """Look for dead connections once a second, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_S)
                for peer, connection, has_moved in self._over():
                    self._ending[connection] = has_moved
                    nursery.start_soon(self._end, peer, connection, has_moved)
                for connection in self._replaced():
                    nursery.start_soon(_ask, connection)

    def _over(self) -> list[tuple[PeerId, Connection, bool]]:
        """Return (peer, connection, has_moved) for each newly dead connection; has_moved: True if our address is gone."""
        now, all_of_them = trio.current_time(), list(self._all())
        self._silences.keep({connection for _, connection, _ in all_of_them})
        before = self._sockets
        self._sockets = {each: before.get(each) or socket_of(each) for _, each, _ in all_of_them}
        ends = {each: address_of(end[0]) for each, sock in self._sockets.items() if sock and (end := local_end_of(sock))}
        ours = self.addresses()
        self._ours = {ip for ip in ends.values() if ip and (ip in ours or ip in self._ours)}
        over = []
        for peer, connection, is_newest in all_of_them:
            ip = ends.get(connection)
            has_moved = bool(ours) and ip in self._ours and ip not in ours
            is_silent = self._silent_s(connection, now) > (SILENT_S if is_newest else REPLACED_S)
            if connection not in self._ending and (has_moved or is_silent):
                over.append((peer, connection, has_moved))
        return over

    def _replaced(self) -> list[Connection]:
        """Return the connections whose peer has connected again since we last asked."""
        newest = {peer: connection for peer, connection, is_newest in self._all() if is_newest}
        older = {connection: newest[peer] for peer, connection, is_newest in self._all() if not is_newest}
        replaced = [connection for connection in older if self._asked.get(connection) is not older[connection]]
        self._asked = older
        return replaced

    def _all(self) -> Iterator[tuple[PeerId, Connection, bool]]:
        for identity, connections in self._swarm.connections.items():
            for connection in connections:
                yield peer_id_of(identity), connection, connection is connections[-1]

    def _silent_s(self, connection: Connection, now: float) -> float:
        sock = self._sockets[connection]
        state = socket_state(sock) if sock is not None else None
        if state is None:
            return 0.0
        return self._silences.silent_s(connection, state.acked_bytes, state.unacked, now)

    async def _end(self, peer: PeerId, connection: Connection, has_moved: bool) -> None:
        try:
            with trio.move_on_after(SILENT_S):
                while has_moved and not self._has_another(peer, connection) and not await self._renew(peer):
                    await trio.sleep(LOOK_S)
            self._ending[connection] = False
            has_another = self._has_another(peer, connection)
            await self._close(connection)
            if has_another:
                self._on_renewed(peer, has_moved)
        finally:
            del self._ending[connection]

    def _has_another(self, peer: PeerId, connection: Connection) -> bool:
        """Return True if the peer's newest connection is not `connection`."""
        return any(other == peer and newest and each is not connection for other, each, newest in self._all())


async def _ask(connection: Connection) -> None:
    """Send a few bytes over a connection; a live peer acknowledges them.  Raises nothing."""
    try:
        with trio.move_on_after(REPLACED_S):
            stream = await cast("IMuxedConn", connection.muxed_conn).open_stream()
            await stream.reset()
    except Exception as error:  # noqa: BLE001 - the connection may be closing already
        log.debug("asking for a sign of life: %r", error)


# ------------------------------------------------------------------------------------------------------------------------
# The connected peers.


@dataclass(frozen=True)
class Gone:
    """The loss of a peer's last connection, even one as a stranger."""


@dataclass(frozen=True)
class Banned:
    """The state of a banned peer whose connections must be closed."""


@dataclass(frozen=True)
class Connected:
    """The change of a peer from disconnected to connected."""


@dataclass(frozen=True)
class Disconnected:
    """The change of a peer from connected to disconnected.  lasted_s: seconds for which the peer was connected."""

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
        """Return the connected peers, beginning with the peer that has been connected longest."""
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
        """Return the address group from which `peer` is connected (`address_group`, `relayed_group`); None if unknown."""
        relay: PeerId | None = None
        for connection in self._swarm.connections.get(library_id(peer), []):
            address, relay = remote_end(connection), way_of(connection).relay or relay
            if address is not None:
                return address_group(address[0])
        return relayed_group(relay) if relay is not None else None

    def address_groups(self) -> dict[PeerId, str]:
        """Return the address group of each connected peer, without peers behind relays or in unknown groups."""
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
