"""Limits on what other peers may cost us.

Keys cost nothing, so a limit on one peer is useless against a crowd.  Every limit therefore has a part for all strangers
together, and what strangers use up is not missing for members.  There are six forms:

* `TokenBucket`: an amount a second, with a burst.
* `Share`: places, and a bucket, of all members together or of all strangers together.
* `displaced`: the peer that loses a place when all are taken: a stranger to a member, or a peer with more to one with fewer.
* `Doorstep`: places of sockets whose peer is unknown; the address with the most loses one.
* `MemoryBudget`: bytes held at one time, of which strangers get a part, and one peer at most as much as it leaves free.
* `Reputation`: buckets for each peer's messages, by channel; penalties and bans; and a bucket for the bans of each address.

`answer_budget` adds turns for answers, `inbound_policy` places for connections, `gossip` turns for messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TypeVar

import trio

from protocol.bounds import BoundedDict
from protocol.transport.interface import Members, Unreachable
from protocol.wire.identity import PeerId

K = TypeVar("K")

# ------------------------------------------------------------------------------------------------------------------------
# Token buckets: a number of messages and bytes a second; some seconds' worth of both can be saved up for a burst.


@dataclass(frozen=True, eq=False)  # equal values would make two channels one
class Allowance:
    """An allowance of messages and bytes a second; at most `burst_s` seconds' worth of each is saved up."""

    per_s: float
    bytes_per_s: float
    burst_s: float


class TokenBucket:
    """The rest of an allowance, in seconds' worth of messages and of bytes.  Callers pass in the time (s, monotonic).

    empty_at: time at which the bucket was empty; by default it is full.
    """

    __slots__ = ("_at", "_bytes_s", "_messages_s", "allowance")

    def __init__(self, allowance: Allowance, empty_at: float = -inf) -> None:
        self.allowance, self._at = allowance, empty_at
        self._messages_s = self._bytes_s = 0.0

    def take(self, now: float, messages: float = 1, size: float = 0) -> bool:
        """Use `messages` messages and `size` bytes of the allowance.  Return False and use nothing if too little is left.

        A message larger than the whole burst passes if the bucket is full.
        """
        self._refill(now)
        allowance = self.allowance
        messages_s, bytes_s = messages / allowance.per_s, size / allowance.bytes_per_s
        if self._messages_s < messages_s or self._bytes_s < min(bytes_s, allowance.burst_s):
            return False
        self._messages_s -= messages_s
        self._bytes_s -= bytes_s
        return True

    def charge(self, now: float, messages: float, size: float = 0) -> None:
        """Use the allowance for something that has already happened; the bucket may owe some seconds afterwards."""
        self._refill(now)
        self._messages_s -= messages / self.allowance.per_s
        self._bytes_s -= size / self.allowance.bytes_per_s

    def left_s(self, now: float) -> float:
        """Return the seconds' worth left of messages or of bytes, whichever is less; negative if the bucket owes some."""
        self._refill(now)
        return min(self._messages_s, self._bytes_s)

    def debt_s(self, now: float) -> float:
        """Return the seconds until the bucket owes nothing."""
        return max(0.0, -self.left_s(now))

    def _refill(self, now: float) -> None:
        passed, self._at, burst_s = now - self._at, now, self.allowance.burst_s
        self._messages_s = min(burst_s, self._messages_s + passed)
        self._bytes_s = min(burst_s, self._bytes_s + passed)


# ------------------------------------------------------------------------------------------------------------------------
# Places: how much may go on at one time.


