"""The policy that serves or closes inbound connections.  It does no I/O: callers pass in the events and the time.

An inbound connection goes through four stages.  It is open and has sent nothing; it is queued for a handshake; its peer is a
stranger, during the handshake and until it greets us; its peer has greeted us.  Each open or queued connection costs a
socket.  A handshake costs milliseconds of a processor, so handshakes have an allowance.  Strangers get few places and little
time.

Places and handshakes go to the address with the fewest strangers first, and if room is needed, the address with the most
connections loses one.  Between equally crowded addresses, an address used by a member comes first, then an address used by
another greeted peer, so that a crowd of strangers cannot keep a member out.  Among greeted peers, a member's connection is
closed only if no other peer's is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from protocol.bounds import BoundedDict
from protocol.transport.interface import Members
from protocol.transport.limits import Allowance, TokenBucket
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Addresses that greeted peers have used, which come first among equally crowded addresses.
#
# A peer can make only a few addresses trusted, and a stranger's address never replaces a member's.  Otherwise one key that
# connects from thousands of addresses would displace all other addresses.


MAX_ADDRESSES_PER_PEER = 4
MAX_PEERS = 1024
"""Most members remembered, and most strangers; the least recent peer is forgotten first."""

_Known = BoundedDict[PeerId, BoundedDict[str, None]]


class TrustedAddresses:
    """The addresses that greeted peers have used; `rank` sorts them.  members: tells members from strangers."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._of_members, self._of_strangers = _Known(MAX_PEERS), _Known(MAX_PEERS)
        self._ranks: dict[str, int] | None = None

    def __contains__(self, address: str) -> bool:
        return self.rank(address) > 0

    def __len__(self) -> int:
        return len(self._ranked())

    def rank(self, address: str) -> int:
        """Return 2 if a member has used the address, 1 if another greeted peer has used it, else 0."""
        return self._ranked().get(address, 0)

    def note(self, peer: PeerId, address: str) -> None:
        """Note that a greeted peer uses this address."""
        member = self._members.has_member(peer)
        known, others = (self._of_members, self._of_strangers) if member else (self._of_strangers, self._of_members)
        if others.pop(peer, None) is not None or address not in known.get(peer, ()):
            self._ranks = None
        addresses = known.get(peer) or BoundedDict[str, None](MAX_ADDRESSES_PER_PEER)
        addresses.renew(address, None)
        known.renew(peer, addresses)

    def _ranked(self) -> dict[str, int]:
        if self._ranks is None:
            self._ranks = {address: 1 for addresses in self._of_strangers.values() for address in addresses}
            self._ranks |= {address: 2 for addresses in self._of_members.values() for address in addresses}
        return self._ranks


# ------------------------------------------------------------------------------------------------------------------------


MAX_REMEMBERED = 4096
"""Most greeted peers remembered; strangers are forgotten before members, the least recent first."""
STEP_AGAIN_S = 0.05
"""Seconds until the next step while a connection is queued."""


RESERVED_FILES = 640
"""Open files reserved for links that carry chunks, for connections that we open, and for our own files."""


