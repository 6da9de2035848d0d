"""What batches of strangers may cost: places, bytes and checks, for all of them together and for each.

Pure.  A peer with a clean history comes before others, and among equals the one that has less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from protocol.rollouts.batch import Batch, Bytes
from protocol.rollouts.standing import Standing
from protocol.wire.identity import PeerId

MOST_BATCHES = 4096
MOST_OF_ONE = 256
"""Batches that are known of one peer."""
MOST_BYTES = 1 << 30
MOST_BYTES_OF_ONE = MOST_BYTES // 4
"""Of batches that are here or on their way."""
CHECKS_REMEMBERED = 4096


class Room:
    """Of one pool."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._checks: Counter[PeerId] = Counter()

    def make(self, newcomer: Batch, others: Collection[Batch]) -> Batch | None:
        """The batch that has to make room for `newcomer`: itself, when there is none for it; None when nobody has to."""
        held = Counter(batch.author for batch in others)
        if held[newcomer.author] >= MOST_OF_ONE:
            return newcomer
        if len(others) < MOST_BATCHES:
            return None
        held[newcomer.author] += 1
        undecided = [batch for batch in others if batch.decision is None]
        return max([*undecided, newcomer], key=lambda batch: (not self._standing.clean(batch.author), held[batch.author]))

    def has_bytes_for(self, batch: Batch, others: Iterable[Batch]) -> bool:
        """Whether the bytes of a batch may be fetched."""
        held: Counter[PeerId] = Counter()
        for other in others:
            if other.bytes_ in (Bytes.COMING, Bytes.HERE):
                held[other.author] += other.body.size
        size = batch.body.size
        return held.total() + size <= MOST_BYTES and held[batch.author] + size <= MOST_BYTES_OF_ONE

    def first(self, waiting: Sequence[Batch], *, strangers_first: bool) -> Batch:
        """Of those that wait for a check, the one whose maker had the fewest; the oldest version of that."""
        return min(
            waiting,
            key=lambda batch: (
                bool(self._standing.clean(batch.author)) is strangers_first,
                self._checks[batch.author],
                batch.body.version,
            ),
        )

    def note_check(self, author: PeerId) -> None:
        """A batch of this peer was checked."""
        self._checks[author] += 1
        if len(self._checks) > CHECKS_REMEMBERED:
            self._checks.pop(next(iter(self._checks)))
