"""Fetching one blob from many sources, as a pure machine: what arrives goes in, whom to ask for what comes out.

It puts together the picker's policy (which chunk) and the sources' (how many, from whom first).  A source is believed about
what it has only in so far as it is asked for it; bytes are checked by the caller before they count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from protocol.blobs.blob import Blob, ChunkSet, set_of
from protocol.blobs.messages import Copies, any_of
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Which chunk a source is asked for next.
#
# Pure.  Policy:
#
# * **Rarest first.**  Of the chunks that the source has and nobody was asked for, one that the fewest sources have: it may
#   be gone with the next of them that leaves, and whoever gets it has something to give.
# * **Ties by a seed.**  Among equally rare ones a random chunk, from a generator of the caller's: peers that begin together
#   ask for different chunks, and serve them to each other.
# * **Endgame.**  When every missing chunk was asked for, a source with nothing to do is asked for one that somebody else
#   owes us, the one that will take longest, of at most `COPIES` sources at a time.  What comes second is not taken twice.


COPIES = 2
"""Sources that are asked for one chunk at a time, at most."""


class Picker:
    """Keeps what is here, who has what, and who was asked for what, of a blob of `count` chunks."""

    def __init__(self, count: int, here: ChunkSet, random_: random.Random) -> None:
        self._random, self._all = random_, (1 << count) - 1
        self.here = here
        self._held: dict[PeerId, ChunkSet] = {}
        self._copies = Copies(count)
        self._asked: dict[int, list[PeerId]] = {}
        self._asked_set: ChunkSet = 0

    @property
    def missing(self) -> ChunkSet:
        """Chunks that are not here."""
        return self._all & ~self.here

    def held_by(self, peer: PeerId) -> ChunkSet:
        """What a source has, as far as we know."""
        return self._held.get(peer, 0)

    def asked_for(self, chunk: int) -> list[PeerId]:
        """Who was asked for a chunk that is not here."""
        return self._asked.get(chunk, [])

    def set_held(self, peer: PeerId, chunks: ChunkSet) -> None:
        """A source has these chunks, and no others."""
        before = self._held.get(peer, 0)
        self._held[peer] = chunks
        self._copies.add(chunks & ~before)
        self._copies.add(before & ~chunks, -1)

    def forget(self, peer: PeerId) -> None:
        """A source is gone; what it owes is to be released."""
        self.set_held(peer, 0)
        del self._held[peer]

    def arrived(self, chunk: int) -> None:
        """A chunk is here."""
        self.here |= 1 << chunk
        self._asked.pop(chunk, None)
        self._asked_set &= ~(1 << chunk)

    def release(self, peer: PeerId, chunk: int) -> None:
        """A source does not owe us this chunk any more; another one may be asked for it."""
        peers = self._asked.get(chunk, [])
        if peer in peers:
            peers.remove(peer)
        if not peers:
            self._asked.pop(chunk, None)
            self._asked_set &= ~(1 << chunk)

    def pick(self, peer: PeerId) -> int | None:
        """Ask this source for a chunk that nobody was asked for; None when it has none."""
        candidates = self._held.get(peer, 0) & self.missing & ~self._asked_set
        if not candidates:
            return None
        chunk = any_of(self._copies.rarest(candidates), self._random)
        self._ask(peer, chunk)
        return chunk

    @property
    def open(self) -> ChunkSet:
        """Chunks that a source has and nobody was asked for."""
        return self.missing & ~self._asked_set & ~self._copies.none

    @property
    def in_endgame(self) -> bool:
        """Whether every missing chunk was asked for; those that nobody has yet are worth more than any a second time."""
        return not self.missing & ~self._asked_set

    def pick_again(self, peer: PeerId, takes_s: Callable[[int], float], longer_than_s: float) -> int | None:
        """In the endgame: ask this source, too, for a chunk that somebody else owes us; None when there is none.

        takes_s: how long a chunk will still take from those that were asked.  longer_than_s: only if it is longer than this.
        """
        if not self.in_endgame:
            return None
        held = self._held.get(peer, 0)
        candidates = [
            chunk
            for chunk, peers in self._asked.items()
            if held >> chunk & 1 and peer not in peers and len(peers) < COPIES and takes_s(chunk) > longer_than_s
        ]
        if not candidates:
            return None
        chunk = max(candidates, key=takes_s)
        self._ask(peer, chunk)
        return chunk

    def _ask(self, peer: PeerId, chunk: int) -> None:
        self._asked.setdefault(chunk, []).append(peer)
        self._asked_set |= 1 << chunk


# ------------------------------------------------------------------------------------------------------------------------
# How much each source is asked for, and which one first.
#
# Pure.  Policy:
#
# * **Score.**  A source is worth its success (an exponential average over its chunks: 1 brought, 0 failed) times its rate
#   (an exponential average of bytes a second).  A failure lowers both.  Where places are few, the best score comes first; in
#   one of twenty cases chance decides, so that a source that was bad once is seen to be good again.  A new source counts as
#   the best one until it is known.
# * **Window.**  Each source is asked for a few chunks at a time: one more for each that came soon (within `SOON_S`, so its
#   line may have stood idle), one less for each that came late, half as many after a failure (additive increase,
#   multiplicative decrease).
# * **Deadline.**  A chunk is overdue after four times what the measured rate says for all that the source owes us, and
#   others are asked for it; it is still taken if it comes.  A source whose rate is not known is believed to be slow.
# * **Pause.**  A source on a fast line is asked for several chunks together, instead of one question for each chunk that
#   arrives: a peer answers at most a hundred questions a second.
# * **Busy.**  A source that says so is asked again after a moment, longer each time; that is no failure.
# * **Rest.**  Two failures in a row, and a source is left alone for a while, twice as long each time.  A chunk with wrong
#   bytes, and it is set aside for good.


MEMORY = 0.3
"""Weight of the newest observation in the averages (SHARDCAST's)."""
EXPLORE = 0.05
FIRST_WINDOW, MOST_IN_WINDOW = 2, 64
FAST_WINDOW, PAUSE_S = 8, 0.04
SOON_S, LATE_S = 1.0, 4.0
DEADLINE_TIMES = 4.0
LEAST_DEADLINE_S, MOST_DEADLINE_S = 2.0, 60.0
FIRST_DUE_S, FIRST_BYTES_PER_S = 2.0, 512 << 10
BUSY_S, MOST_BUSY_S = 0.25, 0.5
FAILURES = 2
REST_S, MOST_REST_S = 4.0, 120.0


@dataclass
class Source:
    """rate: bytes a second, 0 while none is known.  window: chunks that it is asked for at a time."""

    success: float = 1.0
    rate: float = 0.0
    window: int = FIRST_WINDOW
    owed_bytes: int = 0
    failures: int = 0
    rests_until: float = -inf
    asked_at: float = -inf
    rest_s: float = REST_S
    busy_s: float = BUSY_S

    def score(self, best_rate: float) -> float:
        """What it is worth.  best_rate: of all sources, for one that is not known."""
        return self.success * (self.rate or best_rate)

    def due_s(self, size: int) -> float:
        """How long it is expected to take for all that it owes us and `size` bytes more."""
        owed = self.owed_bytes + size
        return owed / self.rate if self.rate else max(FIRST_DUE_S, owed / FIRST_BYTES_PER_S)

    def may_be_asked(self, now: float) -> bool:
        """Neither at rest nor asked a moment ago, while it has enough to send."""
        pauses = self.window >= FAST_WINDOW and self.owed_bytes > 0 and now - self.asked_at < PAUSE_S
        return self.rests_until <= now and not pauses


class Sources:
    """The sources of one blob.  `now` is trio time."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self._known: dict[PeerId, Source] = {}
        self.barred: set[PeerId] = set()
        """Set aside for good: their bytes were wrong."""

    def __contains__(self, peer: PeerId) -> bool:
        """Whether it is a source, at rest or not."""
        return peer in self._known

    def __len__(self) -> int:
        """How many there are."""
        return len(self._known)

    def all(self) -> list[PeerId]:
        """All of them, also those at rest."""
        return [*self._known]

    def window(self, peer: PeerId) -> int:
        """How many chunks it may owe us at a time."""
        return self._known[peer].window

    def add(self, peer: PeerId) -> None:
        """A peer has something of the blob."""
        if peer not in self.barred:
            self._known.setdefault(peer, Source())

    def remove(self, peer: PeerId) -> None:
        """It is gone."""
        self._known.pop(peer, None)

    def bar(self, peer: PeerId) -> None:
        """Its bytes were wrong: it is no source any more."""
        self.barred.add(peer)
        self.remove(peer)

    def awake(self, now: float) -> list[PeerId]:
        """Those that may be asked, in the order in which to ask them."""
        peers = [peer for peer, source in self._known.items() if source.may_be_asked(now)]
        if self._random.random() < EXPLORE:
            self._random.shuffle(peers)
            return peers
        best = max((self._known[peer].rate for peer in peers), default=0.0) or 1.0
        return sorted(peers, key=lambda peer: -self._known[peer].score(best))

    def asked(self, peer: PeerId, size: int, now: float) -> int:
        """A source owes us `size` more bytes; returns how many in all."""
        source = self._known[peer]
        source.owed_bytes += size
        source.asked_at = now
        return source.owed_bytes

    def settled(self, peer: PeerId, size: int) -> None:
        """It owes us `size` bytes less, whether it brought them or not."""
        if peer in self._known:
            self._known[peer].owed_bytes -= size

    def deadline(self, peer: PeerId, now: float) -> float:
        """When what it was asked for last is overdue."""
        source = self._known[peer]
        expected = DEADLINE_TIMES * source.due_s(0)
        return now + min(max(LEAST_DEADLINE_S, expected), MOST_DEADLINE_S)

    def brought(self, peer: PeerId, owed: int, waited_s: float) -> None:
        """A chunk came, and was right.

        owed: bytes that the source owed us when it was asked for this chunk, with it.  They and the time since then give
        the rate, whether the source sends one after the other or all at once.
        """
        source = self._known.get(peer)
        if source is None:
            return
        rate = owed / max(waited_s, 1e-3)
        source.rate = rate if not source.rate else source.rate + MEMORY * (rate - source.rate)
        source.success += MEMORY * (1 - source.success)
        source.failures, source.rest_s, source.busy_s = 0, REST_S, BUSY_S
        if waited_s < SOON_S:
            source.window = min(source.window + 1, MOST_IN_WINDOW)
        elif waited_s > LATE_S:
            source.window = max(source.window - 1, 1)

    def failed(self, peer: PeerId, now: float) -> None:
        """A chunk did not come in time, or a question was not answered."""
        source = self._known.get(peer)
        if source is None:
            return
        source.success *= 1 - MEMORY
        source.rate *= 1 - MEMORY
        source.window = max(source.window // 2, 1)
        source.failures += 1
        if source.failures >= FAILURES:
            source.failures = 0
            source.rests_until = now + source.rest_s
            source.rest_s = min(2 * source.rest_s, MOST_REST_S)

    def busy(self, peer: PeerId, now: float) -> None:
        """It says that it has no time for us now."""
        source = self._known.get(peer)
        if source is not None:
            source.window = max(source.window // 2, 1)
            source.rests_until = max(source.rests_until, now + source.busy_s * (0.5 + self._random.random()))
            source.busy_s = min(2 * source.busy_s, MOST_BUSY_S)

    def due_s(self, peer: PeerId, size: int) -> float:
        """How long it is expected to take for a chunk of `size` bytes that it is asked for now."""
        return self._known[peer].due_s(size)


# ------------------------------------------------------------------------------------------------------------------------


MOST_OWED_BYTES = 64 << 20
"""Asked for and not here, of one blob: so much memory may wait for its check."""
MOST_SOURCES = 32
AGAIN_TIMES = 2.0
"""A chunk is asked for a second time, in the endgame, of one that would bring it so much sooner."""


@dataclass(frozen=True)
class SourceHas:
    """A peer says that it has these chunks, and no others."""

    peer: PeerId
    chunks: ChunkSet


@dataclass(frozen=True)
class SourceGot:
    """A source says that it has these, too, now."""

    peer: PeerId
    chunks: ChunkSet


@dataclass(frozen=True)
class SourceGone:
    """A peer is not connected any more, or has nothing of this blob."""

    peer: PeerId


@dataclass(frozen=True)
class Came:
    """A chunk is here, checked and in its place."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class Wrong:
    """A peer sent other bytes for a chunk."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True)
class TurnedDown:
    """A source does not give these chunks: it may not have them after all."""

    peer: PeerId
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Busy:
    """A source has these chunks, and gives none of them now."""

    peer: PeerId
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Unanswered:
    """A source did not answer when it was asked for these chunks."""

    peer: PeerId
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Tick:
    """Some time has passed."""


DownloadEvent = SourceHas | SourceGot | SourceGone | Came | Wrong | TurnedDown | Busy | Unanswered | Tick


@dataclass(frozen=True)
class Want:
    """Ask a source for these chunks."""

    peer: PeerId
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class _Debt:
    """owed_bytes: by the source when it was asked, with this chunk."""

    asked_at: float
    owed_bytes: int
    due_at: float
    overdue_at: float

    def takes_s(self, now: float) -> float:
        """How long it will still take: what is late already will, we guess, take as long again."""
        return abs(self.due_at - now)


class Download:
    """What is here of `blob`, and who owes us what.  seed: of the choices that chance makes.  `now` is trio time."""

    def __init__(self, blob: Blob, here: ChunkSet, seed: bytes) -> None:
        self.blob = blob
        random_ = random.Random(seed)
        self._picker, self._sources = Picker(len(blob), here, random_), Sources(random_)
        self._debts: dict[PeerId, dict[int, _Debt]] = {}
        self._late: set[tuple[PeerId, int]] = set()
        """Chunks that were overdue, and are taken all the same."""
        self._owed_bytes = 0

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def here(self) -> ChunkSet:
        """Chunks that are here."""
        return self._picker.here

    @property
    def missing(self) -> ChunkSet:
        """Chunks that are not."""
        return self._picker.missing

    @property
    def owed_bytes(self) -> int:
        """Asked for and neither here nor overdue."""
        return self._owed_bytes

    @property
    def sources(self) -> int:
        """Peers that have some of it."""
        return len(self._sources)

    @property
    def barred(self) -> set[PeerId]:
        """Sources whose bytes were wrong."""
        return self._sources.barred

    def expects(self, peer: PeerId, chunk: int) -> bool:
        """Whether we take this chunk from this peer."""
        return bool(self.missing >> chunk & 1) and (chunk in self._debts.get(peer, ()) or (peer, chunk) in self._late)

    def has_use_of(self, peer: PeerId) -> bool:
        """Whether this peer has something that is missing, as far as we know."""
        return peer in self._sources and bool(self._picker.held_by(peer) & self.missing)

    def has_hope(self) -> bool:
        """Whether a source owes us something, or has something that is missing."""
        return self._owed_bytes > 0 or any(self._picker.held_by(peer) & self.missing for peer in self._sources.all())

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: DownloadEvent, now: float) -> list[Want]:
        """Take an event; returns what to ask for now."""
        match event:
            case SourceHas(peer, chunks):
                self._has(peer, chunks)
            case SourceGot(peer, chunks):
                if peer in self._sources:
                    self._has(peer, self._picker.held_by(peer) | chunks)
            case SourceGone(peer):
                self._forget(peer)
            case Came(peer, chunk):
                self._came(peer, chunk, now)
            case Wrong(peer, _):
                self._forget(peer)
                self._sources.bar(peer)
            case TurnedDown(peer, chunks):
                self._turned_down(peer, chunks, now)
            case Busy(peer, chunks):
                if self._settle(peer, chunks):
                    self._sources.busy(peer, now)
            case Unanswered(peer, chunks):
                if self._settle(peer, chunks):
                    self._sources.failed(peer, now)
            case Tick():
                self._note_overdue(now)
        return self._wants(now)

    def _has(self, peer: PeerId, chunks: ChunkSet) -> None:
        if peer in self._sources.barred or (peer not in self._sources and len(self._sources) >= MOST_SOURCES):
            return
        self._sources.add(peer)
        self._picker.set_held(peer, chunks)

    def _forget(self, peer: PeerId) -> None:
        if peer in self._sources:
            self._settle(peer, tuple(self._debts.get(peer, ())))
            self._picker.forget(peer)
            self._sources.remove(peer)
            self._debts.pop(peer, None)
            self._late = {(late, chunk) for late, chunk in self._late if late != peer}

    def _came(self, peer: PeerId, chunk: int, now: float) -> None:
        debt = self._debts.get(peer, {}).get(chunk)
        if debt is not None:
            self._sources.brought(peer, debt.owed_bytes, now - debt.asked_at)
        for other in [peer, *self._picker.asked_for(chunk)]:
            self._settle(other, (chunk,))
        self._late = {(late, other) for late, other in self._late if other != chunk}
        self._picker.arrived(chunk)

    def _turned_down(self, peer: PeerId, chunks: Iterable[int], now: float) -> None:
        refused = self._settle(peer, chunks)
        if refused and peer in self._sources:
            self._picker.set_held(peer, self._picker.held_by(peer) & ~set_of(refused))
            self._sources.failed(peer, now)

    def _note_overdue(self, now: float) -> None:
        for peer, debts in list(self._debts.items()):
            overdue = [chunk for chunk, debt in debts.items() if debt.overdue_at <= now]
            if overdue:
                self._settle(peer, overdue)
                self._late |= {(peer, chunk) for chunk in overdue}
                self._sources.failed(peer, now)

    def _settle(self, peer: PeerId, chunks: Iterable[int]) -> list[int]:
        """A source does not owe us these any more; returns those that it did owe."""
        debts = self._debts.get(peer, {})
        settled = [chunk for chunk in chunks if debts.pop(chunk, None) is not None]
        for chunk in settled:
            size = self.blob.sizes[chunk]
            self._owed_bytes -= size
            self._sources.settled(peer, size)
            self._picker.release(peer, chunk)
        return settled

    # -- asking -------------------------------------------------------------------------------------------------------

    def _wants(self, now: float) -> list[Want]:
        """Fill the windows of the sources, each in turn a chunk, so that the first ones do not get all there is."""
        wanted: dict[PeerId, list[int]] = {}
        if not self._picker.open and not (self.missing and self._picker.in_endgame):
            return []
        willing = self._sources.awake(now)
        if not self._picker.in_endgame:
            willing = [peer for peer in willing if self._picker.held_by(peer) & self._picker.open]
        while willing and self._owed_bytes < MOST_OWED_BYTES:
            willing = [peer for peer in willing if self._ask(peer, wanted, now)]
        return [Want(peer, tuple(chunks)) for peer, chunks in wanted.items()]

    def _ask(self, peer: PeerId, wanted: dict[PeerId, list[int]], now: float) -> bool:
        debts = self._debts.setdefault(peer, {})
        if len(debts) >= self._sources.window(peer) or self._owed_bytes >= MOST_OWED_BYTES:
            return False
        chunk = self._picker.pick(peer)
        if chunk is None:
            times_s = AGAIN_TIMES * self._sources.due_s(peer, self.blob.sizes[0])
            chunk = self._picker.pick_again(peer, lambda other: self._takes_s(other, now), times_s)
        if chunk is None:
            return False
        size = self.blob.sizes[chunk]
        owed = self._sources.asked(peer, size, now)
        self._owed_bytes += size
        debts[chunk] = _Debt(now, owed, now + self._sources.due_s(peer, 0), self._sources.deadline(peer, now))
        self._late.discard((peer, chunk))
        wanted.setdefault(peer, []).append(chunk)
        return True

    def _takes_s(self, chunk: int, now: float) -> float:
        """How long a chunk will still take, from the first of those that owe it to us."""
        return min(self._debts[peer][chunk].takes_s(now) for peer in self._picker.asked_for(chunk))