@dataclass(frozen=True)
class InboundLimits:
    """Limits on the number of inbound connections in each stage, and on their time in it (s)."""

    queue: int = 256
    """Most connections that are open or queued."""
    first_byte_s: float = 5.0
    """Longest time from the opening to the first byte."""
    queued_s: float = 15.0
    fresh_s: float = 6.0
    """Time in the queue after which newer connections of the same address go first: the older one's peer soon gives up."""
    strangers: int = 256
    """Most strangers; each takes about 50 KB of memory."""
    strangers_per_address: int = 128
    greeting_s: float = 10.0
    """Longest time from the beginning of the handshake to the greeting; enough to ping and identify."""
    protected_s: float = 4.0
    """Time for which a stranger is not displaced, counted from the beginning of its handshake and again from the end: long
    enough to greet.  A connection from a trusted address may displace the stranger during this time too."""
    greeted: int = 256
    per_peer: int = 4
    """Most connections of one peer.  Two peers that dial each other have two; more are leftovers of broken links."""
    handshakes: Allowance = Allowance(25, math.inf, 4)
    """Allowance of handshakes; each takes about 7 ms of a processor."""
    overload_price: float = 5.0
    """Handshakes of the allowance that one handshake uses up while the processor is overloaded."""

    @classmethod
    def within(cls, files: int) -> InboundLimits:
        """Return the default limits, or smaller ones if the process may open only `files` files and sockets."""
        each = max(16, min(cls.queue, (files - RESERVED_FILES) // 3))
        return cls(queue=each, strangers=each, strangers_per_address=each // 2, greeted=each)


class Stage(Enum):
    """The stage of an inbound connection."""

    OPENED = "opened"
    QUEUED = "queued"
    STRANGER = "stranger"
    GREETED = "greeted"


class CloseReason(Enum):
    """The reason for closing a connection."""

    SILENT = "did not greet in time"
    CROWDED = "there was no room"
    SURPLUS = "its peer has newer ones"


@dataclass
class InboundDecision:
    """The actions due now.

    handshake: numbers of the connections whose handshake begins.  close: reasons by number of the connections to close.
    again_at: time of the next step.
    """

    handshake: list[int] = field(default_factory=list)
    close: dict[int, CloseReason] = field(default_factory=dict)
    again_at: float = math.inf


@dataclass
class _Connection:
    number: int
    address: str
    since: float
    """Time at which the present stage began."""
    protected_from: float = 0.0
    stage: Stage = Stage.OPENED
    peer: PeerId | None = None


class InboundPolicy:
    """The inbound connections to our peer, by increasing numbers.

    members: tells members from strangers.  on_closed: called with the address and the reason for each connection that a
    decision closes.
    """

    def __init__(
        self,
        limits: InboundLimits,
        now: float,
        members: Members,
        on_closed: Callable[[str, CloseReason], None] = lambda address, reason: None,
    ) -> None:
        self._limits, self._members, self._on_closed = limits, members, on_closed
        self._connections: dict[int, _Connection] = {}
        self._greeted = BoundedDict[PeerId, None](MAX_REMEMBERED, lambda peer, _: not members.has_member(peer))
        self._trusted = TrustedAddresses(members)
        self._handshakes = TokenBucket(limits.handshakes)

    # -- events -------------------------------------------------------------------------------------------------------

    def opened(self, number: int, address: str, now: float) -> None:
        """Note that a connection from `address` was accepted."""
        self._connections[number] = _Connection(number, address, now)

    def received(self, number: int, now: float) -> None:
        """Queue a connection for a handshake, because its first byte has arrived."""
        connection = self._connections.get(number)
        if connection is not None and connection.stage is Stage.OPENED:
            connection.stage, connection.since = Stage.QUEUED, now

    def authenticated(self, number: int, peer: PeerId, now: float) -> None:
        """Note that the handshake of a connection is complete and has proved the identity of its peer."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.peer, connection.protected_from = peer, now
            if peer in self._greeted:
                self._promote(connection, peer)

    def welcome(self, peer: PeerId) -> None:
        """Treat all connections of a peer as greeted, because the peer has greeted us and was admitted."""
        self._greeted.renew(peer, None)
        for connection in self._connections.values():
            if connection.peer == peer:
                self._promote(connection, peer)

    def revoke(self, peer: PeerId) -> None:
        """Treat later connections of a peer as a stranger's again."""
        self._greeted.pop(peer, None)

    def has_greeted(self, peer: PeerId) -> bool:
        """Return True if a peer has greeted us and was admitted."""
        return peer in self._greeted

    def closed(self, number: int) -> None:
        """Forget a connection that either end has closed."""
        self._connections.pop(number, None)

    def count(self, *stages: Stage) -> int:
        """Return the number of connections in any of these stages."""
        return sum(1 for _ in self._in(*stages))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def step(self, now: float, overloaded: bool = False) -> InboundDecision:
        """Return the actions due by `now`, and forget the connections that must be closed.

        overloaded: True if this process gets less processor time than it needs.
        """
        decision = InboundDecision()
        self._close_overdue(now, decision)
        self._close_surplus(decision)
        self._shorten_queue(decision)
        self._begin_handshakes(now, self._limits.overload_price if overloaded else 1.0, decision)
        decision.again_at = min(
            (
                now + STEP_AGAIN_S if connection.stage is Stage.QUEUED else self._due(connection)
                for connection in self._connections.values()
            ),
            default=math.inf,
        )
        return decision

    def _close_overdue(self, now: float, decision: InboundDecision) -> None:
        for connection in list(self._connections.values()):
            if self._due(connection) <= now:
                reason = CloseReason.CROWDED if connection.stage is Stage.QUEUED else CloseReason.SILENT
                self._close(connection, reason, decision)

    def _due(self, connection: _Connection) -> float:
        limits = self._limits
        match connection.stage:
            case Stage.OPENED:
                return connection.since + limits.first_byte_s
            case Stage.QUEUED:
                return connection.since + limits.queued_s
            case Stage.STRANGER:
                return connection.since + limits.greeting_s
            case Stage.GREETED:
                return math.inf

    def _close_surplus(self, decision: InboundDecision) -> None:
        """Close a peer's oldest connections over its limit, then the newest greeted ones of the busiest address.

        Of the greeted connections, members' connections are closed last.
        """
        peers = Counter(connection.peer for connection in self._connections.values() if connection.peer is not None)
        for connection in list(self._connections.values()):
            if connection.peer is not None and peers[connection.peer] > self._limits.per_peer:
                peers[connection.peer] -= 1
                self._close(connection, CloseReason.SURPLUS, decision)
        greeted = list(self._in(Stage.GREETED))
        addresses = Counter(connection.address for connection in greeted)
        for _ in range(len(greeted) - self._limits.greeted):
            newest = max(greeted, key=lambda each: (not self._is_members(each), addresses[each.address], each.number))
            greeted.remove(newest)
            addresses[newest.address] -= 1
            self._close(newest, CloseReason.CROWDED, decision)

    def _shorten_queue(self, decision: InboundDecision) -> None:
        """Close the oldest silent connections, then the newest queued ones, each from the address with the most of them."""
        too_many = self.count(Stage.OPENED, Stage.QUEUED) - self._limits.queue
        if too_many <= 0:
            return
        oldest_last: dict[str, list[_Connection]] = {}
        for connection in reversed(list(self._in(Stage.OPENED))):
            oldest_last.setdefault(connection.address, []).append(connection)
        newest_last: dict[str, list[_Connection]] = {}
        for connection in self._in(Stage.QUEUED):
            newest_last.setdefault(connection.address, []).append(connection)
        for _ in range(too_many):
            queue = oldest_last or newest_last
            address = max(queue, key=lambda address: (len(queue[address]), -self._trusted.rank(address)))
            self._close(queue[address].pop(), CloseReason.CROWDED, decision)
            if not queue[address]:
                del queue[address]

    def _begin_handshakes(self, now: float, price: float, decision: InboundDecision) -> None:
        """Begin as many handshakes as the allowance and the places permit."""
        while self._handshakes.left_s(now) >= price / self._limits.handshakes.per_s:
            found = self._next(now)
            if found is None:
                return
            connection, displaced = found
            self._handshakes.take(now, price)
            if displaced is not None:
                self._close(displaced, CloseReason.CROWDED, decision)
            connection.stage, connection.since, connection.protected_from = Stage.STRANGER, now, now
            decision.handshake.append(connection.number)

    def _next(self, now: float) -> tuple[_Connection, _Connection | None] | None:
        """Return the connection whose handshake begins next, and the stranger that it displaces; None if none can begin."""
        limits = self._limits
        strangers = list(self._in(Stage.STRANGER))
        inside = Counter(stranger.address for stranger in strangers)
        old = [stranger for stranger in strangers if stranger.protected_from + limits.protected_s <= now]
        for connection in self._candidates(inside, now):
            displaceable = strangers if connection.address in self._trusted else old
            if inside[connection.address] >= limits.strangers_per_address:
                displaceable = [stranger for stranger in displaceable if stranger.address == connection.address]
            elif len(strangers) < limits.strangers:
                return connection, None
            if displaceable:
                return connection, self._of_busiest(displaceable)[0]
        return None

    def _candidates(self, inside: Counter[str], now: float) -> list[_Connection]:
        """Return one queued connection from each address, beginning with the address with the fewest strangers."""
        first: dict[str, _Connection] = {}
        for connection in self._in(Stage.QUEUED):
            if not self._is_fresh(first.get(connection.address), now):
                first[connection.address] = connection
        return sorted(first.values(), key=lambda each: (inside[each.address], -self._trusted.rank(each.address)))

    def _is_fresh(self, connection: _Connection | None, now: float) -> bool:
        return connection is not None and connection.since + self._limits.fresh_s > now

    # -- the connections ----------------------------------------------------------------------------------------------

    def _in(self, *stages: Stage) -> Iterator[_Connection]:
        """Return the connections in any of these stages, oldest first."""
        return (connection for connection in self._connections.values() if connection.stage in stages)

    def _of_busiest(self, connections: list[_Connection]) -> list[_Connection]:
        """Return the connections from the address with the most connections, in the given order."""
        counts = Counter(connection.address for connection in connections)
        busiest = max(counts, key=lambda address: (counts[address], -self._trusted.rank(address)))
        return [connection for connection in connections if connection.address == busiest]

    def _is_members(self, connection: _Connection) -> bool:
        return connection.peer is not None and self._members.has_member(connection.peer)

    def _promote(self, connection: _Connection, peer: PeerId) -> None:
        connection.stage = Stage.GREETED
        self._trusted.note(peer, connection.address)

    def _close(self, connection: _Connection, reason: CloseReason, decision: InboundDecision) -> None:
        del self._connections[connection.number]
        decision.close[connection.number] = reason
        self._on_closed(connection.address, reason)
