"""The policy that serves or closes inbound connections.  Pure: callers tell it the events and the time.

An inbound connection goes through four stages: it is open and has sent nothing; it is queued for a handshake; its peer is a
stranger (during the handshake and until it greets us); its peer has greeted us.  Open and queued connections cost a socket.
A handshake costs milliseconds of a processor, so handshakes have an allowance.  Strangers have few places and little time.

Places and handshakes are shared out by address: an address with many connections waits for and displaces its own.  Between
equally crowded addresses, one that a member has used comes first, then one that another greeted peer has used, so that no
crowd of strangers keeps a member out.  Among greeted peers, a member's connection is closed only if no other peer's is left.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from protocol.transport.interface import Members
from protocol.transport.rate_limit import Allowance, TokenBucket
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Addresses that greeted peers have used: they come first among equally crowded addresses.
#
# A peer vouches for a few addresses only, and addresses of members are never forgotten to make room for strangers' ones:
# otherwise one key that connects from thousands of addresses would push out all others.


MAX_ADDRESSES_PER_PEER = 4
MAX_PEERS = 1024
"""Members remembered, and as many strangers; the least recent is forgotten first."""

_Known = OrderedDict[PeerId, OrderedDict[str, None]]


class TrustedAddresses:
    """The addresses that greeted peers have used; `rank` sorts them.  members: tells members from strangers."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._of_members: _Known = OrderedDict()
        self._of_strangers: _Known = OrderedDict()
        self._ranks: dict[str, int] | None = None

    def __contains__(self, address: str) -> bool:
        return self.rank(address) > 0

    def __len__(self) -> int:
        return len(self._ranked())

    def rank(self, address: str) -> int:
        """Return 2 if a member has used the address, 1 if another greeted peer has, else 0."""
        return self._ranked().get(address, 0)

    def note(self, peer: PeerId, address: str) -> None:
        """Note that a greeted peer uses this address."""
        member = self._members.has_member(peer)
        known, others = (self._of_members, self._of_strangers) if member else (self._of_strangers, self._of_members)
        if others.pop(peer, None) is not None or address not in known.get(peer, ()):
            self._ranks = None
        _put(known.setdefault(peer, OrderedDict()), address, MAX_ADDRESSES_PER_PEER)
        known.move_to_end(peer)
        if len(known) > MAX_PEERS:
            known.popitem(last=False)

    def _ranked(self) -> dict[str, int]:
        if self._ranks is None:
            self._ranks = {address: 1 for addresses in self._of_strangers.values() for address in addresses}
            self._ranks |= {address: 2 for addresses in self._of_members.values() for address in addresses}
        return self._ranks


def _put(addresses: OrderedDict[str, None], address: str, most: int) -> None:
    addresses[address] = None
    addresses.move_to_end(address)
    if len(addresses) > most:
        addresses.popitem(last=False)


# ------------------------------------------------------------------------------------------------------------------------


MAX_REMEMBERED = 4096
"""Greeted peers remembered; the least recent is forgotten first, strangers before members."""
STEP_AGAIN_S = 0.05
"""Seconds until the next step while a connection is queued."""


RESERVED_FILES = 640
"""Files left for links that carry chunks, for connections that we open, and for our own files."""


