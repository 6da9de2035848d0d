"""Limits on the places, bytes and checks that batches may cost, for all strangers together and for each peer.

Pure.  A peer with a clean history comes before others.  Among equals, the peer that has had less comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from protocol.rollouts.batch import Bytes, Decision, PooledBatch
from protocol.rollouts.standing import TrustScores
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

MOST_BATCHES = 4096
MOST_OF_ONE = 256
"""Most batches that are known of one peer."""
MOST_BYTES = 1 << 30
MOST_BYTES_OF_ONE = MOST_BYTES // 4
"""Most bytes of one peer's batches that are here or on their way; `MOST_BYTES` is for all peers."""
PLACES = 4
"""Batches fetched at a time: as many of peers with a clean history as of others."""
WITHHELD_COSTS = 8
"""Fetches that a withheld batch counts as: its maker waits until others had this many."""
PEERS_REMEMBERED = 4096


class PoolLimits:
    """Room for the batches of one pool.

    enough: most batches fetched ahead of their check, for peers with a clean history and again for others.
    """

    def __init__(self, standing: TrustScores, enough: int) -> None:
        self._standing, self._enough = standing, enough
        self._checks: Counter[PeerId] = Counter()
        self._fetches: Counter[PeerId] = Counter()
        self._most_held: tuple[bool, int] | None = None
        """Last rank in the table while all places are taken: nobody ranks behind it, for it only falls until a place is free
        again."""

    def make(self, newcomer: PooledBatch, others: Collection[PooledBatch]) -> PooledBatch | None:
        """Return the batch that has to make room for `newcomer`: itself if it finds none, None if nobody has to.

        Batches that were not accepted make room as well: otherwise keys that are set aside could fill the table.  Nobody
        makes room for its equal: otherwise each of a flood of batches would cost a look at all, and be handed on.
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

    def next_fetch(
        self, lacking: Iterable[PooledBatch], others: Iterable[PooledBatch], counts: Callable[[PooledBatch], bool]
    ) -> PooledBatch | None:
        """Return the batch in `lacking` to be fetched now; None if there is no place or no room for one.

        others: all batches.  counts: returns True if an undecided batch waits for a verdict that will come.  Peers with a
        clean history have places and room of their own.  They come first: a stranger may have stated the same bytes in a
        false size.  Among equals, the peer that was fetched from least comes first.
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
        """Note that the bytes of a batch of this peer could not be got."""
        self._note(self._fetches, author, WITHHELD_COSTS)

    def _is_known(self, batch: PooledBatch) -> bool:
        return bool(self._standing.clean(batch.author))

    def first(self, waiting: Sequence[PooledBatch], *, strangers_first: bool) -> PooledBatch:
        """Return the batch to be checked first.

        Makers without a clean history come first if `strangers_first`, and last otherwise.  Then the maker with the fewest
        checks comes first, and of its batches the oldest version.
        """
        return min(
            waiting,
            key=lambda batch: (
                bool(self._standing.clean(batch.author)) is strangers_first,
                self._checks[batch.author],
                batch.body.version,
            ),
        )

    def note_check(self, author: PeerId) -> None:
        """Note that a batch of this peer was checked."""
        self._note(self._checks, author)

    @staticmethod
    def _note(counts: Counter[PeerId], author: PeerId, times: int = 1) -> None:
        counts[author] += times
        if len(counts) > PEERS_REMEMBERED:
            counts.pop(next(iter(counts)))
