"""Download of one blob from many sources, as a pure machine: events go in, requests come out.

It combines the picker's policy (which chunk) and the sources' policy (how many chunks, and which source first).  A source's
claim to have a chunk only makes us ask for it; the caller checks the bytes before they count.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

from protocol.blobs.blob import Blob, ChunkSet, Copies, any_of, chunks_in, set_of
from protocol.blobs.reliability import Reliability
from protocol.bounds import Backoff
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# The choice of the next chunk to ask a source for.
#
# Pure.  Policy:
#
# * **Rarest first.**  Of the chunks that the source has and that no source was asked for, pick one that the fewest sources
#   have: it may be lost with the next source that leaves, and we can then serve it to many peers.
# * **Ties by a seed.**  Among equally rare chunks, pick one with the caller's random generator: peers that begin together
#   ask for different chunks, and serve them to each other.
# * **Endgame.**  Once every missing chunk was asked for, an idle source is asked for a chunk that another source owes us:
#   one that only less reliable sources owe, or else the chunk that will take longest.  Of the sources that are as reliable
#   as this one, at most `COPIES` are asked for a chunk at a time, and twice as many each time that it was overdue, up to
#   `MOST_COPIES`.  Less reliable sources do not count, for they may withhold it, and sources without merit count by
#   themselves, for one of them may be the only one that sends it.  The copy that arrives second is refused.


COPIES, MOST_COPIES = 2, 16
"""Most equally reliable sources asked for one chunk at a time: if it was never overdue, and however often it was."""


class Picker:
    """Bookkeeping for a blob of `count` chunks: the chunks that are here, that sources hold, and that were asked for.

    wanted: the chunks to fetch; None for all.
    """

    def __init__(self, count: int, here: ChunkSet, random_: random.Random, wanted: ChunkSet | None = None) -> None:
        self._random, self._wanted = random_, (1 << count) - 1 if wanted is None else wanted
        self.here = here
        self._held: dict[PeerId, ChunkSet] = {}
        self._copies = Copies(count)
        self._asked: dict[int, list[PeerId]] = {}
        self._asked_set: ChunkSet = 0
        self._overdue: Counter[int] = Counter()
        """Times that each missing chunk was overdue."""

    @property
    def missing(self) -> ChunkSet:
        """Wanted chunks that are not here."""
        return self._wanted & ~self.here

    def held_by(self, peer: PeerId) -> ChunkSet:
        """Return the chunks that a source has, as far as we know."""
        return self._held.get(peer, 0)

    def asked_for(self, chunk: int) -> list[PeerId]:
        """Return the sources asked for a chunk that is not here."""
        return self._asked.get(chunk, [])

    def set_held(self, peer: PeerId, chunks: ChunkSet) -> None:
        """Set the chunks of a source to exactly these."""
        before = self._held.get(peer, 0)
        self._held[peer] = chunks
        self._copies.add(chunks & ~before)
        self._copies.add(before & ~chunks, -1)

    def forget(self, peer: PeerId) -> None:
        """Forget a source that is gone; the caller releases the chunks that it owes."""
        self.set_held(peer, 0)
        del self._held[peer]

    def arrived(self, chunk: int) -> None:
        """Note that a chunk is here."""
        self.here |= 1 << chunk
        self._asked.pop(chunk, None)
        self._overdue.pop(chunk, None)
        self._asked_set &= ~(1 << chunk)

    def release(self, peer: PeerId, chunk: int) -> None:
        """Release a source from owing us this chunk; another source may be asked for it."""
        peers = self._asked.get(chunk, [])
        if peer in peers:
            peers.remove(peer)
        if not peers:
            self._asked.pop(chunk, None)
            self._asked_set &= ~(1 << chunk)

    def overdue(self, chunks: ChunkSet) -> None:
        """Note that these chunks were overdue once more."""
        self._overdue.update(chunks_in(chunks & self.missing))

    def pick(self, peer: PeerId) -> int | None:
        """Pick a chunk that no source was asked for, and ask this source for it; None if the source has no such chunk."""
        candidates = self._held.get(peer, 0) & self.missing & ~self._asked_set
        if not candidates:
            return None
        chunk = any_of(self._copies.rarest(candidates), self._random)
        self._ask(peer, chunk)
        return chunk

    @property
    def open(self) -> ChunkSet:
        """Chunks that some source has and that no source was asked for."""
        return self.missing & ~self._asked_set & ~self._copies.none

    @property
    def in_endgame(self) -> bool:
        """True if every missing chunk was asked for; while nobody has some missing chunk, no second copies are fetched."""
        return not self.missing & ~self._asked_set

    def pick_again(
        self,
        peer: PeerId,
        takes_s: Callable[[PeerId, int], float],
        longer_than_s: float,
        rank: Callable[[PeerId], int] = lambda peer: 0,
    ) -> int | None:
        """In the endgame, ask this source for a chunk that another source already owes us; None if there is no such chunk.

        takes_s: seconds until a source that was asked sends a chunk.  longer_than_s: a chunk is asked for again only if all
        sources of at least this one's rank take longer than this.
        """
        if not self.in_endgame:
            return None
        held, ours, candidates = self._held.get(peer, 0), rank(peer), dict[int, float]()
        for chunk, peers in self._asked.items():
            if not held >> chunk & 1 or peer in peers:
                continue
            equals = [other for other in peers if rank(other) >= ours]
            soonest_s = min((takes_s(other, chunk) for other in equals), default=inf)
            is_worth_it = self._overdue[chunk] or soonest_s > longer_than_s
            copies = len(equals) if ours > 0 else sum(rank(other) <= 0 for other in peers)
            if is_worth_it and copies < min(COPIES << self._overdue[chunk], MOST_COPIES):
                candidates[chunk] = soonest_s
        if not candidates:
            return None
        chunk = max(candidates, key=candidates.__getitem__)
        self._ask(peer, chunk)
        return chunk

    def _ask(self, peer: PeerId, chunk: int) -> None:
        self._asked.setdefault(chunk, []).append(peer)
        self._asked_set |= 1 << chunk


# ------------------------------------------------------------------------------------------------------------------------
# The number of chunks that each source is asked for, and the order of the sources.
#
# Pure.  Policy:
#
# * **Reliability.**  The most reliable sources (`Reliability`) are asked first, and sources without merit owe us at most
#   `MOST_UNPROVEN_BYTES` together: keys are free, so whatever they promise must not keep us from asking others.
# * **Score.**  Equally reliable sources are asked by their scores, the best first.  A source is worth its success (an
#   exponential average over its chunks: 1 brought, 0 failed) times its rate (an exponential average of bytes a second).  A
#   failure lowers both.  In one of twenty cases the order is random, so that we notice when a source that was bad once has
#   become good again.  Until its rate is known, a new source is given the best rate of all.
# * **Window.**  Each source is asked for a few chunks at a time: one more for each chunk that came soon (within `SOON_S`, so
#   its line may have stood idle), one less for each chunk that came late, half as many after a failure (additive increase,
#   multiplicative decrease).
# * **Deadline.**  At the measured rate, a source needs some time for all that it owes us.  A chunk is overdue after four
#   times as long.  Then other sources are asked for it; it is still accepted if it comes.  A source of unknown rate counts
#   as slow.
# * **Pause.**  A source on a fast line is asked for several chunks together, instead of one question for each chunk that
#   arrives: a peer answers at most a hundred questions a second.
# * **Busy.**  A source that says it is busy is asked again after a pause, which grows each time; this does not count as a
#   failure.
# * **Rest.**  After two failures in a row, a source is not asked for a while, twice as long each time.  After a chunk with
#   wrong bytes, it is never asked again.


MEMORY = 0.3
"""Weight of the newest observation in the averages, as in SHARDCAST."""
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
MOST_OWED_BYTES = 64 << 20
"""Most bytes of one blob that are asked for and not here yet: up to this much memory may be in use for unchecked chunks."""
MOST_UNPROVEN_BYTES = MOST_OWED_BYTES // 2


@dataclass
class Source:
    """A source of the blob.  rate: bytes a second, 0 while unknown.  window: chunks that it is asked for at a time."""

    success: float = 1.0
    rate: float = 0.0
    window: int = FIRST_WINDOW
    owed_bytes: int = 0
    failures: int = 0
    rests_until: float = -inf
    asked_at: float = -inf
    rest: Backoff = field(default_factory=lambda: Backoff(REST_S, MOST_REST_S))
    busy: Backoff = field(default_factory=lambda: Backoff(BUSY_S, MOST_BUSY_S))

    def score(self, best_rate: float) -> float:
        """Return the score of the source.  best_rate: best rate of all sources, used if the source's own rate is unknown."""
        return self.success * (self.rate or best_rate)

    def due_s(self, size: int) -> float:
        """Return the seconds that the source should take for all the bytes that it owes us and `size` bytes more."""
        owed = self.owed_bytes + size
        return owed / self.rate if self.rate else max(FIRST_DUE_S, owed / FIRST_BYTES_PER_S)

    def may_be_asked(self, now: float) -> bool:
        """Return True unless the source is resting, or was asked a moment ago and has enough to send."""
        pauses = self.window >= FAST_WINDOW and self.owed_bytes > 0 and now - self.asked_at < PAUSE_S
        return self.rests_until <= now and not pauses


