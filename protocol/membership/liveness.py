"""The peers of a run and their liveness, judged from signed heartbeats with the local clock alone.

A pure state machine.  A peer is ALIVE while its heartbeats come, SUSPECT after three missed ones (or as soon as its
connection broke), GONE after five, LEFT on a signed goodbye.  A fresh heartbeat brings it back from anywhere, except
that nothing older than its goodbye does.  What follows from liveness (the proposer, evictions) is decided in
`protocol.consensus`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from protocol.events import Event, PeerGone, PeerJoined, PeerSuspected
from protocol.wire.identity import PeerId
from protocol.wire.messages import Goodbye, Heartbeat

BEAT_S = 2.0
"""Seconds between heartbeats of a peer in a swarm of at most `SLOW_ABOVE` peers."""
SLOW_ABOVE = 32
"""Above this many peers heartbeats slow down in proportion: gossip costs each peer time for every other one."""
SUSPECT_BEATS = 3
GONE_BEATS = 5
SLEPT_S = 3.0
"""A gap between two ticks that means that this process did not run."""
MAX_PEERS = 2048
"""Peers remembered; the longest silent one makes room."""
FORGET_S = 600.0


def beat_interval_s(peers: int) -> float:
    """Seconds between two heartbeats in a swarm of `peers`."""
    return BEAT_S * max(1.0, peers / SLOW_ABOVE)


class Liveness(Enum):
    """What we take a peer for; only an `ALIVE` one is waited for."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    GONE = "gone"
    LEFT = "left"


@dataclass
class Neighbour:
    """What we know of one other peer.  `heard` and `first` are trio times."""

    heartbeat: Heartbeat
    first: float
    heard: float
    liveness: Liveness


class Membership:
    """The peers of a run as this peer sees them.  `started` is the trio time at which it began to listen."""

    def __init__(self, me: PeerId, started: float) -> None:
        self.me = me
        self.started = started
        self._awake = started
        self._peers: dict[PeerId, Neighbour] = {}
        self._barred: dict[PeerId, None] = {}
        self._farewells: dict[PeerId, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[tuple[PeerId, Neighbour]]:
        return iter(self._peers.items())

    def get(self, peer: PeerId) -> Neighbour | None:
        """A peer whose heartbeats we have heard; None for others, and for those forgotten."""
        return self._peers.get(peer)

    def name(self, peer: PeerId) -> str:
        """What to call a peer in a sentence: the name in its heartbeats, else the end of its peer ID."""
        neighbour = self._peers.get(peer)
        return (neighbour.heartbeat.name if neighbour else "") or peer[-6:]

    def is_live(self, peer: PeerId) -> bool:
        """Whether the peer is alive; we are."""
        neighbour = self._peers.get(peer)
        return peer == self.me or (neighbour is not None and neighbour.liveness is Liveness.ALIVE)

    def bar(self, peer: PeerId) -> None:
        """This peer has lied: it counts as having left, for good."""
        self._barred[peer] = None
        known = self._peers.get(peer)
        if known is not None:
            known.liveness = Liveness.LEFT

    def has_left(self, peer: PeerId) -> bool:
        """Whether the peer said goodbye, or is barred."""
        if peer in self._barred:
            return True
        neighbour = self._peers.get(peer)
        return neighbour is not None and neighbour.liveness is Liveness.LEFT

    def live_peers(self) -> list[PeerId]:
        """The others that are alive, sorted."""
        return sorted(peer for peer, neighbour in self._peers.items() if neighbour.liveness is Liveness.ALIVE)

    def notice(self, now: float) -> None:
        """Call often.  When the last call is long ago, we slept (a frozen process, a suspended laptop): that time does not
        count as the others' silence."""
        gap = now - self._awake
        self._awake = now
        if gap > SLEPT_S:
            self.started += gap
            for known in self._peers.values():
                known.heard = min(known.heard + gap, now)

    def silent_s(self, peer: PeerId, now: float) -> float:
        """Seconds since `peer` was heard; since we began to listen when it never was."""
        neighbour = self._peers.get(peer)
        return now - (neighbour.heard if neighbour else self.started)

    def on_heartbeat(self, peer: PeerId, beat: Heartbeat, now: float) -> tuple[bool, list[Event]]:
        """Take note of a heartbeat.  False when it is not news: an older one, or one from before its goodbye."""
        known = self._peers.get(peer)
        mark = (beat.incarnation, beat.seq)
        if peer in self._barred or mark <= self._farewells.get(peer, (-1, -1)):
            return False, []
        if known is not None and mark <= (known.heartbeat.incarnation, known.heartbeat.seq):
            return False, []
        if known is None:
            self._make_room()
        new = known is None or known.heartbeat.incarnation < beat.incarnation or known.liveness is not Liveness.ALIVE
        first = known.first if known is not None else now
        self._peers[peer] = Neighbour(beat, first, now, Liveness.ALIVE)
        return True, [PeerJoined(peer, beat.name)] if new else []

    def on_goodbye(self, peer: PeerId, bye: Goodbye) -> tuple[bool, list[Event]]:
        """Take note of a goodbye.  False when it is old."""
        known = self._peers.get(peer)
        mark = (bye.incarnation, bye.seq)
        if mark <= self._farewells.get(peer, (-1, -1)):
            return False, []
        if known is not None and bye.incarnation < known.heartbeat.incarnation:
            return False, []
        if len(self._farewells) >= MAX_PEERS:
            self._farewells.pop(next(iter(self._farewells)))
        self._farewells[peer] = mark
        if known is None:
            return True, []
        known.liveness = Liveness.LEFT
        return True, [PeerGone(peer, True)]

    def on_disconnected(self, peer: PeerId, now: float) -> list[Event]:
        """The connection broke: suspicious at once; a heartbeat by another way clears it."""
        known = self._peers.get(peer)
        if known is None or known.liveness is not Liveness.ALIVE:
            return []
        known.liveness = Liveness.SUSPECT
        return [PeerSuspected(peer, now - known.heard, disconnected=True)]

    def tick(self, now: float) -> list[Event]:
        """Judge the silence of all peers."""
        self.notice(now)
        beat_s = beat_interval_s(len(self._peers) + 1)
        events: list[Event] = []
        for peer, known in list(self._peers.items()):
            silent = now - known.heard
            if known.liveness in (Liveness.ALIVE, Liveness.SUSPECT) and silent > GONE_BEATS * beat_s:
                known.liveness = Liveness.GONE
                events.append(PeerGone(peer, False))
            elif known.liveness is Liveness.ALIVE and silent > SUSPECT_BEATS * beat_s:
                known.liveness = Liveness.SUSPECT
                events.append(PeerSuspected(peer, silent, disconnected=False))
            elif known.liveness in (Liveness.GONE, Liveness.LEFT) and silent > FORGET_S:
                del self._peers[peer]
        return events

    def _make_room(self) -> None:
        if len(self._peers) >= MAX_PEERS:
            del self._peers[min(self._peers, key=lambda peer: self._peers[peer].heard)]
