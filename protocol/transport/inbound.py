"""The inbound connections of a swarm: accepted here, and served or closed as `inbound_policy` decides.

This module replaces the library's own handling.  Version 0.8.1 takes one of a limiter's 256 tokens for each inbound
connection and returns the token only when the whole swarm ends, so after 256 connections it accepts no more.  Here a
connection is one task, from the accepted socket to the end of the connection.  In every case the task's end frees the place
of the connection and closes its socket.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import trio

from protocol.events.events import Notice, NoticeCode
from protocol.formatting import clean, short
from protocol.transport.inbound_policy import CloseReason, InboundLimits, InboundPolicy, Stage
from protocol.transport.interface import Members
from protocol.transport.library import AcceptedStream, Address, HostConnections, peer_id_of
from protocol.transport.limits import Reputation
from protocol.transport.sockets import Way, marked_stream, raw_connection, remote_end_of, way_of
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Events that sum up closed inbound connections: the first event at once, then at most one a minute.


EVENT_EVERY_S = 60.0
MAX_ADDRESSES = 256
"""Most addresses that are counted separately between two events."""


class CloseSummary:
    """The counts of closed connections between two events.  Callers pass in the time (s, monotonic)."""

    def __init__(self) -> None:
        self._reasons: Counter[CloseReason] = Counter()
        self._addresses: Counter[str] = Counter()
        self._last_event_at = -math.inf

    def count(self, address: str, reason: CloseReason) -> None:
        """Count a closed connection, unless the same peer has newer connections."""
        if reason is CloseReason.SURPLUS:
            return
        self._reasons[reason] += 1
        if address in self._addresses or len(self._addresses) < MAX_ADDRESSES:
            self._addresses[address] += 1

    @property
    def due_at(self) -> float:
        """The time at which the next event is due; infinite while there is nothing to report."""
        return self._last_event_at + EVENT_EVERY_S if self._reasons else math.inf

    def take(self, now: float) -> Notice | None:
        """Return the event that is due by `now` and restart the counts; None if no event is due."""
        if self.due_at > now:
            return None
        (busiest, _), *_ = self._addresses.most_common(1)
        silent, crowded = self._reasons[CloseReason.SILENT], self._reasons[CloseReason.CROWDED]
        where, _, relay = busiest.rpartition(" ")
        source = clean(f"{where} {short(relay)}" if where else busiest)
        text = (
            f"closed {silent + crowded} connections from outside ({silent} that did not greet in time, {crowded} for lack "
            f"of room), most of them from {source}"
        )
        details = {"silent": silent, "crowded": crowded, "busiest": busiest}
        self._reasons.clear()
        self._addresses.clear()
        self._last_event_at = now
        return Notice("info", text, NoticeCode.STRANGERS_CLOSED, details)


# ------------------------------------------------------------------------------------------------------------------------


PAUSE_PER_CONNECTION_S = 50e-6
"""Pause between two steps of the policy, for each connection: a step takes 1 or 2 µs for each connection."""
RELAYED_BY = "relayed by "
"""Prefix of a relay's address group: all connections through one relay count as connections from one address."""
LATE_S = 0.1
"""Delay of a task's wake-up above which the processor counts as overloaded (s)."""
OVERLOAD_S = 1.0
"""Seconds after such a delay during which fewer handshakes begin."""
_TCP_ESTABLISHED = 1

Door = Callable[[trio.socket.SocketType, str], Awaitable[None]]
"""Function that serves a socket until the socket's end, given its address group.  It may raise anything."""

log = logging.getLogger(__name__)


