"""The peers of a run and their liveness, judged from signed heartbeats by the local clock alone.

A pure state machine.  A peer is ALIVE while its heartbeats arrive, SUSPECT after the time of three heartbeats without any
sign of life or once its connection breaks, GONE after the time of five, and LEFT after a signed goodbye.  A new heartbeat
makes a peer ALIVE again from any of these states, but a heartbeat older than its goodbye does not.  Any other message from
the peer over its connection is also a sign of life, because a busy computer may send a chunk and be late with its heartbeat.
Such a message makes the peer ALIVE again if the connection has not broken since the last heartbeat: then it is the same
process.  `protocol.agreement` decides the consequences of liveness (the proposer, evictions).

Gossip may be replayed, and a peer that has just started cannot detect this.  A handshake cannot be replayed.  So a peer is
UNPROVEN, whatever gossip we receive from it, until it has been connected to us since we started.  After that, a heartbeat
that is newer than all earlier ones was signed later than they were.

Members and strangers have separate places, and at most `COUNTED_STRANGERS` strangers slow the members' heartbeats down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple

from protocol.bounds import BoundedDict
from protocol.events.events import Event, PeerGone, PeerJoined, PeerSuspected
from protocol.short_id import short_id
from protocol.team import team_named
from protocol.transport.interface import Members
from protocol.transport.limits import fullest
from protocol.wire.identity import PeerId
from protocol.wire.presence import Goodbye, Heartbeat

# ------------------------------------------------------------------------------------------------------------------------
# Places of strangers in the membership.  The neighbours that forward their heartbeats get fair shares, and no stranger takes
# a member's place.
#
# Keys are free, but connections are not.  A stranger that is connected to us has a place of its own.  Any other stranger is
# charged to the neighbour that forwarded its first heartbeat, and is evicted first.


MAX_MEMBERS = 2048
MAX_STRANGERS = 512
"""Number of places for strangers, as many as connections; strangers without a connection share the remaining places."""


def displaced(brought_by: Mapping[PeerId, PeerId], is_connected: bool, forwarder: PeerId) -> PeerId | None:
    """Return the stranger to evict for a newcomer, whose heartbeat `forwarder` forwarded; None if it gets no place.

    brought_by: the strangers without a connection, each with the neighbour that forwarded its first heartbeat, the longest
    silent first.  is_connected: True if the newcomer is connected to us.
    """
    shares = Counter(brought_by.values())
    busiest = fullest(shares, 0 if is_connected else shares[forwarder] + 2)
    return next((peer for peer, neighbour in brought_by.items() if neighbour == busiest), None)


# ------------------------------------------------------------------------------------------------------------------------


BEAT_S = 2.0
"""Seconds between heartbeats of a peer in a swarm of at most `SLOW_ABOVE` peers."""
SLOW_ABOVE = 32
"""Number of peers above which heartbeats slow down in proportion: gossip costs each peer time for each other peer."""
SUSPECT_BEATS = 3
GONE_BEATS = 5
JUDGED = 16
"""Judgements of the silence of all peers in each interval between heartbeats.

In a large swarm, judgements take longer, and silences are longer.
"""
LONGEST_S = 1.0
"""Longest time (s) between two ticks that counts as silence of other peers.

Four ticks a second are due.  If more time passed, this process was asleep, or got no turn on a busy computer, and what came
meanwhile may still wait to be read.  A dead peer is suspected after six ticks then, however long they take.
"""
COUNTED_STRANGERS = 32
"""Most strangers that count for the interval between members' heartbeats, or between all heartbeats without members."""
FORGET_S = 600.0


def beat_interval_s(peers: int) -> float:
    """Return the seconds between two heartbeats in a swarm of `peers`."""
    return BEAT_S * max(1.0, peers / SLOW_ABOVE)


