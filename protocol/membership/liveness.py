"""The peers of a run and their liveness, judged from signed heartbeats with the local clock alone.

A pure state machine.  A peer is ALIVE while its heartbeats come, SUSPECT after three missed ones (or as soon as its
connection broke), GONE after five, LEFT on a signed goodbye.  A fresh heartbeat brings it back from any state, but a
heartbeat older than its goodbye does not.  `protocol.agreement` decides the consequences of liveness (the proposer,
evictions).

Gossip may be a recording, and a peer that has just started cannot tell.  A handshake cannot be recorded.  So a peer is
UNPROVEN, whatever statements of it are heard, until it has been connected to us since we started.  From then on a heartbeat
that is newer than all before was signed after those.

Members and strangers do not share their places, and strangers hardly slow the heartbeats down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from protocol.events.events import Event, PeerGone, PeerJoined, PeerSuspected
from protocol.short_id import short_id
from protocol.transport.interface import Members
from protocol.wire.identity import PeerId
from protocol.wire.presence import Goodbye, Heartbeat

# ------------------------------------------------------------------------------------------------------------------------
# Places of strangers in the membership: the neighbours that bring them get fair shares, and no stranger takes a member's
# place.
#
# Keys are free, connections are not.  A stranger that is connected to us has its place for itself.  All others are charged
# to the neighbour that brought their first heartbeat, and make room first.


MAX_MEMBERS = 2048
MAX_STRANGERS = 512
"""Places of strangers, as many as connections; strangers that are not connected share those that connections leave."""


def displaced(
    brought_by: Mapping[PeerId, PeerId], connected: Collection[PeerId], newcomer: PeerId, forwarder: PeerId
) -> PeerId | None:
    """Return the stranger that makes room for `newcomer`, which `forwarder` brought; None if the newcomer gets no place.

    brought_by: the known strangers, each with the neighbour that brought it, the longest silent first.
    """
    shares: dict[PeerId, list[PeerId]] = {}
    for peer, neighbour in brought_by.items():
        if peer not in connected:
            shares.setdefault(neighbour, []).append(peer)
    if not shares:
        return None
    largest = max(shares.values(), key=len)
    if newcomer not in connected and len(largest) <= len(shares.get(forwarder, ())) + 1:
        return None
    return largest[0]


class Marks:
    """Mark of the last statement that was noted of each peer, as incarnation and serial; no statement up to it is new.

    The marks of members and of strangers are limited separately; the oldest is forgotten first.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._of_members: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()
        self._of_strangers: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()

    def is_old(self, peer: PeerId, mark: tuple[int, int]) -> bool:
        """Return True if a statement with this mark is no newer than the peer's last one."""
        return any(peer in marks and mark <= marks[peer] for marks in (self._of_members, self._of_strangers))

    def note(self, peer: PeerId, mark: tuple[int, int]) -> None:
        """Treat statements up to this mark as old from now on; do nothing if they were already."""
        if self.is_old(peer, mark):
            return
        member = self._members.has_member(peer)
        marks, most = (self._of_members, MAX_MEMBERS) if member else (self._of_strangers, MAX_STRANGERS)
        marks[peer] = mark
        marks.move_to_end(peer)
        if len(marks) > most:
            marks.popitem(last=False)


# ------------------------------------------------------------------------------------------------------------------------


BEAT_S = 2.0
"""Seconds between heartbeats of a peer in a swarm of at most `SLOW_ABOVE` peers."""
SLOW_ABOVE = 32
"""Number of peers above which heartbeats slow down in proportion: gossip costs each peer time for every other one."""
SUSPECT_BEATS = 3
GONE_BEATS = 5
SLEPT_S = 3.0
"""Gap (s) between two ticks which means that this process did not run."""
COUNTED_STRANGERS = 32
"""Strangers that count for the pace of the heartbeats, at most."""
FORGET_S = 600.0


def beat_interval_s(peers: int) -> float:
    """Return the seconds between two heartbeats in a swarm of `peers`."""
    return BEAT_S * max(1.0, peers / SLOW_ABOVE)