class _Accepted:
    """The task of one connection.  handshake: set to let the handshake begin.  scope: cancelled to end the task."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.sock = sock
        self.handshake = trio.Event()
        self.scope = trio.CancelScope()


class InboundConnections:
    """The inbound connections of one swarm.  Call `attach`, then `run`.

    members: tells members from strangers.  on_closed: called with sums of closed connections.  doors: handlers of sockets
    that are not libp2p connections, by the first byte; each handler has its own limits.
    """

    def __init__(
        self,
        reputation: Reputation,
        limits: InboundLimits,
        members: Members,
        on_closed: Callable[[Notice], None],
        doors: Mapping[bytes, Door],
    ) -> None:
        self._reputation, self._on_closed, self._doors = reputation, on_closed, doors
        self._summary = CloseSummary()
        self._policy = InboundPolicy(limits, trio.current_time(), members, self._summary.count)
        self._accepted: dict[int, _Accepted] = {}
        self._numbers = itertools.count()
        self._changed = trio.Event()
        self._swarm: HostConnections | None = None

    def attach(self, swarm: HostConnections) -> None:
        """Handle the connections that `swarm` accepts from now on."""
        self._swarm = swarm
        swarm._handle_inbound_connection = self._serve

    async def run(self) -> None:
        """Carry out the policy's decisions until cancelled."""
        overloaded_until = -math.inf
        while True:
            self._changed = trio.Event()
            self._drop_closed_sockets()
            decision = self._policy.step(trio.current_time(), trio.current_time() < overloaded_until)
            for number in decision.close:
                self._accepted[number].scope.cancel()
            for number in decision.handshake:
                self._accepted[number].handshake.set()
            event = self._summary.take(trio.current_time())
            if event is not None:
                self._on_closed(event)
            until = trio.current_time() + PAUSE_PER_CONNECTION_S * len(self._accepted)
            await trio.sleep_until(until)
            if trio.current_time() > until + LATE_S:
                overloaded_until = trio.current_time() + OVERLOAD_S
            with trio.move_on_at(min(decision.again_at, self._summary.due_at)):
                await self._changed.wait()

    def _drop_closed_sockets(self) -> None:
        """Drop connections that the other end closed before their handshake began."""
        for number, accepted in self._accepted.items():
            if not accepted.handshake.is_set() and _is_closed(accepted.sock):
                accepted.scope.cancel()
                self._policy.closed(number)

    def welcome(self, peer: PeerId) -> None:
        """Treat all connections of a peer as greeted, because the peer has greeted us and was admitted."""
        self._policy.welcome(peer)
        self._changed.set()

    def revoke(self, peer: PeerId) -> None:
        """Treat later connections of a peer as a stranger's again."""
        self._policy.revoke(peer)

    def has_greeted(self, peer: PeerId) -> bool:
        """Return True if a peer has greeted us and was admitted."""
        return self._policy.has_greeted(peer)

    def count(self, *stages: Stage) -> int:
        """Return the number of connections in any of these stages."""
        return self._policy.count(*stages)

    async def _serve(self, stream: AcceptedStream, listening_at: Address) -> None:
        """Serve an accepted connection for the library.  Raises nothing."""
        await self._from(group_at_the_other_end(stream.stream.socket), stream, listening_at)

    async def take(self, socket: trio.SocketStream, address: str, way: Way) -> None:
        """Serve a peer's socket that did not arrive at our listening port, as if we had accepted it there.

        address: the address group for which the socket counts.  Raises nothing.
        """
        from multiaddr import Multiaddr

        await self._from(address, cast(AcceptedStream, marked_stream(socket, way)), Multiaddr("/ip4/0.0.0.0"))

    async def _from(self, address: str, stream: AcceptedStream, listening_at: Address) -> None:
        number, accepted = next(self._numbers), _Accepted(stream.stream.socket)
        try:
            if self._reputation.admits_connection(address):
                self._accepted[number] = accepted
                self._policy.opened(number, address, trio.current_time())
                self._changed.set()
                with accepted.scope:
                    first = await accepted.sock.recv(1, socket.MSG_PEEK)
                    door = self._doors.get(first)
                    if door is not None:
                        self._forget(number)
                        await door(accepted.sock, address)
                    elif first:
                        await self._through_all_stages(number, accepted, stream, listening_at)
        except Exception as error:  # noqa: BLE001 - the library raises anything; a connection that failed is over
            log.debug("a connection from %s failed: %r", address, error)
        finally:
            self._forget(number)
            await trio.aclose_forcefully(stream.stream)

    def _forget(self, number: int) -> None:
        """Free the place of a connection."""
        self._accepted.pop(number, None)
        self._policy.closed(number)
        self._changed.set()

    async def _through_all_stages(
        self, number: int, accepted: _Accepted, stream: AcceptedStream, listening_at: Address
    ) -> None:
        """Handle a connection, whose first byte has arrived, through all stages until its end."""
        self._policy.received(number, trio.current_time())
        self._changed.set()
        await accepted.handshake.wait()
        assert self._swarm is not None
        raw = raw_connection(stream.stream, way_of(stream), dialled=False)
        connection = await self._swarm.upgrade_inbound_raw_conn(raw, listening_at)
        self._policy.authenticated(number, peer_id_of(connection.peer_id), trio.current_time())
        self._changed.set()
        await connection.ended.wait()


def group_at_the_other_end(sock: trio.socket.SocketType) -> str:
    """Return the address group for which a socket counts; "unknown" if the other end has closed the socket.

    We ask the socket, because the library does not support IPv6 here.
    """
    end = remote_end_of(sock)
    return address_group(end[0] if end is not None else None)


def _is_closed(sock: trio.socket.SocketType) -> bool:
    """Return True if the other end has closed a connection that we still read; False if the kernel cannot tell us."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return True
    return state[0] != _TCP_ESTABLISHED


def relayed_group(relay: PeerId) -> str:
    """Return the address group for which connections through this relay count."""
    return f"{RELAYED_BY}{relay}"


def address_group(host: str | None) -> str:
    """Return the address group of a host: an IPv4 address, or a /64 network of IPv6, which may belong to one computer."""
    if host is None:
        return "unknown"
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
