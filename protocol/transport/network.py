"""`Libp2pNetwork`, the interface `Network` on real sockets; its settings (`NetworkSettings`) and its parts (`Stack`)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import trio
from multiaddr import Multiaddr

from protocol.events.events import Event, LinkChanged, Notice, NoticeCode
from protocol.formatting import clean
from protocol.short_id import short_id
from protocol.transport import connections
from protocol.transport.addresses import (
    ObservedAddresses,
    OwnAddresses,
    at_interfaces,
    listening_hosts,
    reach_between,
    transport_address,
)
from protocol.transport.bulk import FIRST_BYTE, Bulk
from protocol.transport.bulk_link import socket_state
from protocol.transport.connections import Connections, DeadEnds
from protocol.transport.dialer import Attempt, Dialer
from protocol.transport.gossip import Gossip
from protocol.transport.host import (
    LineLimits,
    ResourceLimits,
    RunHost,
    claim_port,
    forget,
    identify,
    new_host,
    stop_listening,
)
from protocol.transport.inbound import InboundConnections
from protocol.transport.inbound_policy import InboundLimits
from protocol.transport.interface import Bandwidth, Handlers, LinkMeasurement, NetworkError, Traffic, Unreachable, nothing
from protocol.transport.library import Connection, HostConnections, LibraryId, TaskStatus, library_id, peer_id_of
from protocol.transport.limits import Doorstep, Reputation
from protocol.transport.nat.reachability import DialBack, Inquiry, Reachability
from protocol.transport.nat.traversal import Traversal
from protocol.transport.rate_limit import PACKET_SHARE, RateLimit
from protocol.transport.requests import OtherRun, Requests
from protocol.transport.sockets import End
from protocol.transport.task_group import TaskGroup
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId

if TYPE_CHECKING:
    from libp2p.abc import ISecureConn
    from libp2p.io.abc import ReadWriteCloser
    from libp2p.network.connection.raw_connection import RawConnection


# ------------------------------------------------------------------------------------------------------------------------
# The settings of one peer's network.


class Discover(Protocol):
    """The search for peers of one run on the local network."""

    async def __call__(
        self, run: Hash, me: PeerId, addresses: Callable[[], Sequence[str]], found: Callable[[Sequence[str]], None]
    ) -> None:
        """Announce our `addresses`, again after each change, and report other peers' addresses to `found`, until cancelled.

        Waits while there is no usable network.  Raises nothing.
        """


@dataclass(frozen=True)
class NetworkSettings:
    """Addresses and limits of one peer's network.

    listen_port: 0 for any free port.  discover: finds peers on the local network; None to stay silent there.
    up_limit, down_limit: total bytes a second, None for no limit; pushes get the rate that other traffic leaves.
    inbound: limits on connections that other peers open to us.  congestion: the congestion control of bulk sockets, used if
    the kernel has it and lets us set it.  On a long path with some loss, BBR is several times as fast as CUBIC, the usual
    default.  announce: multiaddrs, in addition to our interfaces, from which a router or a provider forwards to us.
    serve_tls: serves a socket on which the other end begins to speak TLS, given the address of that end; None to treat the
    socket like a stranger's.  relay_rate: total bytes a second that we carry between peers that cannot reach each other; 0
    to carry none.
    """

    listen_host: str = "0.0.0.0"
    listen_port: int = 0
    discover: Discover | None = None
    up_limit: float | None = None
    down_limit: float | None = None
    inbound: InboundLimits = InboundLimits()
    congestion: str = "bbr"
    announce: tuple[str, ...] = ()
    serve_tls: Callable[[trio.socket.SocketType, str], Awaitable[None]] | None = None
    relay_rate: float = 1.25e6


# ------------------------------------------------------------------------------------------------------------------------
# The meter of libp2p connections at their sockets.  It counts gossip, requests and the library's own messages.


class Meter:
    """A count of the bytes that libp2p connections sent (up_bytes) and received (down_bytes) since the start."""

    def __init__(self) -> None:
        self.up_bytes = 0
        self.down_bytes = 0

    def watch(self, swarm: HostConnections) -> None:
        """Count the bytes of every new connection of `swarm` from now on, its handshake included."""
        upgrade = swarm.upgrader.upgrade_security

        async def counted(raw_conn: RawConnection, is_initiator: bool, peer_id: LibraryId | None = None) -> ISecureConn:
            raw_conn.stream = cast("ReadWriteCloser", _Metered(raw_conn.stream, self))
            return await upgrade(raw_conn, is_initiator, peer_id)

        swarm.upgrader.upgrade_security = counted  # type: ignore[method-assign]


class _Metered:
    """A wrapper that counts the bytes of a stream and changes nothing else."""

    def __init__(self, stream: ReadWriteCloser, meter: Meter) -> None:
        self._inner, self._meter = stream, meter

    async def write(self, data: bytes) -> None:
        self._meter.up_bytes += len(data)
        await self._inner.write(data)

    async def read(self, n: int | None = None) -> bytes:
        data = await self._inner.read(n)
        self._meter.down_bytes += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# ------------------------------------------------------------------------------------------------------------------------
# The parts of a started network, and the events that pass between them.


ENOUGH_PEERS = 512
"""Number of connected peers at which we stop dialling strangers."""
TLS_FIRST_BYTE = b"\x16"
"""First byte of a TLS connection, which begins with a handshake record."""

log = logging.getLogger(__name__)


class Stack:
    """The parts of a started network, built only at the start because importing the library takes most of a second."""

    def __init__(
        self,
        identity: Identity,
        run: Hash,
        handlers: Handlers,
        settings: NetworkSettings,
        emit: Callable[[Event], None],
        ports: Callable[[], Sequence[int]],
        listening: Callable[[], Sequence[End]],
    ) -> None:
        """Build all parts.  ports: returns the ports at which other peers may find us.  listening: returns our endpoints."""
        self._handlers, self._emit = handlers, emit
        self._tasks = TaskGroup()
        self._links: dict[PeerId, str] = {}
        self._elsewhere_bytes = 0
        self.reputation = Reputation(trio.current_time, self._on_ban, self._address_group_of)
        self._limits = ResourceLimits(self.reputation)
        self.host = new_host(identity, self.reputation, self._limits)
        self.observed = ObservedAddresses(handlers)
        self.observed.watch(self.host)
        self.meter = meter = Meter()
        meter.watch(self.host.get_network())
        self._line = LineLimits(
            RateLimit.of_line(settings.up_limit, lambda: meter.up_bytes),
            RateLimit.of_line(settings.down_limit, lambda: meter.down_bytes),
        )
        own = RunHost(self.host, run, handlers, self.reputation, self._is_connected, Doorstep(), self._line)
        self.requests = Requests(own, emit)
        self.gossip = Gossip(self.host, run, handlers, self.reputation)
        self.traversal = self._make_traversal(own, settings.relay_rate, listening)
        self.bulk = Bulk(own, settings.congestion, self.traversal.socket)
        banned, through = self.reputation.is_banned, self.traversal.connect
        here = lambda: at_interfaces(listening())  # noqa: E731
        self.dialer = Dialer(self.host, handlers, self._leave_alone, banned, self.welcome, through, here)
        doors = {FIRST_BYTE: self.bulk.accept, **self.traversal.doors()}
        if settings.serve_tls is not None:
            doors[TLS_FIRST_BYTE] = settings.serve_tls
        self.inbound = InboundConnections(self.reputation, settings.inbound, handlers, emit, doors)
        self.connections = Connections(self.host.get_network(), self.reputation, self.inbound)
        self.dead_ends = DeadEnds(self.host.get_network(), self.dialer.renew, connections.close, self._on_renewed)
        self.dial_back = DialBack(own, self.dialer.answers)
        self.inquiry = Inquiry(self.dial_back.ask, self.connections.address_groups, ports, handlers, emit)
        connections.watch(self.host.get_network(), self._on_opened, self._on_closed)
        self.inbound.attach(self.host.get_network())

    def _make_traversal(self, own: RunHost, relay_rate: float, listening: Callable[[], Sequence[End]]) -> Traversal:
        return Traversal(
            own,
            relay_rate,
            reached=lambda: self.inquiry.now.by_ipv4,
            listening=listening,
            relays=lambda peer: self.dialer.relays_of(peer),
            take=lambda *how: self.inbound.take(*how),
            on_improved=lambda peer: self._on_renewed(peer, False),
        )

    async def run(
        self,
        host: str,
        port: int,
        discover: Callable[[Callable[[Sequence[str]], None]], Awaitable[None]] | None,
        *,
        task_status: TaskStatus = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen on `host` and `port` until cancelled.

        discover: reports addresses on the local network; None to stay silent there.
        """
        addresses = [Multiaddr(transport_address(name, port)) for name in listening_hosts(host)]
        async with AsyncExitStack() as stack:
            stack.callback(self.gossip.end)
            await stack.enter_async_context(self.host.run(addresses))
            async with self._tasks.open() as nursery:
                nursery.start_soon(self.inbound.run)
                await nursery.start(self.bulk.run, port)
                await self.gossip.start(stack, nursery)
                nursery.start_soon(self.requests.run)
                nursery.start_soon(self.dialer.run)
                nursery.start_soon(self.dead_ends.run)
                nursery.start_soon(self.inquiry.run)
                nursery.start_soon(self.traversal.run)
                if discover is not None:
                    nursery.start_soon(discover, partial(self.dialer.remember, claimed=True))
                task_status.started()
                await trio.sleep_forever()

    # -- used by the network ------------------------------------------------------------------------------------------

    def traffic(self) -> Traffic:
        """Return the payload of all channels since the start."""
        channels = (self.requests, self.gossip, self.bulk)
        down_bytes = self._elsewhere_bytes + sum(channel.down_bytes for channel in channels)
        return Traffic(sum(channel.up_bytes for channel in channels), down_bytes)

    async def receive_elsewhere(self, size: int) -> None:
        """Count `size` bytes from a server outside the run; wait until they fit the user's limit."""
        self._elsewhere_bytes += size
        await self._line.down.pay(size)

    def link(self, peer: PeerId) -> str:
        """Return the kind of a peer's connection; "" if the peer is not connected."""
        return self.traversal.way(peer).kind.value if peer in self.connections else ""

    def measured_link(self, peer: PeerId) -> LinkMeasurement:
        """Return the measurements of a peer's connection; empty ones if it has none."""
        if peer not in self.connections:
            return LinkMeasurement()
        sockets = self.dead_ends.sockets_to(peer)
        found = [socket_state(each) for each in sockets] + [link.state for link in self.bulk.links_to(peer)]
        states = [state for state in found if state is not None]
        up_bytes, down_bytes = sum(state.acked_bytes for state in states), sum(state.received_bytes for state in states)
        if self.traversal.way(peer).relay is not None:
            return LinkMeasurement(up_bytes=up_bytes, down_bytes=down_bytes)
        trips = [state.least_rtt_s for state in states if state.least_rtt_s]
        reaches = [reach.value for each in sockets if (reach := reach_between(each)) is not None]
        return LinkMeasurement(next(iter(reaches), ""), min(trips, default=None), up_bytes, down_bytes)

    def bandwidth(self) -> Bandwidth:
        """Return the measured rates of our links, lowered if relays carry less."""
        seen = self.bulk.bandwidth()
        members = [peer for peer in self.connections.peers() if self._handlers.has_member(peer)]
        up, down = (self.traversal.at_most(rate, members) for rate in (seen.up_bytes_per_s, seen.down_bytes_per_s))
        return Bandwidth(up, down)

    def line_bytes(self) -> int:
        """Return the bytes that all connections, bulk links and circuits carried in both directions, headers included.

        The headers are estimated for full packets.  Relayed bytes count twice, because we receive and send them.
        """
        meter, bulk, relayed = self.meter, self.bulk, 2 * self.traversal.relay.carried_bytes
        ours = meter.up_bytes + meter.down_bytes + bulk.up_bytes + bulk.down_bytes
        return int((ours + relayed + self._elsewhere_bytes) / PACKET_SHARE)

    def limit(self, up: float | None, down: float | None) -> None:
        """Set the limits on the line from now on (bytes a second, None for no limit)."""
        self._line.up.change(up and up * PACKET_SHARE)
        self._line.down.change(down and down * PACKET_SHARE)

    def welcome(self, peer: PeerId) -> None:
        """Stop treating a peer as a stranger: a handshake admitted it, or it connected just before we dialled it."""
        if not self.reputation.is_banned(peer):
            self.inbound.welcome(peer)
            self._update(peer)

    def forget(self, peer: PeerId) -> None:
        """Disconnect a peer and do not dial it again."""
        if self._tasks.is_open:
            self.dialer.forget(peer)
            self.inbound.revoke(peer)
            self._tasks.start(self._disconnect, peer)

    async def request(self, peer: PeerId, kind: str, data: bytes, timeout_s: float) -> bytes:
        """Ask a connected peer and return its answer.  Raises `Refused` or `Unreachable`."""
        if peer not in self.connections:
            raise Unreachable(f"{short_id(peer)} is not connected")
        try:
            return await self.requests.ask(peer, kind, data, timeout_s)
        except OtherRun:
            self.dialer.mark_other_run(peer)
            raise

    async def push(
        self, peer: PeerId, header: bytes, data: memoryview, timeout_s: float, *, spare: bool, on_sent: Callable[[], None]
    ) -> None:
        """Push data to a connected peer.  Raises `Refused` or `Unreachable`."""
        if peer not in self.connections:
            raise Unreachable(f"{short_id(peer)} is not connected")
        await self.bulk.push(peer, header, data, timeout_s, spare=spare, on_sent=on_sent)

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_opened(self, connection: Connection) -> None:
        peer = peer_id_of(connection.muxed_conn.peer_id)
        self.observed.on_connection(connection)
        self._update(peer)
        self._tell_link(peer)
        self.traversal.opened(peer, connection)

    def _on_closed(self, connection: Connection) -> None:
        peer = peer_id_of(connection.muxed_conn.peer_id)
        self._update(peer)
        self._tell_link(peer)

    def _tell_link(self, peer: PeerId) -> None:
        link = self.link(peer)
        if link and link != self._links.get(peer):
            self._emit(LinkChanged(peer, link))
        self._links = {other: self._links[other] for other in self._links if other in self.connections}
        if link:
            self._links[peer] = link

    def _update(self, peer: PeerId) -> None:
        if not self._tasks.is_open:
            return
        for change in self.connections.update(peer):
            self._apply(peer, change)

    def _apply(self, peer: PeerId, change: connections.Change) -> None:
        match change:
            case connections.Gone():
                self._limits.disconnected(peer)
                forget(self.host, library_id(peer))
                self._tasks.start(self.gossip.lost, peer)
            case connections.Banned():
                self._tasks.start(self._disconnect, peer)
            case connections.Connected():
                identify(self.host, library_id(peer))
                self._tasks.start(self.gossip.met, peer)
                self.inquiry.met_somebody()
                self.traversal.connected()
                self._handlers.on_peer_connected(peer)
                self._tell_link(peer)
            case connections.Disconnected(lasted_s):
                self.bulk.disconnected(peer)
                self.requests.disconnected(peer)
                self.dialer.lost(peer, lasted_s)
                self.traversal.disconnected(peer)
                self._handlers.on_peer_disconnected(peer)

    def _on_renewed(self, peer: PeerId, has_answered: bool) -> None:
        """Restart a peer's traffic on another connection, although the peer was never disconnected.

        has_answered: True if the peer has just answered on that connection; if False, it may be the older connection.
        """
        self.bulk.disconnected(peer)
        self.requests.disconnected(peer)
        if has_answered:
            self.inquiry.look_again()
        if has_answered and peer in self.connections:
            self._handlers.on_peer_connected(peer)
        self._tasks.start(self._gossip_again, peer)

    async def _gossip_again(self, peer: PeerId) -> None:
        await self.gossip.lost(peer)
        await self.gossip.met(peer)

    def _on_ban(self, peer: PeerId, why: str) -> None:
        log.warning("banned %s: %s", peer, why)
        text = f"{peer} was disconnected and is banned for a while: {clean(why)}"
        self._emit(Notice("warning", text, NoticeCode.PEER_BANNED, {"peer": peer, "reason": why}))
        self.inbound.revoke(peer)
        if self._tasks.is_open:
            self.bulk.disconnected(peer)
            self.bulk.cut_off(peer)
            self._tasks.start(self._disconnect, peer)

    async def _disconnect(self, peer: PeerId) -> None:
        try:
            await self.host.disconnect(library_id(peer))
        except Exception as error:  # noqa: BLE001 - the connection may be closing already
            log.debug("disconnecting %s: %r", peer, error)

    def _address_group_of(self, peer: PeerId) -> str | None:
        return self.connections.address_group_of(peer)

    def _is_connected(self, peer: PeerId) -> bool:
        return peer in self.connections

    def _leave_alone(self, peer: PeerId) -> bool:
        """Return True if the dialer should not dial a peer."""
        enough = len(self.connections) >= ENOUGH_PEERS and not self._handlers.has_member(peer)
        return peer in self.connections or self.reputation.is_banned(peer) or enough


