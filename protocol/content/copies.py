"""How many copies of each chunk there are: finds the rarest ones of many thousands at once."""

from __future__ import annotations

import random

from protocol.content.blob import ChunkSet, chunks_in


class Copies:
    """Counts for `count` chunks, all of them 0 in the beginning."""

    def __init__(self, count: int) -> None:
        self._of = [0] * count
        self._with: dict[int, ChunkSet] = {0: (1 << count) - 1}
        """The chunks of which there are so many copies."""

    def add(self, chunks: ChunkSet, change: int = 1) -> None:
        """There is one more of each of these; one less with a `change` of -1."""
        for chunk in chunks_in(chunks):
            before = self._of[chunk]
            self._of[chunk] = after = before + change
            assert after >= 0
            self._move(1 << chunk, before, after)

    def _move(self, bit: ChunkSet, before: int, after: int) -> None:
        left = self._with[before] & ~bit
        if left:
            self._with[before] = left
        else:
            del self._with[before]
        self._with[after] = self._with.get(after, 0) | bit

    @property
    def none(self) -> ChunkSet:
        """Chunks of which there is no copy."""
        return self._with.get(0, 0)

    def rarest(self, among: ChunkSet) -> ChunkSet:
        """Those of a set of which there are the fewest copies; empty for the empty set."""
        return next((both for copies in sorted(self._with) if (both := self._with[copies] & among)), 0)


def any_of(chunks: ChunkSet, random_: random.Random) -> int:
    """A random one of a set that is not empty: the first at or above a random place."""
    above = chunks >> (start := random_.randrange(chunks.bit_length())) << start
    return (above & -above).bit_length() - 1