class Sources:
    """The sources of one blob.  reliability: of all peers, from other fetches too.  `now` is trio time."""

    def __init__(self, random_: random.Random, reliability: Reliability | None = None) -> None:
        self._random = random_
        self.reliability = reliability if reliability is not None else Reliability()
        self._known: dict[PeerId, Source] = {}
        self.barred: set[PeerId] = set()
        """Peers that are never asked again, because their bytes were wrong."""

    def __contains__(self, peer: PeerId) -> bool:
        """Return True if the peer is a source, at rest or not."""
        return peer in self._known

    def __len__(self) -> int:
        """Return the number of sources."""
        return len(self._known)

    def all(self) -> list[PeerId]:
        """Return all sources, also those at rest."""
        return [*self._known]

    def window(self, peer: PeerId) -> int:
        """Return the number of chunks that a source may owe us at a time."""
        return self._known[peer].window

    def add(self, peer: PeerId) -> None:
        """Add a peer that has some of the blob."""
        if peer not in self.barred:
            self._known.setdefault(peer, Source())

    def remove(self, peer: PeerId) -> None:
        """Remove a source that is gone."""
        self._known.pop(peer, None)

    def bar(self, peer: PeerId) -> None:
        """Remove a source for good: its bytes were wrong."""
        self.barred.add(peer)
        self.remove(peer)

    def awake(self, now: float) -> list[PeerId]:
        """Return the sources that may be asked, in the order in which to ask them."""
        peers = [peer for peer, source in self._known.items() if source.may_be_asked(now)]
        if self._random.random() < EXPLORE:
            self._random.shuffle(peers)
            return peers
        best = max((self._known[peer].rate for peer in peers), default=0.0) or 1.0
        return self.reliability.in_order(sorted(peers, key=lambda peer: -self._known[peer].score(best)))

    def may_owe_more(self, peer: PeerId) -> bool:
        """Return True unless the sources without merit, of which this is one, owe us as much together as they may."""
        if self.reliability.is_proven(peer):
            return True
        unproven = (source.owed_bytes for each, source in self._known.items() if not self.reliability.is_proven(each))
        return sum(unproven) < MOST_UNPROVEN_BYTES

    def asked(self, peer: PeerId, size: int, now: float) -> int:
        """Note that a source owes us `size` more bytes; return the bytes that it owes in all."""
        source = self._known[peer]
        source.owed_bytes += size
        source.asked_at = now
        return source.owed_bytes

    def settled(self, peer: PeerId, size: int) -> None:
        """Note that a source owes us `size` bytes less, whether it brought them or not."""
        if peer in self._known:
            self._known[peer].owed_bytes -= size

    def deadline(self, peer: PeerId, now: float) -> float:
        """Return the time at which the chunk that was last asked of this source becomes overdue."""
        source = self._known[peer]
        expected = DEADLINE_TIMES * source.due_s(0)
        return now + min(max(LEAST_DEADLINE_S, expected), MOST_DEADLINE_S)

    def brought(self, peer: PeerId, owed: int, waited_s: float) -> None:
        """Note that a chunk came, and that its bytes were right.

        owed: bytes that the source owed us when it was asked for this chunk, including it.  Divided by the time since then,
        they give the rate, whether the source sends chunks one after the other or all at once.
        """
        source = self._known.get(peer)
        if source is None:
            return
        rate = owed / max(waited_s, 1e-3)
        source.rate = rate if not source.rate else source.rate + MEMORY * (rate - source.rate)
        source.success += MEMORY * (1 - source.success)
        source.failures = 0
        source.rest.reset()
        source.busy.reset()
        if waited_s < SOON_S:
            source.window = min(source.window + 1, MOST_IN_WINDOW)
        elif waited_s > LATE_S:
            source.window = max(source.window - 1, 1)

    def failed(self, peer: PeerId, now: float) -> None:
        """Note that a chunk was overdue, or a question was not answered."""
        source = self._known.get(peer)
        if source is None:
            return
        source.success *= 1 - MEMORY
        source.rate *= 1 - MEMORY
        source.window = max(source.window // 2, 1)
        source.failures += 1
        if source.failures >= FAILURES:
            source.failures = 0
            source.rests_until = now + source.rest.failed()

    def busy(self, peer: PeerId, now: float) -> None:
        """Note that a source says that it is busy."""
        source = self._known.get(peer)
        if source is not None:
            source.window = max(source.window // 2, 1)
            source.rests_until = max(source.rests_until, now + source.busy.failed() * (0.5 + self._random.random()))

    def due_s(self, peer: PeerId, size: int) -> float:
        """Return the seconds that a source should take for a chunk of `size` bytes if it is asked for the chunk now."""
        return self._known[peer].due_s(size)


# ------------------------------------------------------------------------------------------------------------------------


MOST_SOURCES = 32
AGAIN_TIMES = 2.0
"""In the endgame, a chunk is asked for a second time if the second source should be this many times as fast."""
Wants = dict[PeerId, list[int]]
"""Chunks to ask each source for."""


@dataclass(frozen=True)
class _Debt:
    """A chunk that a source owes us.  owed_bytes: bytes that the source owed when it was asked, including this chunk."""

    asked_at: float
    owed_bytes: int
    due_at: float
    overdue_at: float

    def takes_s(self, now: float) -> float:
        """Estimate the seconds until the chunk comes; a chunk that is t seconds late is expected to take t seconds more."""
        return abs(self.due_at - now)


class Download:
    """The chunks of `blob` that are here, and the chunks that sources owe us.

    seed: of random choices.  wanted: the chunks to fetch; None for all.  reliability: of all peers, which the download also
    reports to.  `now` is trio time.
    """

    def __init__(
        self,
        blob: Blob,
        here: ChunkSet,
        seed: bytes,
        wanted: ChunkSet | None = None,
        reliability: Reliability | None = None,
    ) -> None:
        self.blob = blob
        random_ = random.Random(seed)
        self._picker, self._sources = Picker(len(blob), here, random_, wanted), Sources(random_, reliability)
        self._reliability = self._sources.reliability
        self._debts: dict[PeerId, dict[int, _Debt]] = {}
        self._late: set[tuple[PeerId, int]] = set()
        """Chunks that were overdue; they are still accepted if they come."""
        self._withheld: dict[PeerId, ChunkSet] = {}
        """Chunks that each source has let become overdue since it last brought one."""
        self._owed_bytes = 0

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def here(self) -> ChunkSet:
        """Chunks that are here."""
        return self._picker.here

    @property
    def missing(self) -> ChunkSet:
        """Wanted chunks that are not here."""
        return self._picker.missing

    @property
    def owed_bytes(self) -> int:
        """Bytes asked for that are neither here nor overdue."""
        return self._owed_bytes

    @property
    def sources(self) -> int:
        """Number of peers that have some of the blob."""
        return len(self._sources)

    @property
    def barred(self) -> set[PeerId]:
        """Sources whose bytes were wrong."""
        return self._sources.barred

    def expects(self, peer: PeerId, chunk: int) -> bool:
        """Return True if we accept this chunk from this peer."""
        return bool(self.missing >> chunk & 1) and (chunk in self._debts.get(peer, ()) or (peer, chunk) in self._late)

    def asked_for(self, chunk: int) -> list[PeerId]:
        """Return the sources that owe us this chunk."""
        return [*self._picker.asked_for(chunk)]

    def has_use_of(self, peer: PeerId) -> bool:
        """Return True if this peer has a missing chunk, as far as we know."""
        return peer in self._sources and bool(self._picker.held_by(peer) & self.missing)

    def is_withholding(self, peer: PeerId) -> bool:
        """Return True if this source has let every missing chunk that it claims become overdue, and brought none since."""
        claimed = self._picker.held_by(peer) & self.missing
        return bool(claimed) and not claimed & ~self._withheld.get(peer, 0)

    def has_hope(self) -> bool:
        """Return True if a source owes us a chunk, or has a missing chunk."""
        return self._owed_bytes > 0 or any(self._picker.held_by(peer) & self.missing for peer in self._sources.all())

    # -- events: each returns the requests to send now, as chunks by source --------------------------------------------

    def has(self, peer: PeerId, chunks: ChunkSet, now: float) -> Wants:
        """Note that a peer says that it has exactly these chunks."""
        self._has(peer, chunks)
        return self._wants(now)

    def got(self, peer: PeerId, chunks: ChunkSet, now: float) -> Wants:
        """Note that a source says that it now has these chunks as well."""
        if peer in self._sources:
            self._has(peer, self._picker.held_by(peer) | chunks)
        return self._wants(now)

    def gone(self, peer: PeerId, now: float) -> Wants:
        """Note that a source is no longer connected, or has no chunk of this blob."""
        self._forget(peer)
        return self._wants(now)

    def came(self, peer: PeerId | None, chunk: int, now: float) -> Wants:
        """Note that a chunk was checked and written to its place.  peer: None if it did not come from a peer."""
        debt = self._debts.get(peer, {}).get(chunk) if peer is not None else None
        if peer is not None and debt is not None:
            self._sources.brought(peer, debt.owed_bytes, now - debt.asked_at)
            self._withheld.pop(peer, None)
        if peer is not None and (debt is not None or (peer, chunk) in self._late):
            self._reliability.brought(peer)
        for other in [*([peer] if peer is not None else []), *self._picker.asked_for(chunk)]:
            self._settle(other, (chunk,))
        self._late = {(late, other) for late, other in self._late if other != chunk}
        self._picker.arrived(chunk)
        return self._wants(now)

    def wrong(self, peer: PeerId, now: float) -> Wants:
        """Note that a source has sent wrong bytes for a chunk."""
        self._reliability.withheld(peer)
        self._forget(peer)
        self._sources.bar(peer)
        return self._wants(now)

    def turned_down(self, peer: PeerId, chunks: Collection[int], now: float) -> Wants:
        """Note that a source refuses these chunks, which it may not have after all."""
        refused = self._settle(peer, chunks)
        if refused and peer in self._sources:
            self._picker.set_held(peer, self._picker.held_by(peer) & ~set_of(refused))
            self._sources.failed(peer, now)
        return self._wants(now)

    def busy(self, peer: PeerId, chunks: Collection[int], now: float) -> Wants:
        """Note that a source refuses these chunks for now, although it has them."""
        if self._settle(peer, chunks):
            self._sources.busy(peer, now)
        return self._wants(now)

    def unanswered(self, peer: PeerId, chunks: Collection[int], now: float) -> Wants:
        """Note that a source did not answer when it was asked for these chunks."""
        if self._settle(peer, chunks):
            self._sources.failed(peer, now)
        return self._wants(now)

    def tick(self, now: float) -> Wants:
        """Note that some time has passed."""
        noted: ChunkSet = 0
        for peer, debts in list(self._debts.items()):
            overdue = [chunk for chunk, debt in debts.items() if debt.overdue_at <= now]
            if overdue:
                self._settle(peer, overdue)
                self._late |= {(peer, chunk) for chunk in overdue}
                self._withheld[peer] = self._withheld.get(peer, 0) | set_of(overdue)
                noted |= set_of(overdue)
                self._sources.failed(peer, now)
                self._reliability.withheld(peer)
        self._picker.overdue(noted)
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
            self._withheld.pop(peer, None)
            self._late = {(late, chunk) for late, chunk in self._late if late != peer}

    def _settle(self, peer: PeerId, chunks: Collection[int]) -> list[int]:
        """Release a source from owing us these chunks; return the chunks that it actually owed."""
        debts = self._debts.get(peer, {})
        settled = [chunk for chunk in chunks if debts.pop(chunk, None) is not None]
        for chunk in settled:
            size = self.blob.sizes[chunk]
            self._owed_bytes -= size
            self._sources.settled(peer, size)
            self._picker.release(peer, chunk)
        return settled

    # -- asking -------------------------------------------------------------------------------------------------------

    def _wants(self, now: float) -> Wants:
        """Fill the windows of the sources, one chunk each in turn, so that the first ones do not get all chunks."""
        wanted: Wants = {}
        if not self._picker.open and not (self.missing and self._picker.in_endgame):
            return wanted
        willing = self._sources.awake(now)
        if not self._picker.in_endgame:
            willing = [peer for peer in willing if self._picker.held_by(peer) & self._picker.open]
        while willing and self._owed_bytes < MOST_OWED_BYTES:
            willing = [peer for peer in willing if self._ask(peer, wanted, now)]
        return wanted

    def _ask(self, peer: PeerId, wanted: Wants, now: float) -> bool:
        debts = self._debts.setdefault(peer, {})
        if len(debts) >= self._sources.window(peer) or self._owed_bytes >= MOST_OWED_BYTES:
            return False
        if not self._sources.may_owe_more(peer):
            return False
        chunk = self._picker.pick(peer)
        if chunk is None:
            times_s = AGAIN_TIMES * self._sources.due_s(peer, self.blob.sizes[0])
            chunk = self._picker.pick_again(
                peer, lambda other, chunk: self._debts[other][chunk].takes_s(now), times_s, self._reliability.rank
            )
        if chunk is None:
            return False
        size = self.blob.sizes[chunk]
        owed = self._sources.asked(peer, size, now)
        self._owed_bytes += size
        debts[chunk] = _Debt(now, owed, now + self._sources.due_s(peer, 0), self._sources.deadline(peer, now))
        self._late.discard((peer, chunk))
        wanted.setdefault(peer, []).append(chunk)
        return True