# ------------------------------------------------------------------------------------------------------------------------
# The network.


CLOSE_S = 2.0


class Libp2pNetwork:
    """One peer's end of the network.  Start it with `await nursery.start(network.run)`, end it with `close`.

    own: our addresses.  emit: receives `Notice`, `Dropped`, `LinkChanged` and `ReachabilityChanged`.

    See also `open_network`.
    """

    def __init__(
        self,
        identity: Identity,
        run: Hash,
        handlers: Handlers,
        settings: NetworkSettings,
        *,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._identity, self._run, self._handlers = identity, run, handlers
        self._settings, self._emit = settings, emit
        self._early_addresses: list[str] = []
        self._scope = trio.CancelScope(shield=True)
        self._stack: Stack | None = None
        self.own = OwnAddresses(
            identity.peer_id,
            settings.listen_host,
            settings.listen_port,
            settings.announce,
            reached=lambda: self.reachability().reached,
            circuits=lambda: self._stack.traversal.circuits.addresses(self.peer_id) if self._stack is not None else (),
            on_mapped=lambda: self._stack.inquiry.look_again() if self._stack is not None else None,
        )

    async def run(self, *, task_status: TaskStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Run until `close`, even if cancelled: the library closes its sockets only while its tasks still run.

        Raises `PortBusy` or `NetworkError` if the network cannot listen.
        """
        with self._scope:
            host = self._settings.listen_host
            self.own.port = claim_port(host, self.own.port)

            self._stack = Stack(
                self._identity, self._run, self._handlers, self._settings, self._emit, self.own.ports, self.own.ends
            )
            self._stack.dialer.remember(self._early_addresses)
            discover = self._settings.discover
            if discover is not None:
                discover = partial(discover, self._run, self.peer_id, self.own.nearby)
            await self._stack.run(host, self.own.port, discover, task_status=task_status)

    async def close(self) -> None:
        """Stop listening, close all connections, and end `run`, all within `CLOSE_S`."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            if self._stack is not None:
                await stop_listening(self._stack.host)
                await self._stack.connections.close_all()
        self._scope.cancel()

    @property
    def peer_id(self) -> PeerId:
        """Our peer ID."""
        return self._identity.peer_id

    def addresses(self) -> Sequence[str]:
        """Return the multiaddrs that other peers can dial, each ending in /p2p/<peer ID>."""
        return self.own.all()

    def reached_here(self, counts: Callable[[PeerId], bool]) -> list[str]:
        """Return the addresses at which other peers reach us, beginning with the announced ones (`NetworkSettings`).

        counts: returns True if we believe a peer's report about our addresses.
        """
        observed = self._stack.observed.addresses(counts) if self._stack is not None else []
        here = dict.fromkeys([*self._settings.announce, *self.reachability().reached, *observed])
        return [f"{address}/p2p/{self.peer_id}" for address in here]

    def reachability(self) -> Reachability:
        """Return the verdicts on our addresses that other peers were asked to dial."""
        return self._stack.inquiry.now if self._stack is not None else Reachability({})

    async def ask_reachability(self) -> None:
        """Ask some peers now to dial us.  Takes seconds."""
        if self._stack is not None:
            await self._stack.inquiry.inquire()

    def reached_there(self) -> list[str]:
        """Return the addresses at which our last attempt reached a peer of our run."""
        return self._stack.dialer.reached() if self._stack is not None else []

    def attempts(self) -> list[Attempt]:
        """Return the last attempt at each address that was dialled."""
        return self._stack.dialer.attempts() if self._stack is not None else []

    async def answers(self, address: str) -> bool:
        """Dial this address, even if its peer is already connected; return True if the peer answers there now."""
        return self._stack is not None and await self._stack.dialer.answers(address)

    def connected(self) -> Sequence[PeerId]:
        """Return the connected peers: peers that we dialled or that have greeted us."""
        return self._stack.connections.peers() if self._stack is not None else []

    def link(self, peer: PeerId) -> str:
        """Return the kind of a peer's connection: direct, reversed, punched or relayed; "" if the peer is not connected."""
        return self._stack.link(peer) if self._stack is not None else ""

    def measured_link(self, peer: PeerId) -> LinkMeasurement:
        """Return the measurements of a peer's connection; empty ones if it has none."""
        return self._stack.measured_link(peer) if self._stack is not None else LinkMeasurement()

    def welcome(self, peer: PeerId) -> None:
        """Stop treating `peer` as a stranger on all its connections, because a handshake has admitted it."""
        if self._stack is not None:
            self._stack.welcome(peer)

    def traffic(self) -> Traffic:
        """Return the payload moved since the start over all channels."""
        return self._stack.traffic() if self._stack is not None else Traffic(0, 0)

    def line_bytes(self) -> int:
        """Return the bytes that our line carried since the start, in both directions together, with packet headers."""
        return self._stack.line_bytes() if self._stack is not None else 0

    def limit(self, up: float | None, down: float | None) -> None:
        """Limit each direction from now on (bytes a second, None for no limit)."""
        self._settings = replace(self._settings, up_limit=up, down_limit=down)
        if self._stack is not None:
            self._stack.limit(up, down)

    def bandwidth(self) -> Bandwidth:
        """Return the measured or allowed rates of our links."""
        return self._stack.bandwidth() if self._stack is not None else Bandwidth(0.0, 0.0)

    async def receive_elsewhere(self, size: int) -> None:
        """Count `size` bytes that came from a server outside the run; wait until they fit the user's limit."""
        if self._stack is not None:
            await self._stack.receive_elsewhere(size)
        await trio.lowlevel.checkpoint()

    def is_moving(self) -> bool:
        """Return True if our own address is gone and we are reconnecting."""
        return self._stack is not None and self._stack.dead_ends.is_moving

    def remember(self, addresses: Sequence[str], *, claimed: bool = False) -> None:
        """Dial these addresses with backoff while their peers are not connected.  claimed: True if others named them."""
        if self._stack is not None:
            self._stack.dialer.remember(addresses, claimed=claimed)
        elif not claimed:
            self._early_addresses.extend(addresses)

    def known_addresses(self) -> Sequence[str]:
        """Return the addresses that are worth keeping on disk, best first."""
        return list(self._early_addresses) if self._stack is None else self._stack.dialer.known()

    def forget(self, peer: PeerId) -> None:
        """Disconnect a peer and do not dial it again."""
        if self._stack is not None:
            self._stack.forget(peer)

    async def publish(self, data: bytes) -> None:
        """Gossip an envelope.  Raises `NetworkError` before the start, or if `data` is larger than MAX_GOSSIP_BYTES."""
        if self._stack is None:
            raise NetworkError("the network has not started")
        await self._stack.gossip.publish(data)

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        """Ask a connected peer and return its answer.  Raises `Unreachable` or `Refused`."""
        if self._stack is None:
            raise Unreachable(f"{short_id(peer)} is not connected")
        return await self._stack.request(peer, kind, data, timeout_s)

    async def push(
        self,
        peer: PeerId,
        header: bytes,
        data: memoryview,
        *,
        timeout_s: float,
        spare: bool = False,
        on_sent: Callable[[], None] = nothing,
    ) -> None:
        """Send `data` into the buffer that `peer` provides for `header`.  Raises `Unreachable` or `Refused`."""
        if self._stack is None:
            raise Unreachable(f"{short_id(peer)} is not connected")
        await self._stack.push(peer, header, data, timeout_s, spare=spare, on_sent=on_sent)


@asynccontextmanager
async def open_network(
    identity: Identity,
    run: Hash,
    handlers: Handlers,
    settings: NetworkSettings,
    *,
    emit: Callable[[Event], None] = lambda event: None,
) -> AsyncIterator[Libp2pNetwork]:
    """Run a `Libp2pNetwork` during the block.  Raises `PortBusy` or `NetworkError` if the network cannot listen."""
    network = Libp2pNetwork(identity, run, handlers, settings, emit=emit)
    claim_port(settings.listen_host, settings.listen_port)  # here, so that `PortBusy` is raised outside any exception group
    async with trio.open_nursery() as nursery:
        try:
            with trio.CancelScope(shield=True):  # cancelling here would leave a shielded network that nothing closes
                await nursery.start(network.run)
            yield network
        finally:
            await network.close()
