"""Fetching one blob from many sources, as a pure machine: what arrives goes in, whom to ask for what comes out.

It puts together the picker's policy (which chunk) and the sources' (how many, from whom first).  A source is believed about
what it has only in so far as it is asked for it; bytes are checked by the caller before they count.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.content.blob import Blob, ChunkSet, set_of
from protocol.content.picker import Picker
from protocol.content.sources import Sources
from protocol.wire.identity import PeerId

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
