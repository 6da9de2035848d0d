"""The reputation of other peers: allowances for their messages, penalties, and bans.

A peer has an allowance of messages and of bytes a second on each channel.  Messages over the allowance are dropped, usually
with a small penalty.  Messages that no honest peer sends have a large penalty.  The score recovers with time.  A peer whose
score reaches zero is banned for `BAN_S`: it is disconnected, not dialled, and its connections are refused.  Each ban also
uses up some of the allowance of the peer's address (`ADDRESS`).  While that allowance is used up, connections from the
address are refused.

The module does no I/O, and reads the time from the clock passed in.  The network carries out the bans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from protocol.bounds import BoundedDict
from protocol.transport.rate_limit import Allowance, TokenBucket
from protocol.wire.identity import PeerId

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
    DIAL_BACK = Allowance(0.1, float("inf"), 90)
    """Dials by which a peer finds out if it can be reached: up to three ports in one inquiry, repeated now and then."""
    CIRCUIT = Allowance(0.5, float("inf"), 80)
    """Circuits through us: a peer asks for one to each peer behind a router, and for bulk sockets."""
    MEETING = Allowance(0.5, float("inf"), 80)
    """Meetings (`nat.punching`) for sockets between us and a peer: up to 4 for pushes, and 4 for pushes that give way."""
    PUSH = Allowance(1000, float("inf"), 20)
    """Pushes, many of which are refused when an owner has died; backpressure on the bulk sockets limits their bytes."""
    FRAME = Allowance(2000, float("inf"), 8)
    """Frames of yamux for all protocols: data takes a frame for each 64 KiB, a question takes about a dozen."""
    PING = Allowance(5, float("inf"), 20)
    """Frames of yamux that we must answer with a frame; an honest peer sends one now and then."""


RELAYED = Allowance(100, 1e6, 5)
"""Messages that all strangers together forward beyond `Channel.RELAY`; 64 newcomers send 32 heartbeats a second."""
ADDRESS = Allowance(1, float("inf"), 32)
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

    clock: seconds, monotonic.  on_ban: called once for each ban, with the reason.  address_of: returns the address from
    which a peer is connected, None if it is not connected.
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
        self._relayed = TokenBucket(RELAYED.burst_s, RELAYED.burst_s, clock())

    def spend(self, peer: PeerId, channel: Channel, size: int = 0) -> bool:
        """Spend allowance of `peer` on a message of `size` bytes on `channel`.  Return False if too little is left.

        A banned peer has no allowance.  An excess is penalised, except on channels where another peer may have caused it.
        """
        if self.is_banned(peer):
            return False
        now = self._clock()
        allowance = channel.value
        bucket = self._of(peer, now).buckets.setdefault(channel, TokenBucket(allowance.burst_s, allowance.burst_s, now))
        if bucket.take(allowance, now, 1, size):
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
            not self.is_banned(stranger) and self._relayed.take(RELAYED, self._clock(), 1, size)
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
        return self._address(address).take(ADDRESS, self._clock(), 0, 0)

    def _of(self, peer: PeerId, now: float) -> _Peer:
        known = self._peers.get(peer) or _Peer(now)
        self._peers.renew(peer, known)
        known.score = min(FULL_SCORE, known.score + (now - known.at) * SCORE_PER_S)
        known.at = now
        return known

    def _address(self, address: str) -> TokenBucket:
        bucket = self._addresses.get(address) or TokenBucket(ADDRESS.burst_s, ADDRESS.burst_s, self._clock())
        self._addresses.renew(address, bucket)
        return bucket

    def _ban(self, peer: PeerId, now: float, why: str) -> None:
        self._peers.pop(peer, None)
        self._banned[peer] = now + BAN_S
        address = self._address_of(peer)
        if address is not None:
            bucket = self._address(address)
            bucket.take(ADDRESS, now, 0, 0)
            bucket.messages_s = max(-ADDRESS.burst_s, bucket.messages_s - PATIENCE_PER_BAN_S)
        self._on_ban(peer, why)