@dataclass(frozen=True)
class InboundLimits:
    """Limits on the number of inbound connections in each stage, and on their time there (s)."""

    queue: int = 256
    """Connections that are open or queued."""
    first_byte_s: float = 5.0
    """Time from the opening to the first byte."""
    queued_s: float = 15.0
    fresh_s: float = 6.0
    """Time in the queue after which a connection comes after all others of its address: its peer will soon give up."""
    strangers: int = 256
    """Strangers, which take about 50 KB of memory each."""
    strangers_per_address: int = 128
    greeting_s: float = 10.0
    """Time from the beginning of the handshake to the greeting; enough to ping and identify."""
    protected_s: float = 4.0
    """Time for which a stranger is not closed to make room, from the beginning of its handshake and again from its end: long
    enough to greet.  A connection from a trusted address may displace it all the same."""
    greeted: int = 256
    per_peer: int = 4
    """Connections of one peer.  Two peers that dial each other have two; more are left over from a link that broke."""
    handshakes: Allowance = Allowance(25, math.inf, 4)
    """Handshakes, which take about 7 ms of a processor each."""
    overload_price: float = 5.0
    """Factor by which a handshake takes more of the allowance while the processor is overloaded."""

    @classmethod
    def within(cls, files: int) -> InboundLimits:
        """Return the usual limits, or smaller ones for a process that may have only `files` files and sockets open."""
        each = max(16, min(cls.queue, (files - RESERVED_FILES) // 3))
        return cls(queue=each, strangers=each, strangers_per_address=each // 2, greeted=each)


class Stage(Enum):
    """The stage of an inbound connection."""

    OPENED = "opened"
    QUEUED = "queued"
    STRANGER = "stranger"
    GREETED = "greeted"


class CloseReason(Enum):
    """The reason why a connection was closed."""

    SILENT = "did not greet in time"
    CROWDED = "there was no room"
    SURPLUS = "its peer has newer ones"


@dataclass
class InboundDecision:
    """The actions due now: handshakes to begin and connections to close, by number.  again_at: time of the next step."""

    handshake: list[int] = field(default_factory=list)
    close: dict[int, CloseReason] = field(default_factory=dict)
    again_at: float = math.inf


@dataclass
class _Connection:
    number: int
    address: str
    since: float
    """The time when its stage began."""
    protected_from: float = 0.0
    stage: Stage = Stage.OPENED
    peer: PeerId | None = None


class InboundPolicy:
    """The inbound connections to our peer, by increasing numbers.

    members: tells members from strangers.  on_closed: told the address and the reason for each connection that a decision
    closes.
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
        self._greeted: OrderedDict[PeerId, None] = OrderedDict()
        self._trusted = TrustedAddresses(members)
        self._handshakes = TokenBucket(limits.handshakes.burst_s, 0, now)

    # -- events -------------------------------------------------------------------------------------------------------

    def opened(self, number: int, address: str, now: float) -> None:
        """Note that a connection from `address` was accepted."""
        self._connections[number] = _Connection(number, address, now)

    def received(self, number: int, now: float) -> None:
        """Queue a connection for a handshake, as its first byte has arrived."""
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
        """Treat all connections of a peer as greeted, as it has greeted us and was admitted."""
        self._greeted[peer] = None
        self._greeted.move_to_end(peer)
        if len(self._greeted) > MAX_REMEMBERED:
            strangers = (known for known in self._greeted if not self._members.has_member(known))
            del self._greeted[next(strangers, next(iter(self._greeted)))]
        for connection in self._connections.values():
            if connection.peer == peer:
                self._promote(connection, peer)

    def revoke(self, peer: PeerId) -> None:
        """Treat the next connections of a peer as a stranger's again."""
        self._greeted.pop(peer, None)

    def has_greeted(self, peer: PeerId) -> bool:
        """Return True if a peer has greeted us and was admitted."""
        return peer in self._greeted

    def closed(self, number: int) -> None:
        """Forget a connection that has ended, at either end."""
        self._connections.pop(number, None)

    def count(self, *stages: Stage) -> int:
        """Return the number of connections in any of these stages."""
        return sum(1 for _ in self._in(*stages))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def step(self, now: float, overloaded: bool = False) -> InboundDecision:
        """Return the actions due by `now`.  Connections to be closed are forgotten here at once.

        overloaded: this process gets less of the processor than it needs.
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
        """Close the oldest connections of a peer over its limit, and the newest greeted ones from the busiest address.

        Members' connections are closed last.
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
        """Close silent connections, oldest first, then queued ones, newest first, each from the busiest address."""
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
        while self._handshakes.holds(self._limits.handshakes, now, price):
            found = self._next(now)
            if found is None:
                return
            connection, displaced = found
            self._handshakes.take(self._limits.handshakes, now, price, 0)
            if displaced is not None:
                self._close(displaced, CloseReason.CROWDED, decision)
            connection.stage, connection.since, connection.protected_from = Stage.STRANGER, now, now
            decision.handshake.append(connection.number)

    def _next(self, now: float) -> tuple[_Connection, _Connection | None] | None:
        """Return the connection whose handshake begins next and the stranger that it displaces, if any; None if none can."""
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
        """Return one queued connection of each address, the address with the fewest strangers first."""
        first: dict[str, _Connection] = {}
        for connection in self._in(Stage.QUEUED):
            if not self._is_fresh(first.get(connection.address), now):
                first[connection.address] = connection
        return sorted(first.values(), key=lambda each: (inside[each.address], -self._trusted.rank(each.address)))

    def _is_fresh(self, connection: _Connection | None, now: float) -> bool:
        return connection is not None and connection.since + self._limits.fresh_s > now

    # -- the connections ----------------------------------------------------------------------------------------------

    def _in(self, *stages: Stage) -> Iterator[_Connection]:
        """Return the connections in any of these stages, the oldest first."""
        return (connection for connection in self._connections.values() if connection.stage in stages)

    def _of_busiest(self, connections: list[_Connection]) -> list[_Connection]:
        """Return the connections from the address that has the most of them, in their order."""
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