class Intervals(NamedTuple):
    """Seconds between two heartbeats of a member, and of a stranger.

    Keys are free, so a crowd of strangers must not slow the members down.  It slows the strangers down: otherwise each peer
    would hear more heartbeats a second with each stranger.
    """

    of_member: float
    of_stranger: float

    @classmethod
    def among(cls, members: int, strangers: int) -> Intervals:
        """Return the intervals among so many live peers."""
        of_member = beat_interval_s(members + min(strangers, COUNTED_STRANGERS))
        return cls(of_member, beat_interval_s(members + strangers) if members else of_member)

    def of(self, is_member: bool) -> float:
        """Return the interval of a peer."""
        return self.of_member if is_member else self.of_stranger


Mark = tuple[int, int]
"""(Incarnation, number) of a heartbeat or goodbye, which increases with each one that a peer signs."""


class Liveness(Enum):
    """State of a peer in our own view; we wait only for `ALIVE` peers."""

    UNPROVEN = "unproven"
    ALIVE = "alive"
    SUSPECT = "suspect"
    GONE = "gone"
    LEFT = "left"


@dataclass(slots=True)
class Neighbour:
    """Knowledge about one other peer.

    since: the trio time of its first heartbeat.  said: the trio time of its newest one.  heard: the trio time of its last
    sign of life; for an unproven peer, the time at which we began to listen.  brought_by: the neighbour that forwarded its
    first heartbeat, or the peer itself.  broken: True if its connection has broken since its newest heartbeat.
    """

    heartbeat: Heartbeat
    since: float
    said: float
    heard: float
    liveness: Liveness
    brought_by: PeerId
    broken: bool = False

    @property
    def mark(self) -> Mark:
        """Mark that increases with each heartbeat that a peer signs."""
        return self.heartbeat.incarnation, self.heartbeat.seq


def _joined(peer: PeerId, beat: Heartbeat) -> PeerJoined:
    return PeerJoined(peer, beat.name, team_named(beat.team))


