"""Which chunk a source is asked for next.

Pure.  Policy:

* **Rarest first.**  Of the chunks that the source has and nobody was asked for, one that the fewest sources have: it may be
  gone with the next of them that leaves, and whoever gets it has something to give.
* **Ties by a seed.**  Among equally rare ones a random chunk, from a generator of the caller's: peers that begin together
  ask for different chunks, and serve them to each other.
* **Endgame.**  When every missing chunk was asked for, a source with nothing to do is asked for one that somebody else owes
  us, the one that will take longest, of at most `COPIES` sources at a time.  What comes second is not taken twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from protocol.content.blob import ChunkSet
from protocol.content.copies import Copies, any_of
from protocol.wire.identity import PeerId

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
