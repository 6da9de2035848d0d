"""Leases of the run's rows: which member reads which rows, as a function of the record chain alone.

The rows of a run are numbered from 0 (`kernels.mixture`).  The **pool** of a round holds the rows that no record has
consumed: first the rows below the **cursor** that were leased before and returned, ascending, then all rows from the cursor
on.  **Slot** k of a round is the k-th stretch of the pool, each as long as a member can read in one round.

Every trainer knows its slot when the round begins:

* The **holders** are the contributors of the last record and the electors.  They have the first slots, in an order that is
  drawn by a **beacon**: the tip of the last round with a number divisible by `BEACON_ROUNDS`.  The order stays the same for
  some rounds, so a holder can fetch the rows of its next lease ahead of time.
* Each other peer has a spare slot, drawn by the tip and its key, so that it can train at once.  With H holders, these are
  the slots H, 2 H + 1, 3 H + 2 and so on.  Two peers may draw the same one; a record names one of them
  (`protocol.chain.records.verify_members`).

A contributor of a record consumes rows from the start of its slot: the rows of the inner steps that its READY states.  A
member whose parts are in at most half of the chunks consumes nothing.  The other rows that were leased return to the pool.

The blocks of some rows may be at no peer.  So that nobody waits for them, a holder may read elsewhere in its **column**: its
slot k, then the slots k + H + 1, k + 2 (H + 1) and so on.  Two columns have no row in common, and none with a spare slot.
Its READY states the **stretches** of the column that it read, in steps; without a statement, these are the first steps.  The
rows between the stretches return to the pool like all others, and are the first to be leased when somebody has their blocks.
So the rows consumed by the records of a chain are disjoint, and together with the returned
rows they are exactly the rows below the cursor.  A chain that is rolled back takes its leases with it.

In a run whose members train while a round is agreed on (`RunManifest.is_streamed`), a member needs the rows for its next
contribution before the record of the present round is there.  So a record consumes **early leases**: those that the holders
got when the round before it began.  They are taken out of the pool at that time, and rows that the record does not consume
return to it.  The holders get the first slots of the pool early, for the next record.  Behind them each holder
has a slot of its own, in case it has no early lease, as after its first record; the spare slots follow.

A run on the members' own data has no leases: each member reads the rows of its own data in their order (`own_rows`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from protocol.run.manifest import RunManifest
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId

RowRange = tuple[int, int]
"""Half-open range of run rows."""
Ranges = tuple[RowRange, ...]
"""Ranges of run rows, ascending, disjoint, and not adjacent."""

Stretches = tuple[tuple[int, int], ...]
"""Half-open ranges of the inner steps of a column, ascending, disjoint, and not adjacent."""

MAX_RETURNED = 1024
"""Maximum number of returned ranges; beyond it, the shortest ranges are skipped.  A trainer is told a lease in one frame."""
BEACON_ROUNDS = 16
"""Number of rounds for which the order of the holders stays the same."""
MAX_COLUMN = 4096
"""Number of slots of a column."""

# ------------------------------------------------------------------------------------------------------------------------
# The pool of rows that no record has consumed.


@dataclass(frozen=True)
class LeasePool:
    """Rows of a run that are still to be read.  Immutable.

    cursor: the rows from here on were never leased.  returned: rows below the cursor that were leased and not consumed; no
    range ends at the cursor.  skipped: number of rows that nobody will read, because more than `MAX_RETURNED` ranges were
    returned.
    """

    cursor: int = 0
    returned: Ranges = ()
    skipped: int = 0

    def __post_init__(self) -> None:
        bounds = [-1, *(bound for each in self.returned for bound in each), self.cursor]
        assert all(one < other for one, other in pairwise(bounds)), "returned ranges are disjoint, and below the cursor"
        assert len(self.returned) <= MAX_RETURNED and self.skipped >= 0

    def lease(self, slot: int, rows: int, limit: int | None = None) -> Ranges:
        """Return the rows of a slot.

        rows: number of rows of a slot.  limit: number of rows of the run, if it ends; the last slots are shorter or empty.
        """
        assert slot >= 0
        source = _RowQueue(self, limit)
        source.take(slot * rows)
        return source.take(rows)

    def after(self, consumed: Mapping[int, Ranges], rows: int, limit: int | None = None) -> LeasePool:
        """Return the pool after a record.

        consumed: consumed rows of each slot, counted from its first one.  rows, limit: as for `lease`.
        """
        source, returned, reached = _RowQueue(self, limit), list[RowRange](), 0
        for slot in sorted(slot for slot, read in consumed.items() if count_rows(read)):
            returned += source.take((slot - reached) * rows)
            returned += rows_except(source.take(rows), consumed[slot])
            reached = slot + 1
        return self._keeping([*union([*returned, *source.returned])], source.cursor)

    def returning(self, ranges: Iterable[RowRange]) -> LeasePool:
        """Return the pool with more rows, which lie below the cursor and were leased but not consumed."""
        return self._keeping([*union([*self.returned, *ranges])], self.cursor)

    def _keeping(self, left: list[RowRange], cursor: int) -> LeasePool:
        """Return the pool with the rows `left` and those from `cursor` on.  left: ascending, not adjacent."""
        cursor = left.pop()[0] if left and left[-1][1] == cursor else cursor
        kept = sorted(left, key=lambda each: (each[0] - each[1], each))[:MAX_RETURNED]
        return LeasePool(cursor, tuple(sorted(kept)), self.skipped + count_rows(left) - count_rows(kept))

    def count(self, slot: int, rows: int, limit: int | None = None) -> int:
        """Return the number of rows of a slot; arguments as for `lease`."""
        return rows if limit is None else min(rows, max(0, self._left(limit) - slot * rows))

    def slots(self, rows: int, limit: int | None) -> int | None:
        """Return the number of slots that have rows; None if the run is endless."""
        return None if limit is None else -(-self._left(limit) // rows)

    def _left(self, limit: int) -> int:
        return count_rows(self.returned) + max(0, limit - self.cursor)

    def is_exhausted(self, limit: int | None) -> bool:
        """Return True if a run of `limit` rows has no row left."""
        return limit is not None and not self.returned and self.cursor >= limit


class _RowQueue:
    """The rows of a pool, taken from the front."""

    def __init__(self, pool: LeasePool, limit: int | None) -> None:
        self.returned, self.cursor, self._limit = deque(pool.returned), pool.cursor, limit

    def take(self, rows: int) -> Ranges:
        """Remove and return the next rows; fewer at the end of the run."""
        taken = list[RowRange]()
        while rows > 0 and self.returned:
            start, end = self.returned.popleft()
            middle = min(end, start + rows)
            taken.append((start, middle))
            rows -= middle - start
            if middle < end:
                self.returned.appendleft((middle, end))
        end = self.cursor + rows if self._limit is None else min(self.cursor + rows, self._limit)
        if rows > 0 and end > self.cursor:
            taken.append((self.cursor, end))
            self.cursor = end
        return tuple(taken)


def first_rows(ranges: Ranges, rows: int) -> Ranges:
    """Return the first rows of these ranges."""
    return rows_among(ranges, ((0, rows),))


def rows_among(ranges: Ranges, chosen: Ranges) -> Ranges:
    """Return the rows of `ranges` at the places in `chosen`, which are counted from the first row."""
    found, before = list[RowRange](), 0
    for start, end in ranges:
        size = end - start
        places = [(max(one, before), min(other, before + size)) for one, other in chosen]
        found += [(start + one - before, start + other - before) for one, other in places if one < other]
        before += size
    return tuple(found)


def rows_except(ranges: Ranges, chosen: Ranges) -> Ranges:
    """Return the rows of `ranges` that are not at the places in `chosen`, which are counted from the first row."""
    bounds = [0, *(bound for each in chosen for bound in each), max(count_rows(ranges), chosen[-1][1] if chosen else 0)]
    gaps = [(bounds[at], bounds[at + 1]) for at in range(0, len(bounds), 2)]
    return rows_among(ranges, tuple(gap for gap in gaps if gap[0] < gap[1]))


def union(ranges: Iterable[RowRange]) -> Ranges:
    """Return the rows in any of these ranges, which may overlap."""
    joined = list[RowRange]()
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            start, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((start, end))
    return tuple(joined)


_STRETCH = struct.Struct(">II")


def stretches_in(raw: bytes) -> Stretches:
    """Return the stretches that a READY states.  Raises `Malformed` unless they are ascending, and apart from each other."""
    if len(raw) % _STRETCH.size:
        raise Malformed("stretches with a part of one")
    stretches = tuple((start, end) for start, end in _STRETCH.iter_unpack(raw))
    bounds = [bound for each in stretches for bound in each]
    if any(one >= other for one, other in pairwise(bounds)):
        raise Malformed("stretches that are not ascending")
    return stretches


def stretches_from(stretches: Stretches) -> bytes:
    """Return stretches as a READY states them; empty if they are the first steps of the column."""
    if len(stretches) == 1 and not stretches[0][0]:
        return b""
    return b"".join(_STRETCH.pack(*each) for each in stretches)


def by_slot_of_column(stretches: Stretches, steps: int, step_rows: int) -> dict[int, Ranges]:
    """Return the rows of the stretches of a column, counted from the first row of each slot, by the slot's place in it.

    steps: inner steps of a slot.  step_rows: rows of an inner step.
    """
    found = dict[int, list[RowRange]]()
    for start, end in stretches:
        for place in range(start // steps, -(-end // steps)):
            one, other = max(start, place * steps), min(end, (place + 1) * steps)
            within = (one - place * steps) * step_rows, (other - place * steps) * step_rows
            found.setdefault(place, []).append(within)
    return {place: tuple(rows) for place, rows in found.items()}


def count_rows(ranges: Iterable[RowRange]) -> int:
    """Return the number of rows in these ranges."""
    return sum(end - start for start, end in ranges)


# ------------------------------------------------------------------------------------------------------------------------
# The slots of a round.


@dataclass(frozen=True)
class LeaseTerms:
    """Sizes of the leases that a manifest fixes.

    step_rows: rows of an inner step.  rows: rows of a slot, for all inner steps of a round.  spares: number of spare slots
    that peers other than the holders draw from.  limit: number of rows of the run, a multiple of `step_rows`; None if it is
    endless.
    """

    step_rows: int
    rows: int
    spares: int
    limit: int | None = None


def lease_terms(manifest: RunManifest) -> LeaseTerms:
    """Return the sizes of the leases of a run."""
    step_rows, limit = manifest.data.sequences_per_step, manifest.data_rows
    whole = None if limit is None else limit - limit % step_rows
    return LeaseTerms(step_rows, manifest.round_steps * step_rows, manifest.rounds.max_members, whole)


def own_rows(terms: LeaseTerms, round: int) -> Ranges:
    """Return the rows of its own data that a member reads in a round; after its last row comes its first one."""
    return ((round * terms.rows, (round + 1) * terms.rows),)


@dataclass(frozen=True)
class Leases:
    """State of the leases after some records.  Immutable.

    pool: rows that no record has consumed, without those of early leases.  beacon: the tip that the last round with a number
    divisible by `BEACON_ROUNDS` stands on.  early: early leases for the next record.
    """

    pool: LeasePool = LeasePool()
    beacon: Hash = Hash(bytes(32))
    early: tuple[tuple[PeerId, Ranges], ...] = ()

    def on(self, round: int, tip: Hash) -> Leases:
        """Return the state in the round on `tip`."""
        return self if round % BEACON_ROUNDS else replace(self, beacon=tip)

    def after(self, terms: LeaseTerms, consumed: Mapping[int, Ranges]) -> Leases:
        """Return the state after one more record.  consumed: as for `LeasePool.after`."""
        return replace(self, pool=self.pool.after(consumed, terms.rows, terms.limit))

    def streamed_after(
        self, terms: LeaseTerms, consumed: Mapping[int, Ranges], done: Mapping[PeerId, Ranges], holders: Sequence[PeerId]
    ) -> Leases:
        """Return the state after one more record of a streamed run.

        consumed: consumed rows of each slot that is not an early lease, as for `LeasePool.after`.  done: consumed rows of
        the early leases, counted from their first ones.  holders: peers that get the first slots as early leases for the
        record after this one, in the order of the slots.
        """
        early = tuple((peer, self.pool.lease(slot, terms.rows, terms.limit)) for slot, peer in enumerate(holders))
        taken: dict[int, Ranges] = dict.fromkeys(range(len(holders)), ((0, terms.rows),))
        left = [each for peer, rows in self.early for each in rows_except(rows, done.get(peer, ()))]
        pool = self.pool.after({**consumed, **taken}, terms.rows, terms.limit).returning(left)
        return replace(self, pool=pool, early=early)

    def is_exhausted(self, limit: int | None) -> bool:
        """Return True if a run of `limit` rows has no row left that is not consumed."""
        return self.pool.is_exhausted(limit) and not any(rows for _, rows in self.early)


def holder_slots(beacon: Hash, holders: Iterable[PeerId]) -> dict[PeerId, int]:
    """Return the slots of the holders, in the order that the beacon draws."""
    ranked = sorted(set(holders), key=lambda peer: hash_bytes("lease", beacon + peer.encode()))
    return {peer: slot for slot, peer in enumerate(ranked)}


@lru_cache(maxsize=4096)
def spare_slot(tip: Hash, peer: PeerId, holders: int, spares: int) -> int:
    """Return the slot of a peer that is not a holder.  holders: number of the holders.  spares: number of spare slots."""
    draw = hash_bytes("spare lease", tip + peer.encode())
    return holders + int.from_bytes(draw[:8], "big") % spares * (holders + 1)