class Membership:
    """Peers of a run in this peer's view.

    started: the trio time at which this peer began to listen.  members: distinguishes members from strangers.
    """

    def __init__(self, me: PeerId, started: float, members: Members) -> None:
        self.me = me
        self.started = started
        self._awake = started
        self._judged, self._intervals = -inf, Intervals(BEAT_S, BEAT_S)
        """Time of the last judgement of all peers, and the seconds between their heartbeats then."""
        self._members = members
        self._peers: dict[PeerId, Neighbour] = {}
        self._connected: set[PeerId] = set()
        self._barred = BoundedDict[PeerId, None](MAX_MEMBERS + MAX_STRANGERS, self._is_stranger)
        """Peers that have lied; if there are too many, the oldest are forgotten, strangers first."""
        self._marks = BoundedDict[PeerId, Mark](MAX_MEMBERS + MAX_STRANGERS, self._is_stranger)
        """Marks of the last statement of peers that left or were forgotten: statements up to the mark are old."""

    def __iter__(self) -> Iterator[tuple[PeerId, Neighbour]]:
        return iter(self._peers.items())

    def __len__(self) -> int:
        return len(self._peers)

    def has_member(self, peer: PeerId) -> bool:
        """Return True if `peer` is a member."""
        return self._members.has_member(peer)

    def get(self, peer: PeerId) -> Neighbour | None:
        """Return our knowledge about a peer; None if we have not heard it, or have forgotten it."""
        return self._peers.get(peer)

    def name(self, peer: PeerId) -> str:
        """Return the name of a peer for users: the name in its heartbeats, else the end of its peer ID."""
        neighbour = self._peers.get(peer)
        return (neighbour.heartbeat.name if neighbour else "") or short_id(peer)

    def is_live(self, peer: PeerId) -> bool:
        """Return True if the peer is alive; this peer always is."""
        neighbour = self._peers.get(peer)
        return peer == self.me or (neighbour is not None and neighbour.liveness is Liveness.ALIVE)

    def bar(self, peer: PeerId) -> None:
        """Treat a peer that has lied as having left permanently."""
        self._barred[peer] = None
        known = self._peers.get(peer)
        if known is not None:
            known.liveness = Liveness.LEFT

    def has_left(self, peer: PeerId) -> bool:
        """Return True if the peer said goodbye, or is barred."""
        if peer in self._barred:
            return True
        neighbour = self._peers.get(peer)
        return neighbour is not None and neighbour.liveness is Liveness.LEFT

    def live_peers(self) -> list[PeerId]:
        """Return the other peers that are alive, sorted."""
        return sorted(peer for peer, neighbour in self._peers.items() if neighbour.liveness is Liveness.ALIVE)

    @property
    def beat_s(self) -> float:
        """Seconds between two of our heartbeats."""
        return self._intervals_among(self.live_peers()).of(self._members.has_member(self.me))

    def _intervals_among(self, others: Collection[PeerId]) -> Intervals:
        members = sum(map(self._members.has_member, others))
        strangers, is_member = len(others) - members, self._members.has_member(self.me)
        return Intervals.among(members + is_member, strangers + (not is_member))

    def notice(self, now: float) -> None:
        """Note that this process is running; must be called often.

        If the last call was long ago, we slept (a frozen process, a suspended laptop, a busy computer): this time does not
        count as silence of other peers, apart from `LONGEST_S`.
        """
        gap, self._awake = now - self._awake, now
        if gap > LONGEST_S:
            self.excuse(gap - LONGEST_S, now)

    def excuse(self, deaf_s: float, now: float) -> None:
        """Exclude the last `deaf_s` seconds from the silence of other peers, because we could not hear them."""
        self._awake = now
        self.started = min(self.started + deaf_s, now)
        for known in self._peers.values():
            known.heard, known.said = min(known.heard + deaf_s, now), min(known.said + deaf_s, now)

    def silent_s(self, peer: PeerId, now: float) -> float:
        """Return the seconds since `peer` was heard, or since we began to listen if we never heard it."""
        neighbour = self._peers.get(peer)
        return now - (neighbour.heard if neighbour else self.started)

    def on_heartbeat(self, peer: PeerId, beat: Heartbeat, now: float, forwarder: PeerId) -> tuple[bool, list[Event]]:
        """Process a heartbeat; return (True if it is new, the resulting events).

        The first value is False if the heartbeat is not newer than the peer's last heartbeat or goodbye, if the peer is
        barred, or if there is no place for an unknown peer.
        """
        known = self._peers.get(peer)
        mark = (beat.incarnation, beat.seq)
        if peer in self._barred or self._is_old(peer, mark) or (known is not None and mark <= known.mark):
            return False, []
        if known is None and not self._make_room(peer, forwarder):
            return False, []
        brought_by, since = (known.brought_by, known.since) if known is not None else (forwarder, now)
        if peer not in self._connected and (known is None or known.liveness is Liveness.UNPROVEN):
            self._peers[peer] = Neighbour(beat, since, now, self.started, Liveness.UNPROVEN, brought_by)
            return True, []
        new = known is None or known.heartbeat.incarnation < beat.incarnation or known.liveness is not Liveness.ALIVE
        self._peers[peer] = Neighbour(beat, since, now, now, Liveness.ALIVE, brought_by)
        return True, [_joined(peer, beat)] if new else []

    def on_goodbye(self, peer: PeerId, bye: Goodbye) -> tuple[bool, list[Event]]:
        """Process a goodbye; return (False if it is old or from an unknown stranger, the resulting events)."""
        known = self._peers.get(peer)
        mark = (bye.incarnation, bye.seq)
        if self._is_old(peer, mark) or (known is None and not self._members.has_member(peer)):
            return False, []
        if known is not None and bye.incarnation < known.heartbeat.incarnation:
            return False, []
        self._marks.renew(peer, mark)
        if known is None or known.liveness is Liveness.UNPROVEN:
            self._peers.pop(peer, None)
            return True, []
        known.liveness = Liveness.LEFT
        return True, [PeerGone(peer, True)]

    def on_connected(self, peer: PeerId, now: float) -> list[Event]:
        """Note that a peer is alive, because it has just completed the handshake."""
        self._connected.add(peer)
        known = self._peers.get(peer)
        if known is None or known.liveness not in (Liveness.UNPROVEN, Liveness.ALIVE):
            return []
        is_new = known.liveness is Liveness.UNPROVEN
        known.liveness, known.heard = Liveness.ALIVE, now
        return [_joined(peer, known.heartbeat)] if is_new else []

    def on_message(self, peer: PeerId, now: float) -> list[Event]:
        """Note that a message came from a peer over its own connection; return the resulting events.

        The message only proves that the peer's process is running, so it changes nothing for a peer that has left or is
        unproven.
        """
        known = self._peers.get(peer)
        if known is None or known.broken or peer not in self._connected:
            return []
        if known.liveness is Liveness.ALIVE:
            known.heard = now
            return []
        if known.liveness not in (Liveness.SUSPECT, Liveness.GONE):
            return []
        known.liveness, known.heard = Liveness.ALIVE, now
        return [_joined(peer, known.heartbeat)]

    def on_disconnected(self, peer: PeerId, now: float) -> list[Event]:
        """Suspect a peer at once, because its connection broke; a heartbeat by another path clears the suspicion."""
        self._connected.discard(peer)
        known = self._peers.get(peer)
        if known is not None:
            known.broken = True
        if known is None or known.liveness is not Liveness.ALIVE:
            return []
        known.liveness = Liveness.SUSPECT
        return [PeerSuspected(peer, now - known.heard, disconnected=True)]

    def tick(self, now: float) -> list[Event]:
        """Judge the silence of all peers, unless this was done a moment ago; return the resulting events."""
        self.notice(now)
        if now - self._judged < self._intervals.of_member / JUDGED:
            return []
        self._judged, self._intervals = now, self._intervals_among(self._peers)
        events: list[Event] = []
        alive, soon = Liveness.ALIVE, SUSPECT_BEATS * self._intervals.of_member
        quiet = [item for item in self._peers.items() if item[1].liveness is not alive or now - item[1].heard > soon]
        for peer, known in quiet:
            silent, beat_s = now - known.heard, self._intervals.of(self._members.has_member(peer))
            if known.liveness in (Liveness.ALIVE, Liveness.SUSPECT) and silent > GONE_BEATS * beat_s:
                known.liveness = Liveness.GONE
                events.append(PeerGone(peer, False))
            elif known.liveness is Liveness.ALIVE and silent > SUSPECT_BEATS * beat_s:
                known.liveness = Liveness.SUSPECT
                events.append(PeerSuspected(peer, silent, disconnected=False))
            elif (known.liveness in (Liveness.GONE, Liveness.LEFT) and silent > FORGET_S) or (
                known.liveness is Liveness.UNPROVEN and now - known.said > GONE_BEATS * beat_s
            ):
                self._forget(peer)
        return events

    def _is_old(self, peer: PeerId, mark: Mark) -> bool:
        return peer in self._marks and mark <= self._marks[peer]

    def _is_stranger(self, peer: PeerId, _: object) -> bool:
        return not self._members.has_member(peer)

    def _forget(self, peer: PeerId) -> None:
        """Forget a peer, but keep its mark, so that old statements stay old."""
        mark = self._peers.pop(peer).mark
        if not self._is_old(peer, mark):
            self._marks.renew(peer, mark)

    def _make_room(self, newcomer: PeerId, forwarder: PeerId) -> bool:
        """Return True if there is a place for an unknown peer, after evicting another peer if needed."""
        is_member = self._members.has_member(newcomer)
        most = MAX_MEMBERS if is_member else MAX_STRANGERS
        if len(self._peers) < most:
            return True
        rivals = [peer for peer in self._peers if self._members.has_member(peer) is is_member]
        if len(rivals) < most:
            return True
        if is_member:
            self._forget(min(rivals, key=lambda peer: self._peers[peer].said))
            return True
        away = sorted((peer for peer in rivals if peer not in self._connected), key=lambda peer: self._peers[peer].said)
        loser = displaced({peer: self._peers[peer].brought_by for peer in away}, newcomer in self._connected, forwarder)
        if loser is not None:
            self._forget(loser)
        return loser is not None