class Share:
    """The limit on something that all members together, or all strangers together, make us do.

    places: most of it at one time; waiting for a place is first come, first served.  allowance: most of it over time.
    """

    def __init__(self, places: int, allowance: Allowance) -> None:
        self.bucket = TokenBucket(allowance)
        self.places = trio.Semaphore(places)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place during the block.  Raises `Unreachable` if none is free."""
        try:
            self.places.acquire_nowait()
        except trio.WouldBlock as error:
            raise Unreachable("too much of this goes on already") from error
        try:
            yield
        finally:
            self.places.release()

    async def wait_for_allowance(self) -> None:
        """Wait until the allowance permits one more, and use it up for that."""
        while not self.bucket.take(trio.current_time()):
            await trio.sleep(1 / self.bucket.allowance.per_s)


def fullest(held: Mapping[K, int], least: float = 0) -> K | None:
    """Return the holder of the most places, the first of several; None if it holds fewer than `least`."""
    busiest = max(held, key=held.__getitem__, default=None)
    return busiest if busiest is not None and held[busiest] >= least else None


def displaced(asker: PeerId, held: Mapping[PeerId, int], members: Members) -> PeerId | None:
    """Return the peer that loses a place to `asker` when all places are taken; None if the asker gets none.

    held: number of places by peer.  A member takes a place from the stranger with the most.  Among members, and among
    strangers, a peer loses a place only if it has at least two more than the asker.
    """
    is_member, least = members.has_member(asker), held.get(asker, 0) + 2
    strangers = {peer: count for peer, count in held.items() if peer != asker and not members.has_member(peer)}
    if is_member and strangers:
        return fullest(strangers)
    return fullest({peer: count for peer, count in held.items() if peer != asker} if is_member else strangers, least)


MAX_ON_DOORSTEP = 64
"""Most sockets that wait at one time.  A further socket displaces the oldest one from the address with the most sockets."""


class Doorstep:
    """Inbound sockets that are not libp2p connections and have not yet authenticated, of one peer or program.

    An honest peer authenticates within milliseconds, so its socket seldom has to be closed to make room.
    """

    def __init__(self) -> None:
        self._waiting: dict[trio.socket.SocketType, str] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def waits(self, sock: trio.socket.SocketType, address: str) -> Iterator[None]:
        """Count a socket from this address as waiting during the block.  It may be closed to make room for a new one."""
        if len(self._waiting) >= MAX_ON_DOORSTEP:
            busiest = fullest(Counter(self._waiting.values()))
            oldest = next(other for other, where in self._waiting.items() if where == busiest)
            del self._waiting[oldest]
            oldest.close()
        self._waiting[sock] = address
        try:
            yield
        finally:
            self._waiting.pop(sock, None)


# ------------------------------------------------------------------------------------------------------------------------
# Memory.
#
# A peer may hold at most as much as remains free: one peer gets half of the budget, two get a third each, and a few more
# get a share of the rest.  Small messages are not counted, so every peer can greet and catch up while the budget is used up.


SMALL_BYTES = 4 << 10
"""Largest message that is not counted."""


class MemoryBudget:
    """A budget of bytes that are in memory at one time for other peers.

    members: tells members from strangers.  of_strangers: the part of the budget's `total` bytes that all strangers together
    may hold.
    """

    def __init__(self, members: Members, total: int, of_strangers: int) -> None:
        self._members, self._total, self._of_strangers = members, total, of_strangers
        self._held: Counter[PeerId] = Counter()
        self._released = trio.Event()

    @property
    def held_bytes(self) -> int:
        """Bytes that all peers hold."""
        return self._held.total()

    def has_room(self, peer: PeerId, size: int) -> bool:
        """Return True if `hold` would succeed now."""
        return size <= SMALL_BYTES or self._held[peer] + size <= self._free(peer)

    @contextmanager
    def hold(self, peer: PeerId, size: int) -> Iterator[None]:
        """Hold `size` bytes of the budget during the block.  Raises `Unreachable` if fewer bytes are free."""
        if size <= SMALL_BYTES:
            yield
            return
        if not self.has_room(peer, size):
            raise Unreachable("the memory budget has no room")
        self._held[peer] += size
        try:
            yield
        finally:
            self._held[peer] -= size
            if not self._held[peer]:
                del self._held[peer]
            self._released.set()

    async def room(self, peer: PeerId, size: int) -> AbstractContextManager[None]:
        """Wait until the budget has room for `size` bytes, and return `hold`.  The caller sets a deadline."""
        while not self.has_room(peer, size):
            if self._released.is_set():
                self._released = trio.Event()
            await self._released.wait()
        return self.hold(peer, size)

    def _free(self, peer: PeerId) -> int:
        """Return the bytes that are free for members if `peer` is a member, else the bytes that are free for strangers."""
        free = self._total - self.held_bytes
        if self._members.has_member(peer):
            return free
        of_strangers = sum(size for holder, size in self._held.items() if not self._members.has_member(holder))
        return min(free, self._of_strangers - of_strangers)


# ------------------------------------------------------------------------------------------------------------------------
# The reputation of other peers: allowances for their messages, penalties, and bans.
#
# A peer has an allowance of messages and of bytes a second on each channel.  Messages over the allowance are dropped,
# usually with a small penalty.  Messages that no honest peer sends have a large penalty.  The score recovers with time.  A
# peer whose score reaches zero is banned for `BAN_S`: it is disconnected, not dialled, and its connections are refused.
# Each ban also uses up some of the allowance of the peer's address (`ADDRESS`).  While that allowance is used up,
# connections from the address are refused.  The network carries out the bans.


FULL_SCORE = 100.0
SCORE_PER_S = 1.0
BAN_S = 600.0
MAX_PEERS = 4096
"""Most peers remembered, most bans, and most addresses; the least recently used entry is forgotten first."""

EXCESS = 0.2
"""Penalty for a message over the allowance."""
ABANDONED = 1.0
"""Penalty for a question whose asker did not wait for its turn; reading the question has cost us time all the same."""
SLOWNESS = 10.0
"""Penalty for a question or a push that was not complete before its deadline; a slow line alone causes no ban at once."""
VIOLATION = 10.0
"""Penalty for a message that no honest peer sends: malformed, oversized or out of order."""
ABUSE = FULL_SCORE
"""Penalty for a message that can only be an attack; it causes a ban at once."""


class Channel(Enum):
    """A kind of traffic from a peer; the value is one peer's allowance."""

    GOSSIP = Allowance(200, 2e6, 5)
    """Messages that a neighbour forwards, such as the heartbeats of all peers: enough for twice as many as 64 peers send."""
    ORIGIN = Allowance(4, 60e3, 10)
    """Messages that one peer has signed, whichever peer forwards them: a heartbeat every 2 s, and a few in each round."""
    RELAY = Allowance(5, 60e3, 10)
    """Messages that a stranger forwards; further ones use `RELAYED`, which all strangers share."""
    QUESTION = Allowance(100, 8e6, 5)
    """Questions: a peer that catches up over a fast link asks for dozens of chunks a second, in small questions."""
    DIAL_BACK = Allowance(0.1, inf, 90)
    """Dials by which a peer finds out if it can be reached: up to three ports in one inquiry, repeated now and then."""
    CIRCUIT = Allowance(0.5, inf, 80)
    """Circuits through us: a peer asks for one to each peer behind a router, and for bulk sockets."""
    MEETING = Allowance(0.5, inf, 80)
    """Meetings (`nat.punching`) for sockets between us and a peer: up to 4 for pushes, and 4 for pushes that give way."""
    PUSH = Allowance(1000, inf, 20)
    """Pushes, many of which are refused when an owner has died; backpressure on the bulk sockets limits their bytes."""
    FRAME = Allowance(2000, inf, 8)
    """Frames of yamux for all protocols: data takes a frame for each 64 KiB, a question takes about a dozen."""
    PING = Allowance(5, inf, 20)
    """Frames of yamux that we must answer with a frame; an honest peer sends one now and then."""