class Liveness(Enum):
    """State of a peer, as we judge it; only an `ALIVE` peer is waited for."""

    UNPROVEN = "unproven"
    ALIVE = "alive"
    SUSPECT = "suspect"
    GONE = "gone"
    LEFT = "left"


@dataclass
class Neighbour:
    """Knowledge about one other peer.

    said: when its newest heartbeat came (trio time).  heard: when it was last shown to be alive; when we began to listen, if
    it is unproven.  brought_by: the neighbour that forwarded its first heartbeat, or itself.
    """

    heartbeat: Heartbeat
    said: float
    heard: float
    liveness: Liveness
    brought_by: PeerId

    @property
    def mark(self) -> tuple[int, int]:
        """Mark that grows with each heartbeat that a peer signs."""
        return self.heartbeat.incarnation, self.heartbeat.seq


class Membership:
    """Peers of a run as this peer sees them.

    started: the trio time at which it began to listen.  members: tells members from strangers.
    """

    def __init__(self, me: PeerId, started: float, members: Members) -> None:
        self.me = me
        self.started = started
        self._awake = started
        self._members = members
        self._peers: dict[PeerId, Neighbour] = {}
        self._connected: set[PeerId] = set()
        self._barred: dict[PeerId, None] = {}
        self._marks = Marks(members)

    def __iter__(self) -> Iterator[tuple[PeerId, Neighbour]]:
        return iter(self._peers.items())

    def has_member(self, peer: PeerId) -> bool:
        """Return True if `peer` is a member."""
        return self._members.has_member(peer)

    def get(self, peer: PeerId) -> Neighbour | None:
        """Return a peer whose heartbeats we have heard; None for others, and for forgotten peers."""
        return self._peers.get(peer)

    def name(self, peer: PeerId) -> str:
        """Return the name of a peer for a sentence: the name in its heartbeats, else the end of its peer ID."""
        neighbour = self._peers.get(peer)
        return (neighbour.heartbeat.name if neighbour else "") or short_id(peer)

    def is_live(self, peer: PeerId) -> bool:
        """Return True if the peer is alive; we always are."""
        neighbour = self._peers.get(peer)
        return peer == self.me or (neighbour is not None and neighbour.liveness is Liveness.ALIVE)

    def bar(self, peer: PeerId) -> None:
        """Treat a peer that has lied as having left, for good.

        If there are too many liars the first ones are forgotten, members for members and strangers for strangers.
        """
        self._barred[peer] = None
        rivals = self._rivals(peer, self._barred)
        if len(rivals) > self._most(peer):
            del self._barred[rivals[0]]
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
        return self._pace_s(self.live_peers())

    def _pace_s(self, others: Collection[PeerId]) -> float:
        members = sum(map(self._members.has_member, others))
        return beat_interval_s(1 + members + min(len(others) - members, COUNTED_STRANGERS))

    def notice(self, now: float) -> None:
        """Note that this process runs; to be called often.

        If the last call was long ago, we slept (a frozen process, a suspended laptop): that time does not count as the
        others' silence.
        """
        gap, self._awake = now - self._awake, now
        if gap > SLEPT_S:
            self.excuse(gap, now)

    def excuse(self, deaf_s: float, now: float) -> None:
        """Exclude the last `deaf_s` seconds, in which we could not hear any peer, from the others' silence."""
        self._awake = now
        self.started = min(self.started + deaf_s, now)
        for known in self._peers.values():
            known.heard, known.said = min(known.heard + deaf_s, now), min(known.said + deaf_s, now)

    def silent_s(self, peer: PeerId, now: float) -> float:
        """Return the seconds since `peer` was heard; if it never was, the seconds since we began to listen."""
        neighbour = self._peers.get(peer)
        return now - (neighbour.heard if neighbour else self.started)

    def on_heartbeat(self, peer: PeerId, beat: Heartbeat, now: float, forwarder: PeerId) -> tuple[bool, list[Event]]:
        """Take note of a heartbeat.

        Return False if it is not new (older than another, or from before its goodbye), if the peer is barred, or if it is of
        a stranger for which there is no room.
        """
        known = self._peers.get(peer)
        mark = (beat.incarnation, beat.seq)
        if peer in self._barred or self._marks.is_old(peer, mark) or (known is not None and mark <= known.mark):
            return False, []
        if known is None and not self._make_room(peer, forwarder):
            return False, []
        brought_by = known.brought_by if known is not None else forwarder
        if peer not in self._connected and (known is None or known.liveness is Liveness.UNPROVEN):
            self._peers[peer] = Neighbour(beat, now, self.started, Liveness.UNPROVEN, brought_by)
            return True, []
        new = known is None or known.heartbeat.incarnation < beat.incarnation or known.liveness is not Liveness.ALIVE
        self._peers[peer] = Neighbour(beat, now, now, Liveness.ALIVE, brought_by)
        return True, [PeerJoined(peer, beat.name)] if new else []

    def on_goodbye(self, peer: PeerId, bye: Goodbye) -> tuple[bool, list[Event]]:
        """Take note of a goodbye.  Return False if it is old, or of a stranger that we do not know."""
        known = self._peers.get(peer)
        mark = (bye.incarnation, bye.seq)
        if self._marks.is_old(peer, mark) or (known is None and not self._members.has_member(peer)):
            return False, []
        if known is not None and bye.incarnation < known.heartbeat.incarnation:
            return False, []
        self._marks.note(peer, mark)
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
        return [PeerJoined(peer, known.heartbeat.name)] if is_new else []

    def on_disconnected(self, peer: PeerId, now: float) -> list[Event]:
        """Suspect a peer at once, because its connection broke; a heartbeat by another way clears it."""
        self._connected.discard(peer)
        known = self._peers.get(peer)
        if known is None or known.liveness is not Liveness.ALIVE:
            return []
        known.liveness = Liveness.SUSPECT
        return [PeerSuspected(peer, now - known.heard, disconnected=True)]

    def tick(self, now: float) -> list[Event]:
        """Judge the silence of all peers."""
        self.notice(now)
        beat_s = self._pace_s(self._peers)
        events: list[Event] = []
        alive, soon = Liveness.ALIVE, SUSPECT_BEATS * beat_s
        quiet = [item for item in self._peers.items() if item[1].liveness is not alive or now - item[1].heard > soon]
        for peer, known in quiet:
            silent = now - known.heard
            if known.liveness in (Liveness.ALIVE, Liveness.SUSPECT) and silent > GONE_BEATS * beat_s:
                known.liveness = Liveness.GONE
                events.append(PeerGone(peer, False))
            elif known.liveness is Liveness.ALIVE and silent > soon:
                known.liveness = Liveness.SUSPECT
                events.append(PeerSuspected(peer, silent, disconnected=False))
            elif (known.liveness in (Liveness.GONE, Liveness.LEFT) and silent > FORGET_S) or (
                known.liveness is Liveness.UNPROVEN and now - known.said > GONE_BEATS * beat_s
            ):
                self._forget(peer)
        return events

    def _forget(self, peer: PeerId) -> None:
        """Forget a peer except for its mark: older statements stay old."""
        self._marks.note(peer, self._peers.pop(peer).mark)

    def _make_room(self, newcomer: PeerId, forwarder: PeerId) -> bool:
        """Return True if there is room for an unknown peer; the longest silent member makes room for a member."""
        most = self._most(newcomer)
        if len(self._peers) < most:
            return True
        rivals = self._rivals(newcomer, self._peers)
        if len(rivals) < most:
            return True
        rivals.sort(key=lambda peer: self._peers[peer].said)
        if self._members.has_member(newcomer):
            self._forget(rivals[0])
            return True
        brought_by = {peer: self._peers[peer].brought_by for peer in rivals}
        loser = displaced(brought_by, self._connected, newcomer, forwarder)
        if loser is not None:
            self._forget(loser)
        return loser is not None

    def _most(self, peer: PeerId) -> int:
        """Return the number of places for members, or for strangers, whichever `peer` is."""
        return MAX_MEMBERS if self._members.has_member(peer) else MAX_STRANGERS

    def _rivals(self, peer: PeerId, known: Iterable[PeerId]) -> list[PeerId]:
        """Return the peers of `known` that share their places with `peer`, in the same order."""
        member = self._members.has_member(peer)
        return [each for each in known if self._members.has_member(each) is member]
