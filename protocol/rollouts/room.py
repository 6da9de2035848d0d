"""What batches of strangers may cost: places, bytes and checks, for all of them together and for each.

Pure.  A peer with a clean history comes before others, and among equals the one that has less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from protocol.rollouts.batch import Batch, Bytes, Decision
from protocol.rollouts.standing import Standing
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

MOST_BATCHES = 4096
MOST_OF_ONE = 256
"""Batches that are known of one peer."""
MOST_BYTES = 1 << 30
MOST_BYTES_OF_ONE = MOST_BYTES // 4
"""Of batches that are here or on their way."""
PLACES = 4
"""Batches of peers with a clean history, and of others, that are fetched at a time."""
WITHHELD_COSTS = 8
"""Who withholds bytes waits for so many fetches from others."""
PEERS_REMEMBERED = 4096


class Room:
    """Of one pool.  enough: batches of peers with a clean history, and of others, that are fetched ahead of their check."""

    def __init__(self, standing: Standing, enough: int) -> None:
        self._standing, self._enough = standing, enough
        self._checks: Counter[PeerId] = Counter()
        self._fetches: Counter[PeerId] = Counter()
        self._most_held: tuple[bool, int] | None = None
        """While all places are taken: nobody ranks behind this, for it only falls until there is a place again."""

    def make(self, newcomer: Batch, others: Collection[Batch]) -> Batch | None:
        """The batch that has to make room for `newcomer`: itself, when there is none for it; None when nobody has to.

        Batches that were decided against make room, too: otherwise keys that are set aside could fill the table.
        Nobody makes room for its equal: else each of a flood of batches would cost a look at all, and be handed on.
        """
        author = newcomer.author
        own = 1 + sum(batch.author == author for batch in others)
        if own > MOST_OF_ONE:
            return newcomer
        if len(others) < MOST_BATCHES:
            self._most_held = None
            return None
        rank = (not self._standing.clean(author), own)
        if self._most_held is not None and rank >= self._most_held:
            return newcomer
        held = Counter(batch.author for batch in others)
        ranks = {each: (not self._standing.clean(each), held[each]) for each in held}
        going = [batch for batch in others if batch.decision is not Decision.ACCEPTED]
        last = max(going, key=lambda batch: ranks[batch.author], default=newcomer)
        self._most_held = ranks.get(last.author, rank)
        return last if self._most_held > rank else newcomer

    def next_fetch(self, lacking: Iterable[Batch], others: Iterable[Batch], counts: Callable[[Batch], bool]) -> Batch | None:
        """Which of the batches that lack their bytes is fetched now; None where there is no place, or no room, for one.

        counts: whether a batch that is undecided waits for something that will come.  Peers with a clean history have places
        and room of their own.  They come first: a stranger may have stated the same bytes in a false size.  Among equals,
        whoever was fetched from least comes first.
        """
        held: Counter[PeerId] = Counter()
        coming: set[Hash] = set()
        places, ahead, in_all = [PLACES, PLACES], [self._enough, self._enough], [MOST_BYTES // 2, MOST_BYTES // 2]
        for other in others:
            if other.bytes_ not in (Bytes.COMING, Bytes.HERE):
                continue
            known = self._is_known(other)
            held[other.author] += other.body.size
            in_all[known] -= other.body.size
            ahead[known] -= other.decision is None and other.own is None and counts(other)
            if other.bytes_ is Bytes.COMING:
                coming.add(other.root)
                places[known] -= 1
        fitting = [
            batch
            for batch in lacking
            if min(places[known := self._is_known(batch)], ahead[known]) > 0
            and batch.root not in coming
            and batch.body.size <= min(in_all[known], MOST_BYTES_OF_ONE - held[batch.author])
        ]
        if not fitting:
            return None
        first = min(fitting, key=lambda batch: (not self._is_known(batch), self._fetches[batch.author], batch.body.version))
        self._note(self._fetches, first.author)
        return first

    def note_withheld(self, author: PeerId) -> None:
        """The bytes of a batch of this peer were not to be had."""
        self._note(self._fetches, author, WITHHELD_COSTS)

    def _is_known(self, batch: Batch) -> bool:
        return bool(self._standing.clean(batch.author))

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
        self._note(self._checks, author)

    @staticmethod
    def _note(counts: Counter[PeerId], author: PeerId, times: int = 1) -> None:
        counts[author] += times
        if len(counts) > PEERS_REMEMBERED:
            counts.pop(next(iter(counts)))
