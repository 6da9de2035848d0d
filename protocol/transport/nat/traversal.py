"""NAT traversal for our peer's network: sockets and connections to peers that cannot be dialled."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf

import trio

from protocol.bounds import Backoff, Backoffs, BoundedDict
from protocol.short_id import short_id
from protocol.transport import connections
from protocol.transport.addresses import CircuitAddress
from protocol.transport.bulk_link import LinkBroken
from protocol.transport.host import RunHost
from protocol.transport.interface import Unreachable
from protocol.transport.library import (
    Connection,
    HostConnections,
    MuxedConnection,
    is_outbound,
    library_id,
    peer_id_of,
)
from protocol.transport.nat import punching, relay
from protocol.transport.nat.punching import Meetings, Reflector
from protocol.transport.nat.reachability import AddressVerdict
from protocol.transport.nat.relay import Circuits, RelayService, Take, dial
from protocol.transport.sockets import DIRECT, End, Way, is_dialled, raw_connection, remote_end, way_of
from protocol.transport.task_group import TaskGroup, guarded
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# The replacement of relayed connections: if a better connection can be opened, the relayed ones are closed.
#
# The peer that opened the relayed connection tries to open a better one, and retries after pauses, because networks change.


FIRST_IMPROVE_PAUSE_S, MAX_IMPROVE_PAUSE_S = 5.0, 600.0
LINGER_S = 1.0
"""Seconds for which a relayed connection stays once there is a better one, because the other end may be using it."""

log = logging.getLogger(__name__)


class Improving:
    """The replacement of relayed connections.

    meet: opens a direct socket to a connected peer.  on_improved: called when a peer has a better connection and its relayed
    connections are closed.
    """

    def __init__(
        self,
        swarm: HostConnections,
        meet: Callable[[PeerId], Awaitable[tuple[trio.socket.SocketType, Way]]],
        on_improved: Callable[[PeerId], None],
    ) -> None:
        self._swarm, self._meet, self._on_improved = swarm, meet, on_improved
        self._busy: set[PeerId] = set()

    async def on_opened(self, peer: PeerId, connection: Connection) -> None:
        """Replace a new relayed connection to `peer`, and close relayed ones once a better one exists.  Raises nothing."""
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
        """Return the `Way` of each open connection of a peer."""
        return [way_of(connection) for connection in self._open(peer)]

    async def _improve(self, peer: PeerId) -> None:
        """Try until the peer has a better connection, or no connection."""
        backoff = Backoff(FIRST_IMPROVE_PAUSE_S, MAX_IMPROVE_PAUSE_S)
        while (ways := self.ways(peer)) and all(way.relay is not None for way in ways):
            try:
                sock, way = await self._meet(peer)
                await begin_connection(self._swarm, sock, way, peer)
                return
            except Exception as error:  # noqa: BLE001 - the library raises anything
                log.debug("no better path to %s: %r", peer, error)
            await trio.sleep(backoff.failed())

    async def _drop_relayed(self, peer: PeerId) -> None:
        found = self._open(peer)
        relayed = [connection for connection in found if way_of(connection).relay is not None]
        if relayed and len(relayed) < len(found):
            await trio.sleep(LINGER_S)
            for connection in relayed:
                await connections.close(connection)
            self._on_improved(peer)

    def _open(self, peer: PeerId) -> list[Connection]:
        return [each for each in self._swarm.connections.get(library_id(peer), []) if not each.is_closed]


async def begin_connection(swarm: HostConnections, sock: trio.socket.SocketType, way: Way, peer: PeerId) -> None:
    """Begin a libp2p connection to this peer over a socket; close the socket if the handshake fails.

    libp2p itself would leave the socket open if the handshake were cancelled.
    """
    try:
        await swarm.upgrade_outbound_raw_conn(raw_connection(trio.SocketStream(sock), way, dialled=True), library_id(peer))
    except BaseException:
        sock.close()
        raise


# ------------------------------------------------------------------------------------------------------------------------
# The parts together.


DIAL_S = 5.0
TRY_S = 1.5
"""Seconds for dialling a peer that has dialled us; its router may silently drop inbound connections."""
FIRST_PAUSE_S, MAX_PAUSE_S = 30.0, 600.0
"""First and longest pause after we found no path without a relay to a peer; its sockets use the relay until then."""
MAX_REMEMBERED = 1024

Serve = Callable[[trio.socket.SocketType, str], Awaitable[None]]


class Traversal:
    """NAT traversal for our peer; it needs `run`.

    relay_rate: bytes a second that we relay for other peers; 0 for none.  reached: returns the verdict on our reachability
    for all peers.  listening: returns our endpoints that other peers may dial.  relays: returns the relays in a peer's known
    addresses.  take: serves a socket through which a peer connects to us.  on_improved: called when a relayed peer gets a
    connection without a relay.
    """

    def __init__(
        self,
        own: RunHost,
        relay_rate: float,
        *,
        reached: Callable[[], AddressVerdict],
        listening: Callable[[], Sequence[End]],
        relays: Callable[[PeerId], Sequence[PeerId]],
        take: Take,
        on_improved: Callable[[PeerId], None],
    ) -> None:
        self._swarm, self._relays = own.host.get_network(), relays
        self.relay = RelayService(own, relay_rate)
        self.circuits = Circuits(own.host, own.run, own.handlers, self._dialled, reached, take)
        self._meetings = Meetings(own, listening, self._reflectors, take)
        self._improving = Improving(self._swarm, self._meetings.meet, on_improved)
        self._reflector = Reflector(own.doorstep)
        self._no_way = Backoffs[PeerId](FIRST_PAUSE_S, MAX_PAUSE_S, MAX_REMEMBERED)
        """For each peer without a known path that avoids relays: time at which we look again, and the pause after that."""
        self._undialable = BoundedDict[PeerId, None](MAX_REMEMBERED)
        """Peers that have dialled us and cannot be dialled at the source address of their connection."""
        self._tasks = TaskGroup()

    def doors(self) -> Mapping[bytes, Serve]:
        """Return the handlers of inbound sockets by the socket's first byte."""
        return {
            relay.FIRST_BYTE: self.relay.accept,
            punching.RACE_FIRST_BYTE: self._meetings.accept,
            punching.REFLECTOR_FIRST_BYTE: self._reflector.accept,
        }

    async def run(self) -> None:
        """Run all parts until cancelled."""
        async with self._tasks.open() as nursery:
            nursery.start_soon(self.relay.run)
            nursery.start_soon(self.circuits.run)
            nursery.start_soon(self._meetings.run)
            await trio.sleep_forever()

    def opened(self, peer: PeerId, connection: Connection) -> None:
        """Look for a better connection to `peer` than the new one, if the new one is relayed."""
        self._tasks.start(guarded, self._improving.on_opened, peer, connection)

    def connected(self) -> None:
        """Note that a peer has become connected."""
        self.circuits.connected()

    def disconnected(self, peer: PeerId) -> None:
        """Forget `peer`, because its last connection has ended."""
        self.relay.disconnected(peer)
        self.circuits.disconnected(peer)
        self._no_way.pop(peer, None)
        self._undialable.pop(peer, None)

    def way(self, peer: PeerId) -> Way:
        """Return the best `Way` among the open connections to a peer."""
        return min(self._improving.ways(peer), key=lambda way: way.relay is not None, default=DIRECT)

    def at_most(self, bytes_per_s: float, peers: Iterable[PeerId]) -> float:
        """Return a bandwidth, lowered if relays cannot carry the relayed peers' part of equal shares for `peers`."""
        ways = [self.way(peer) for peer in peers]
        relayed = [way for way in ways if way.relay is not None]
        carried = sum({way.relay: way.bytes_per_s for way in relayed}.values())
        return min(bytes_per_s or inf, carried * len(ways) / len(relayed)) if relayed and carried < inf else bytes_per_s

    async def connect(self, address: CircuitAddress) -> None:
        """Connect to a peer through its relay.  Raises `Unreachable`, OSError, and any exception of the library."""
        sock, way = await self.circuits.open(address.relay, address.peer)
        await begin_connection(self._swarm, sock, way, address.peer)

    async def socket(self, peer: PeerId, connection: MuxedConnection, port: int) -> trio.socket.SocketType:
        """Return a socket to a connected peer that listens at `port`.  Raises `LinkBroken` or OSError."""
        dialled = self._dialled().get(peer)
        if dialled is not None:
            return await dial((dialled[0], port), b"", DIAL_S)
        came_from = remote_end(connection)
        if came_from is not None and peer not in self._undialable:
            with suppress(OSError):
                return await dial((came_from[0], port), b"", TRY_S)
            self._undialable[peer] = None
        try:
            return await self._meet_or_relay(peer, connection)
        except Unreachable as error:
            raise LinkBroken(str(error)) from error

    async def _meet_or_relay(self, peer: PeerId, connection: MuxedConnection) -> trio.socket.SocketType:
        problem: Unreachable | None = None
        if self._no_way.is_over(peer, trio.current_time()):
            try:
                sock, _ = await self._meetings.meet(peer)
            except Unreachable as error:
                self._no_way.failed(peer, trio.current_time())
                problem = error
            else:
                self._no_way.pop(peer, None)
                return sock
        by = way_of(connection).relay
        for name in dict.fromkeys([*([by] if by is not None else []), *self._relays(peer)]):
            try:
                return (await self.circuits.open(name, peer))[0]
            except (Unreachable, OSError) as error:
                problem = Unreachable(str(error))
        raise problem or Unreachable(f"no path to {short_id(peer)}")

    def _reflectors(self) -> list[End]:
        return list(self._dialled().values())

    def _dialled(self) -> dict[PeerId, End]:
        """Return the connected peers that we dialled, with the endpoint at which we dialled each."""
        return {
            peer_id_of(identity): end
            for identity, connections in self._swarm.connections.items()
            for connection in connections
            if not connection.is_closed and is_dialled(connection)
            if (end := remote_end(connection)) is not None
        }
