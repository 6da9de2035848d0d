"""Download of one blob from many sources, as a pure machine: events go in, requests come out.

A source is a peer, or a mirror, which is a web server (`protocol.blobs.mirrors`).  A source's claim to have a chunk only
makes us ask for it; the caller checks the bytes before they count.

Rules for choosing the chunk to ask a source for:

* **Rarest first.**  Of the chunks that the source has and that no source was asked for, pick a chunk that the fewest sources
  have: it may be lost with the next source that leaves, and we can then serve it to many peers.
* **Ties by a seed.**  Among equally rare chunks, pick one with the caller's random generator: peers that begin together
  ask for different chunks, and serve them to each other.
* **Ranges.**  A mirror is asked for consecutive chunks that no source was asked for, as many as it sends in a few seconds,
  but at most about half of them if peers have some as well.  It is asked again once it owes none.
* **Endgame.**  Once every missing chunk was asked for, an idle source is asked for a chunk that another source owes us:
  one that only less reliable sources owe, otherwise the chunk that will take longest.  Of the sources that are as reliable
  as this one, at most `COPIES` are asked for a chunk at a time, and twice as many each time that it was overdue, up to
  `MOST_COPIES`.  Less reliable sources do not count, because they may withhold it, and sources without merit are counted
  separately, because one of them may be the only source that sends it.  The copy that arrives second is refused.

Rules for the number of chunks asked of each source, and for the order of the sources:

* **Reliability.**  The most reliable sources (`Reliability`) are asked first, and sources without merit owe us at most
  `MOST_UNPROVEN_BYTES` together: keys are free, so whatever they promise must not keep us from asking others.
* **Score.**  Equally reliable sources are asked by their scores, the best first.  A source is worth its success (an
  exponential average over its chunks: 1 brought, 0 failed) times its rate (an exponential average of bytes a second).  A
  failure lowers both.  In one of twenty cases the order is random, so that we notice when a source that was bad once has
  become good again.  Until its rate is known, a new source is given the best rate of all.
* **Window.**  Each source is asked for a few chunks at a time: one more for each chunk that came soon (within `SOON_S`, so
  its line may have stood idle), one less for each chunk that came late, half as many after a failure (additive increase,
  multiplicative decrease).
* **Deadline.**  At the measured rate, a source needs some time for all that it owes us.  A chunk is overdue after four
  times as long.  Then other sources are asked for it; it is still accepted if it comes.  A source of unknown rate counts
  as slow.
* **Pause.**  A source on a fast line is asked for several chunks together, instead of one question for each chunk that
  arrives: a peer answers at most a hundred questions a second.
* **Busy.**  A source that says it is busy is asked again after a pause, which grows each time; this does not count as a
  failure.
* **Rest.**  After two failures in a row, a source is not asked for a while, twice as long each time.  After a chunk with
  wrong bytes, it is never asked again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from protocol.blobs.blob import Blob, ChunkSet, Copies, any_of, chunks_in, set_of
from protocol.blobs.reliability import Reliability
from protocol.bounds import Backoff

MOST_SOURCES = 32
COPIES, MOST_COPIES = 2, 16
"""Most equally reliable sources asked for one chunk at a time: for a chunk that was never overdue, and for any chunk."""
AGAIN_TIMES = 2.0
"""In the endgame, a second source is asked for a chunk if it is expected to be this many times as fast."""
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
LEAST_SHARED = 8
"""Fewest chunks of a range, even if peers have them as well: each range costs a connection."""
RANGE_S, FIRST_RANGE_BYTES, MOST_RANGE_BYTES = 8.0, 2 << 20, 8 << 20
"""Seconds for which a mirror is asked at its measured rate, bytes until the rate is known, and most bytes of a range."""

Wants = dict[str, list[int]]
"""Chunks to ask each source for."""


@dataclass(frozen=True)
class _Debt:
    """A chunk that a source owes us.  owed_bytes: bytes that the source owed when it was asked, including this chunk."""

    asked_at: float
    owed_bytes: int
    due_at: float
    overdue_at: float


@dataclass
class Source:
    """A source of the blob.

    is_mirror: True if it sends ranges, one at a time.  has: its chunks, as far as we know.  debts: chunks that it owes us.
    late: chunks that were overdue, which are still accepted.  withheld: late chunks since it last brought a chunk.
    rate: bytes a second, 0 while unknown.  window: chunks that it is asked for at a time.
    """

    is_mirror: bool = False
    has: ChunkSet = 0
    debts: dict[int, _Debt] = field(default_factory=dict)
    late: ChunkSet = 0
    withheld: ChunkSet = 0
    success: float = 1.0
    rate: float = 0.0
    window: int = FIRST_WINDOW
    owed_bytes: int = 0
    failures: int = 0
    rests_until: float = -inf
    asked_at: float = -inf
    rest: Backoff = field(default_factory=lambda: Backoff(REST_S, MOST_REST_S))
    busy: Backoff = field(default_factory=lambda: Backoff(BUSY_S, MOST_BUSY_S))

    def due_s(self, size: int) -> float:
        """Return the seconds that the source should take for all the bytes that it owes us and `size` bytes more."""
        owed = self.owed_bytes + size
        return owed / self.rate if self.rate else max(FIRST_DUE_S, owed / FIRST_BYTES_PER_S)

    def may_bring(self, chunk: int) -> bool:
        """Return True if the source was asked for this chunk, which may be overdue."""
        return chunk in self.debts or bool(self.late >> chunk & 1)

    def owe(self, chunk: int, size: int, now: float) -> None:
        """Note that the source owes us one more chunk."""
        self.owed_bytes += size
        self.asked_at = now
        due_s = self.due_s(0)
        overdue_s = min(max(LEAST_DEADLINE_S, DEADLINE_TIMES * due_s), MOST_DEADLINE_S)
        self.debts[chunk] = _Debt(now, self.owed_bytes, now + due_s, now + overdue_s)

    def may_be_asked(self, now: float) -> bool:
        """Return True unless the source is resting, or was asked a moment ago and has enough to send."""
        has_enough = self.owed_bytes > 0 and (self.window >= FAST_WINDOW and now - self.asked_at < PAUSE_S)
        return self.rests_until <= now and not has_enough

    def brought(self, owed: int, waited_s: float) -> None:
        """Note that a chunk came, and that its bytes were right.

        owed: bytes that the source owed us when it was asked for this chunk, including it.  Divided by the time since then,
        they give the rate, whether the source sends chunks one after the other or all at once.
        """
        rate = owed / max(waited_s, 1e-3)
        self.rate = rate if not self.rate else self.rate + MEMORY * (rate - self.rate)
        self.success += MEMORY * (1 - self.success)
        self.failures = 0
        self.rest.reset()
        self.busy.reset()
        if waited_s < SOON_S:
            self.window = min(self.window + 1, MOST_IN_WINDOW)
        elif waited_s > LATE_S:
            self.window = max(self.window - 1, 1)

    def failed(self, now: float) -> None:
        """Note that a chunk was overdue, or a question was not answered."""
        self.success *= 1 - MEMORY
        self.rate *= 1 - MEMORY
        self.window = max(self.window // 2, 1)
        self.failures += 1
        if self.failures >= FAILURES:
            self.failures = 0
            self.rests_until = now + self.rest.failed()


class Download:
    """The chunks of `blob` that are here, and the chunks that sources owe us.

    seed: the seed of random choices.  wanted: the chunks to fetch; None for all.  reliability: the reliability of all
    sources, to which all downloads report.  owed_bytes: bytes that were asked for and are neither here nor overdue.  barred:
    sources that are never asked again, because their bytes were wrong.  `now` is trio time.
    """

    def __init__(
        self,
        blob: Blob,
        here: ChunkSet,
        seed: bytes,
        wanted: ChunkSet | None = None,
        reliability: Reliability | None = None,
    ) -> None:
        self.blob, self.here = blob, here
        self._random, self._wanted = random.Random(seed), blob.all if wanted is None else wanted
        self._reliability = reliability if reliability is not None else Reliability()
        self.sources: dict[str, Source] = {}
        self.barred: set[str] = set()
        self.owed_bytes = 0
        self._copies = Copies(len(blob))
        self._asked: dict[int, list[str]] = {}
        """Sources that owe us each chunk."""
        self._asked_set: ChunkSet = 0
        self._overdue: Counter[int] = Counter()
        """Times that each missing chunk was overdue."""

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def missing(self) -> ChunkSet:
        """Wanted chunks that are not here."""
        return self._wanted & ~self.here

    def expects(self, source: str, chunk: int) -> bool:
        """Return True if we accept this chunk from this source."""
        known = self.sources.get(source)
        return known is not None and bool(self.missing >> chunk & 1) and known.may_bring(chunk)

    def asked_for(self, chunk: int) -> list[str]:
        """Return the sources that owe us this chunk."""
        return [*self._asked.get(chunk, ())]

    def has_use_of(self, source: str) -> bool:
        """Return True if this source has a missing chunk, as far as we know."""
        known = self.sources.get(source)
        return known is not None and bool(known.has & self.missing)

    def is_withholding(self, source: str) -> bool:
        """Return True if this source has let every missing chunk that it claims become overdue, and brought none since."""
        return self.has_use_of(source) and not self.sources[source].has & self.missing & ~self.sources[source].withheld

    def has_hope(self) -> bool:
        """Return True if a source owes us a chunk, or has a missing chunk."""
        return self.owed_bytes > 0 or any(known.has & self.missing for known in self.sources.values())

    # -- events: each returns the requests to send now, as chunks by source --------------------------------------------

    def has(self, source: str, chunks: ChunkSet, now: float, *, is_mirror: bool = False) -> Wants:
        """Note that a source says that it has exactly these chunks."""
        if source not in self.barred and (source in self.sources or is_mirror or len(self.sources) < MOST_SOURCES):
            known = self.sources.setdefault(source, Source(is_mirror))
            self._copies.add(chunks & ~known.has)
            self._copies.add(known.has & ~chunks, -1)
            known.has = chunks
        return self._wants(now)

    def got(self, source: str, chunks: ChunkSet, now: float) -> Wants:
        """Note that a source says that it now has these chunks as well."""
        known = self.sources.get(source)
        return self.has(source, known.has | chunks, now) if known is not None else self._wants(now)

    def gone(self, source: str, now: float) -> Wants:
        """Note that a source is no longer connected, or has no chunk of this blob."""
        known = self.sources.get(source)
        if known is not None:
            self._settle(source, [*known.debts])
            self._copies.add(known.has, -1)
            del self.sources[source]
        return self._wants(now)

    def came(self, source: str, chunk: int, now: float) -> Wants:
        """Note that a chunk was checked and written to its place."""
        known = self.sources.get(source)
        if known is not None and (debt := known.debts.get(chunk)) is not None:
            known.brought(debt.owed_bytes, now - debt.asked_at)
            known.withheld = 0
        if known is not None and known.may_bring(chunk):
            self._reliability.brought(source)
        for other in self.asked_for(chunk):
            self._settle(other, (chunk,))
        self.here |= 1 << chunk
        self._overdue.pop(chunk, None)
        return self._wants(now)

    def wrong(self, source: str, now: float) -> Wants:
        """Note that a source has sent wrong bytes for a chunk."""
        self._reliability.withheld(source)
        self.barred.add(source)
        return self.gone(source, now)

    def turned_down(self, source: str, chunks: Collection[int], now: float) -> Wants:
        """Note that a source refuses these chunks, which it may not have after all."""
        if refused := set_of(self._settle(source, chunks)):
            self.sources[source].failed(now)
            return self.has(source, self.sources[source].has & ~refused, now)
        return self._wants(now)

    def unanswered(self, source: str, chunks: Collection[int], now: float) -> Wants:
        """Note that a source did not answer when it was asked for these chunks."""
        if self._settle(source, chunks):
            self.sources[source].failed(now)
        return self._wants(now)

    def busy(self, source: str, chunks: Collection[int], now: float) -> Wants:
        """Note that a source refuses these chunks for now, although it has them."""
        if self._settle(source, chunks):
            known = self.sources[source]
            known.window = max(known.window // 2, 1)
            known.rests_until = max(known.rests_until, now + known.busy.failed() * (0.5 + self._random.random()))
        return self._wants(now)

    def tick(self, now: float) -> Wants:
        """Note that some time has passed."""
        noted: ChunkSet = 0
        for source, known in self.sources.items():
            overdue = set_of([chunk for chunk, debt in known.debts.items() if debt.overdue_at <= now])
            if overdue:
                self._settle(source, [*chunks_in(overdue)])
                known.late |= overdue
                known.withheld |= overdue
                noted |= overdue
                known.failed(now)
                self._reliability.withheld(source)
        self._overdue.update(chunks_in(noted & self.missing))
        return self._wants(now)

    def _settle(self, source: str, chunks: Collection[int]) -> list[int]:
        """Release a source from owing us these chunks; return the chunks that it actually owed."""
        known = self.sources.get(source)
        settled = [chunk for chunk in chunks if known is not None and known.debts.pop(chunk, None) is not None]
        for chunk in settled:
            size = self.blob.sizes[chunk]
            self.owed_bytes -= size
            self.sources[source].owed_bytes -= size
            self._asked[chunk].remove(source)
            if not self._asked[chunk]:
                del self._asked[chunk]
                self._asked_set &= ~(1 << chunk)
        return settled

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def _unasked(self) -> ChunkSet:
        """Missing chunks that no source was asked for; in the endgame there are none."""
        return self.missing & ~self._asked_set

    def _wants(self, now: float) -> Wants:
        """Fill the windows of the sources, one chunk each in turn, so that the first ones do not get all chunks."""
        wanted: Wants = {}
        open_ = self._unasked & ~self._copies.none
        if not self.missing or (self._unasked and not open_):
            return wanted
        willing = self._in_order([source for source, known in self.sources.items() if known.may_be_asked(now)])
        if open_:
            willing = [source for source in willing if self.sources[source].has & open_]
        mirrors = [source for source in willing if self.sources[source].is_mirror]
        willing = [source for source in willing if source not in mirrors]
        while willing:
            willing = [source for source in willing if self._ask(source, wanted, now)]
        for mirror in mirrors:
            self._ask_for_range(mirror, wanted, now)
        return wanted

    def _in_order(self, sources: list[str]) -> list[str]:
        """Return sources in the order in which to ask them."""
        if self._random.random() < EXPLORE:
            self._random.shuffle(sources)
            return sources
        best_rate = max((self.sources[source].rate for source in sources), default=0.0) or 1.0

        def score(source: str) -> float:
            return self.sources[source].success * (self.sources[source].rate or best_rate)

        return self._reliability.in_order(sorted(sources, key=score, reverse=True))

    def _may_owe_more(self, source: str) -> bool:
        """Return False if this source, all sources, or all sources without merit owe us as much as they may."""
        known = self.sources[source]
        if len(known.debts) >= (MOST_IN_WINDOW if known.is_mirror else known.window) or self.owed_bytes >= MOST_OWED_BYTES:
            return False
        if self._reliability.is_proven(source):
            return True
        unproven = (each.owed_bytes for other, each in self.sources.items() if not self._reliability.is_proven(other))
        return sum(unproven) < MOST_UNPROVEN_BYTES

    def _ask(self, source: str, wanted: Wants, now: float) -> bool:
        """Ask a source for one more chunk; return False if there is none for it."""
        if not self._may_owe_more(source):
            return False
        if candidates := self.sources[source].has & self._unasked:
            chunk = any_of(self._copies.rarest(candidates), self._random)
        elif self._unasked or (again := self._to_ask_again(source, now)) is None:
            return False
        else:
            chunk = again
        self._owe(source, chunk, wanted, now)
        return True

    def _ask_for_range(self, mirror: str, wanted: Wants, now: float) -> None:
        """Ask a mirror that owes us nothing for consecutive chunks; in the endgame, for chunks that others owe us."""
        known = self.sources[mirror]
        if known.debts:
            return
        if not self._unasked:
            while self._ask(mirror, wanted, now):
                pass
            return
        most_bytes = min(known.rate * RANGE_S, MOST_RANGE_BYTES) if known.rate else FIRST_RANGE_BYTES
        most, last = self._unasked.bit_count(), None
        if any(other.has & self._unasked for other in self.sources.values() if not other.is_mirror):
            most = max(-(-most // 2), LEAST_SHARED)
        for chunk in chunks_in(known.has & self._unasked):
            is_next = last is None or (chunk == last + 1 and known.owed_bytes + self.blob.sizes[chunk] <= most_bytes)
            if not is_next or len(known.debts) >= most or not self._may_owe_more(mirror):
                return
            self._owe(mirror, last := chunk, wanted, now)

    def _to_ask_again(self, source: str, now: float) -> int | None:
        """Return a chunk that other sources owe us and that this source should be asked for as well; None if there is none.

        A chunk that is t seconds late is expected to take t seconds more.
        """
        known, ours, candidates = self.sources[source], self._reliability.rank(source), dict[int, float]()
        longer_than_s = AGAIN_TIMES * known.due_s(self.blob.sizes[0])
        for chunk, others in self._asked.items():
            if not known.has >> chunk & 1 or source in others:
                continue
            ranks = {other: self._reliability.rank(other) for other in others}
            equals = [other for other in others if ranks[other] >= ours]
            soonest_s = min((abs(self.sources[other].debts[chunk].due_at - now) for other in equals), default=inf)
            copies = len(equals) if ours > 0 else sum(rank <= 0 for rank in ranks.values())
            is_worth_it = self._overdue[chunk] or soonest_s > longer_than_s
            if is_worth_it and copies < min(COPIES << self._overdue[chunk], MOST_COPIES):
                candidates[chunk] = soonest_s
        return max(candidates, key=candidates.__getitem__, default=None)

    def _owe(self, source: str, chunk: int, wanted: Wants, now: float) -> None:
        """Note that a source is asked for a chunk, and add it to the requests."""
        self._asked.setdefault(chunk, []).append(source)
        self._asked_set |= 1 << chunk
        known, size = self.sources[source], self.blob.sizes[chunk]
        self.owed_bytes += size
        known.owe(chunk, size, now)
        known.late &= ~(1 << chunk)
        wanted.setdefault(source, []).append(chunk)
