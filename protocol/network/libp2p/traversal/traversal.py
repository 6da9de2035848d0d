"""All of it together, for one peer's network: sockets and connections to peers that cannot be dialled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf

import trio

from protocol.network.interface import Handlers, Unreachable
from protocol.network.libp2p.dial_back import Verdict
from protocol.network.libp2p.doorstep import Doorstep
from protocol.network.libp2p.ends import End, remote_end
from protocol.network.libp2p.guarded import guarded
from protocol.network.libp2p.library import Connection, Host, MuxedConnection, library_id, peer_id_of
from protocol.network.libp2p.link import LinkBroken
from protocol.network.libp2p.rate_limit import RateLimit
from protocol.network.libp2p.reputation import Reputation
from protocol.network.libp2p.traversal import mirror, race, relay
from protocol.network.libp2p.traversal.circuit_address import CircuitAddress
from protocol.network.libp2p.traversal.circuits import Circuits, Take, dial
from protocol.network.libp2p.traversal.improving import Improving
from protocol.network.libp2p.traversal.meeting import Meetings
from protocol.network.libp2p.traversal.mirror import Mirror
from protocol.network.libp2p.traversal.relay import Relay
from protocol.network.libp2p.way import DIRECT, Way, is_dialled, raw_connection, way_of
from protocol.short_id import short_id
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

DIAL_S = 5.0
TRY_S = 1.5
"""For a peer that has dialled us to be dialled; a router before it lets nobody in, and says nothing."""
FIRST_PAUSE_S, MAX_PAUSE_S = 30.0, 600.0
"""After no way was found to a peer, its sockets go through the relay for so long before another is looked for."""
MAX_REMEMBERED = 1024

Serve = Callable[[trio.socket.SocketType, str], Awaitable[None]]


class Traversal:
    """`run` it.

    connected: whether a peer is one that we have reached, or that has greeted us.  reached: whether everybody reaches us.
    listening: where we listen, as far as it makes sense to dial us there.  relays: those through which a peer says that it
    is reached.  take: what is done with a socket by which a peer comes to us.  close: ends a connection.  on_improved: a
    peer is connected without a relay now.  relay_rate: of what we relay for others, in bytes a second; 0 for nothing.
    limits: of all that we send, and receive.
    """

    def __init__(
        self,
        host: Host,
        run: Hash,
        handlers: Handlers,
        reputation: Reputation,
        doorstep: Doorstep,
        *,
        connected: Callable[[PeerId], bool],
        reached: Callable[[], Verdict],
        listening: Callable[[], Sequence[End]],
        relays: Callable[[PeerId], Sequence[PeerId]],
        take: Take,
        close: Callable[[Connection], Awaitable[None]],
        on_improved: Callable[[PeerId], None],
        relay_rate: float,
        limits: tuple[RateLimit, RateLimit],
    ) -> None:
        self._swarm, self._relays = host.get_network(), relays
        up, down = limits
        self.relay = Relay(host, run, handlers, reputation, connected, doorstep, relay_rate, up, down)
        self.circuits = Circuits(host, run, handlers, self._dialled, reached, take)
        self._meetings = Meetings(host, run, handlers, reputation, connected, doorstep, listening, self._mirrors, take)
        self._improving = Improving(self._swarm, self._meetings.meet, close, on_improved)
        self._mirror = Mirror(doorstep)
        self._no_way: dict[PeerId, tuple[float, float]] = {}
        """Peers to which there was none without a relay: until when none is looked for, and for how long that is."""
        self._undialable: dict[PeerId, None] = {}
        """Peers that have dialled us, and cannot be dialled at the address that they came from."""
        self._nursery: trio.Nursery | None = None

    def doors(self) -> Mapping[bytes, Serve]:
        """What serves sockets that come to where we listen, by their first byte."""
        return {
            relay.FIRST_BYTE: self.relay.accept,
            race.FIRST_BYTE: self._meetings.accept,
            mirror.FIRST_BYTE: self._mirror.accept,
        }

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self.relay.run)
            nursery.start_soon(self.circuits.run)
            nursery.start_soon(self._meetings.run)

    def opened(self, peer: PeerId, connection: Connection) -> None:
        """There is another connection to `peer`."""
        if self._nursery is not None:
            self._nursery.start_soon(guarded, self._improving.on_opened, peer, connection)

    def connected(self) -> None:
        """There is a peer that was not connected before."""
        self.circuits.connected()

    def disconnected(self, peer: PeerId) -> None:
        """The last connection to `peer` has ended."""
        self.relay.disconnected(peer)
        self.circuits.disconnected(peer)
        self._no_way.pop(peer, None)
        self._undialable.pop(peer, None)

    def way(self, peer: PeerId) -> Way:
        """The best way of the open connections to a peer."""
        return min(self._improving.ways(peer), key=lambda way: way.relay is not None, default=DIRECT)

    def at_most(self, bytes_per_s: float, peers: Iterable[PeerId]) -> float:
        """What is left of such a bandwidth when the shares of some of these peers go through relays."""
        ways = [self.way(peer) for peer in peers]
        relayed = [way for way in ways if way.relay is not None]
        carried = sum({way.relay: way.bytes_per_s for way in relayed}.values())
        return min(bytes_per_s or inf, carried * len(ways) / len(relayed)) if relayed and carried < inf else bytes_per_s

    async def connect(self, address: CircuitAddress) -> None:
        """Connect to a peer through its relay.  Raises what the library raises, `Unreachable` and OSError."""
        sock, way = await self.circuits.open(address.relay, address.peer)
        raw = raw_connection(trio.SocketStream(sock), way, dialled=True)
        await self._swarm.upgrade_outbound_raw_conn(raw, library_id(address.peer))

    async def socket(self, peer: PeerId, connection: MuxedConnection, port: int) -> trio.socket.SocketType:
        """A socket to a connected peer, which listens at `port`.  Raises `LinkBroken` and OSError."""
        dialled = self._dialled().get(peer)
        if dialled is not None:
            return await dial((dialled[0], port), b"", DIAL_S)
        came_from = remote_end(connection)
        if came_from is not None and peer not in self._undialable:
            with suppress(OSError):
                return await dial((came_from[0], port), b"", TRY_S)
            self._undialable[peer] = None
            self._undialable = dict(list(self._undialable.items())[-MAX_REMEMBERED:])
        try:
            return await self._meet_or_relay(peer, connection)
        except Unreachable as error:
            raise LinkBroken(str(error)) from error

    async def _meet_or_relay(self, peer: PeerId, connection: MuxedConnection) -> trio.socket.SocketType:
        until, pause_s = self._no_way.get(peer, (-inf, FIRST_PAUSE_S))
        problem: Unreachable | None = None
        if trio.current_time() >= until:
            try:
                sock, _ = await self._meetings.meet(peer)
            except Unreachable as error:
                self._no_way[peer] = trio.current_time() + pause_s, min(MAX_PAUSE_S, 2 * pause_s)
                self._no_way = dict(list(self._no_way.items())[-MAX_REMEMBERED:])
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
        raise problem or Unreachable(f"no way to {short_id(peer)}")

    def _mirrors(self) -> list[End]:
        return list(self._dialled().values())

    def _dialled(self) -> dict[PeerId, End]:
        """The peers that we have dialled and are connected to, at which end."""
        return {
            peer_id_of(identity): end
            for identity, connections in self._swarm.connections.items()
            for connection in connections
            if not connection.is_closed and is_dialled(connection)
            if (end := remote_end(connection)) is not None
        }