RELAYED = Allowance(100, 1e6, 5)
"""Messages that all strangers together forward beyond `Channel.RELAY`; 64 newcomers send 32 heartbeats a second."""
ADDRESS = Allowance(1, inf, 32)
"""Allowance of an address, in seconds; many peers can share an address.  `inbound_policy` limits its open connections."""
PATIENCE_PER_BAN_S = 10.0
"""Seconds of an address's allowance that a ban uses up."""


@dataclass
class _Peer:
    at: float
    score: float = FULL_SCORE
    buckets: dict[Channel, TokenBucket] = field(default_factory=dict)


class Reputation:
    """Scores, allowances and bans of all peers.

    clock: returns the time (s, monotonic).  on_ban: called once for each ban, with the reason.  address_of: returns the
    address from which a peer is connected, None if it is not connected.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_ban: Callable[[PeerId, str], None],
        address_of: Callable[[PeerId], str | None] = lambda peer: None,
    ) -> None:
        self._clock, self._on_ban, self._address_of = clock, on_ban, address_of
        self._peers = BoundedDict[PeerId, _Peer](MAX_PEERS)
        self._addresses = BoundedDict[str, TokenBucket](MAX_PEERS)
        self._banned = BoundedDict[PeerId, float](MAX_PEERS)
        self._relayed = TokenBucket(RELAYED)

    def spend(self, peer: PeerId, channel: Channel, size: int = 0) -> bool:
        """Spend allowance of `peer` on a message of `size` bytes on `channel`.  Return False if too little is left.

        A banned peer has no allowance.  An excess is penalised, except on channels where another peer may have caused it.
        """
        if self.is_banned(peer):
            return False
        now = self._clock()
        buckets = self._of(peer, now).buckets
        bucket = buckets.get(channel)
        if bucket is None:
            bucket = buckets[channel] = TokenBucket(channel.value)
        if bucket.take(now, 1, size):
            return True
        if channel not in (Channel.ORIGIN, Channel.RELAY):  # another peer forwarded the message, or caused it
            penalty = ABUSE if channel in (Channel.FRAME, Channel.PING) else EXCESS
            self.penalise(peer, penalty, f"more than its allowance on the channel {channel.name.lower()}")
        return False

    def spend_relayed(self, stranger: PeerId, size: int) -> bool:
        """Spend the stranger's allowance on a message that it forwards, or else the common allowance of all strangers.

        Return False if both are used up or the stranger is banned.
        """
        return self.spend(stranger, Channel.RELAY, size) or (
            not self.is_banned(stranger) and self._relayed.take(self._clock(), 1, size)
        )

    def penalise(self, peer: PeerId, penalty: float, why: str) -> None:
        """Lower the score of `peer` by `penalty`.  If the score reaches zero, ban the peer for the reason `why`."""
        if self.is_banned(peer):
            return
        now = self._clock()
        known = self._of(peer, now)
        known.score -= penalty
        if known.score <= 0:
            self._ban(peer, now, why)

    def is_banned(self, peer: PeerId) -> bool:
        """Return True if `peer` is banned now."""
        until = self._banned.get(peer)
        if until is not None and until <= self._clock():
            del self._banned[peer]
            return False
        return until is not None

    def admits_connection(self, address: str) -> bool:
        """Return True if `address` has allowance left, so that new connections from it are accepted."""
        return self._address(address).left_s(self._clock()) >= 0

    def _of(self, peer: PeerId, now: float) -> _Peer:
        known = self._peers.get(peer) or _Peer(now)
        self._peers.renew(peer, known)
        known.score = min(FULL_SCORE, known.score + (now - known.at) * SCORE_PER_S)
        known.at = now
        return known

    def _address(self, address: str) -> TokenBucket:
        bucket = self._addresses.get(address) or TokenBucket(ADDRESS)
        self._addresses.renew(address, bucket)
        return bucket

    def _ban(self, peer: PeerId, now: float, why: str) -> None:
        self._peers.pop(peer, None)
        self._banned[peer] = now + BAN_S
        address = self._address_of(peer)
        if address is not None:
            bucket = self._address(address)
            bucket.charge(now, min(PATIENCE_PER_BAN_S, bucket.left_s(now) + ADDRESS.burst_s))
        self._on_ban(peer, why)
