"""What each peer may use up, and when it is shown the door.

A peer has an allowance of messages and of bytes a second on each channel; what is over it is dropped, and costs a little
of the peer's standing.  What no honest peer sends costs much.  Standing comes back by and by; a peer that has none left
is banned for `BAN_S`: disconnected, not dialled, and its connections are refused.  Each ban uses up some of our patience
with the address it fell on; while there is none left, new identities from there have to wait.

Pure: told the time, and asked.  What a ban means for sockets is the network's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from protocol.wire.identity import PeerId

STANDING = 100.0
STANDING_PER_S = 1.0
BAN_S = 600.0
MAX_PEERS = 4096
"""Peers and addresses remembered; who was not heard for longest is forgotten, bans last."""

OVER = 0.2
"""Of standing, for a message over the allowance."""
SLOW = 10.0
"""For a question, a push or an answer that did not come to its end in its time: a bad line is no crime."""
WRONG = 10.0
"""For what no honest peer says: malformed, oversized, out of order."""
FLOOD = STANDING
"""For what can only be meant to harm."""


@dataclass(frozen=True)
class Allowance:
    """Messages and bytes a second, each with `burst_s` seconds' worth saved up at most."""

    per_s: float
    bytes_per_s: float
    burst_s: float


class Channel(Enum):
    """Where something arrives."""

    GOSSIP = Allowance(200, 2e6, 5)
    """Messages that a neighbour hands on: everybody's heartbeats together, twice as many as 64 peers send."""
    ORIGIN = Allowance(4, 60e3, 10)
    """Messages that one peer is the origin of, whoever brings them: a heartbeat every 2 s, a READY, and when it matters."""
    QUESTION = Allowance(100, 8e6, 5)
    """A peer that catches up over a fast link asks for some dozens of chunks a second; its questions are small."""
    PUSH = Allowance(1000, float("inf"), 20)
    """The bulk plane holds back bytes by itself; refused pushes are many when an owner died."""
    FRAME = Allowance(2000, float("inf"), 8)
    """Frames under all protocols: 64 KiB each when data moves, about a dozen for a question."""
    PING = Allowance(5, float("inf"), 20)
    """Frames that want one of ours for an answer: every peer sends one now and then."""


ADDRESS = Allowance(1, float("inf"), 32)
"""Our patience with an address, in seconds: many peers can be behind it.  How many connections there may be from it at one
time is `visitors`' business."""
PATIENCE_PER_BAN_S = 10.0


@dataclass
class Bucket:
    """Seconds of an allowance that are left, of messages and of bytes."""

    messages_s: float
    bytes_s: float
    at: float

    def take(self, allowance: Allowance, now: float, messages: float, size: float) -> bool:
        """Whether there is enough left, which is then used."""
        passed, self.at = now - self.at, now
        self.messages_s = min(allowance.burst_s, self.messages_s + passed)
        self.bytes_s = min(allowance.burst_s, self.bytes_s + passed)
        messages_s, bytes_s = messages / allowance.per_s, size / allowance.bytes_per_s
        if self.messages_s < messages_s or self.bytes_s < min(bytes_s, allowance.burst_s):
            return False
        self.messages_s -= messages_s
        self.bytes_s -= bytes_s
        return True

    def holds(self, allowance: Allowance, now: float, messages: float) -> bool:
        """Whether there is enough left for so many messages."""
        self.take(allowance, now, 0, 0)
        return self.messages_s >= messages / allowance.per_s


@dataclass
class _Peer:
    at: float
    standing: float = STANDING
    buckets: dict[Channel, Bucket] = field(default_factory=dict)


class Conduct:
    """Of all peers towards us.

    clock: seconds, monotonic.  on_ban: called once a ban, with the reason.  address_of: where a peer is connected from.
    """

    def __init__(self, clock: Callable[[], float], on_ban: Callable[[PeerId, str], None],
                 address_of: Callable[[PeerId], str | None] = lambda peer: None) -> None:
        self._clock, self._on_ban, self._address_of = clock, on_ban, address_of
        self._peers: OrderedDict[PeerId, _Peer] = OrderedDict()
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self._banned: OrderedDict[PeerId, float] = OrderedDict()

    def spend(self, peer: PeerId, channel: Channel, size: int = 0) -> bool:
        """Whether `peer` may have a message of `size` bytes taken on `channel`; if not, it is held against it."""
        if self.is_banned(peer):
            return False
        now = self._clock()
        allowance = channel.value
        bucket = self._of(peer, now).buckets.setdefault(channel, Bucket(allowance.burst_s, allowance.burst_s, now))
        if bucket.take(allowance, now, 1, size):
            return True
        if channel is not Channel.ORIGIN:  # it may be another peer that brings the message
            cost = FLOOD if channel in (Channel.FRAME, Channel.PING) else OVER
            self.offend(peer, cost, f"more than its allowance on the channel {channel.name.lower()}")
        return False

    def offend(self, peer: PeerId, cost: float, why: str) -> None:
        """Hold something against `peer`."""
        if self.is_banned(peer):
            return
        now = self._clock()
        known = self._of(peer, now)
        known.standing -= cost
        if known.standing <= 0:
            self._ban(peer, now, why)

    def is_banned(self, peer: PeerId) -> bool:
        until = self._banned.get(peer)
        if until is not None and until <= self._clock():
            del self._banned[peer]
            return False
        return until is not None

    def admits_connection(self, address: str) -> bool:
        """Whether new connections from `address` may begin."""
        return self._address(address).take(ADDRESS, self._clock(), 0, 0)

    def _of(self, peer: PeerId, now: float) -> _Peer:
        known = self._peers.get(peer)
        if known is None:
            known = self._peers[peer] = _Peer(now)
            if len(self._peers) > MAX_PEERS:
                self._peers.popitem(last=False)
        self._peers.move_to_end(peer)
        known.standing = min(STANDING, known.standing + (now - known.at) * STANDING_PER_S)
        known.at = now
        return known

    def _address(self, address: str) -> Bucket:
        bucket = self._addresses.get(address)
        if bucket is None:
            bucket = self._addresses[address] = Bucket(ADDRESS.burst_s, ADDRESS.burst_s, self._clock())
            if len(self._addresses) > MAX_PEERS:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        return bucket

    def _ban(self, peer: PeerId, now: float, why: str) -> None:
        self._peers.pop(peer, None)
        self._banned[peer] = now + BAN_S
        if len(self._banned) > MAX_PEERS:
            self._banned.popitem(last=False)
        address = self._address_of(peer)
        if address is not None:
            bucket = self._address(address)
            bucket.take(ADDRESS, now, 0, 0)
            bucket.messages_s = max(-ADDRESS.burst_s, bucket.messages_s - PATIENCE_PER_BAN_S)
        self._on_ban(peer, why)
