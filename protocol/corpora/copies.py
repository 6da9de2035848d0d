"""Copies of a run's blocks: their counts, and the choice of the blocks that a peer keeps for others.

Nothing that a run needs may be at one peer only, so each block should be at `COPIES` peers.  There is no server that assigns
blocks.  Each peer draws the **keepers** of a block among the peers of the run that it knows: those with the `COPIES` highest
hashes of (peer, block), as in rendezvous hashing (Thaler and Ravishankar 1998).  If a peer comes or leaves, only its own
blocks get other keepers.

A peer keeps all blocks if they fit under its cache's cap, and otherwise the blocks of which it is a keeper.  It begins with
the blocks of which it is the first keeper.  So peers that fetch at the same time take different blocks from the peer that
has them, and then pass them to each other.  Among these blocks, the rarest come first.  A peer that has all its
own blocks also takes blocks that fewer than `COPIES` peers show, because their keepers may have no room, or be gone.

What other peers show is not checked: a liar that shows blocks that it lacks makes others copy these later, or not at all if
all keepers that a peer would stand in for are liars.  It changes nothing about the blocks of which a peer is a keeper.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

from protocol.blobs.blob import ChunkSet, chunks_in
from protocol.corpora.manifest import Block, Shards
from protocol.corpora.store import BlockStore, space_of
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import PeerId

COPIES = 3
"""Number of peers that should have each block."""
MAX_COUNTED = 1 << 18
"""Most blocks whose copies are counted: the first ones of the run's corpora.  The others have keepers all the same."""
AHEAD_BLOCKS = 256
"""Most blocks to fetch ahead of need that are remembered at a time."""
SCANNED_BLOCKS = 1024
"""Number of blocks examined at a time."""
AHEAD_AGAIN_S = 60.0
"""Seconds until a peer looks again for blocks that it should keep and lacks, unless copies were counted before."""


# ------------------------------------------------------------------------------------------------------------------------
# Counts.


class BlockNumbers:
    """Numbers of the blocks of all corpora, in the order of their manifests.

    total: number of blocks.  counted: number of blocks whose copies are counted.  size_bytes: size of all blocks.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards, self._firsts = [*shards.values()], list[int]()
        self.total = self.size_bytes = 0
        for shard in self._shards:
            self._firsts.append(self.total)
            self.total += len(shard)
            self.size_bytes += shard.spans.size
        self._first_of = dict(zip(shards, self._firsts, strict=True))
        self.counted = min(self.total, MAX_COUNTED)

    def block(self, number: int) -> Block:
        """Return a block by its number."""
        place = bisect_right(self._firsts, number) - 1
        return self._shards[place].block(number - self._firsts[place])

    def number(self, block: Block) -> int:
        """Return the number of a block."""
        return self._first_of[block.shard] + block.number

    def here(self, reader: BlockStore) -> ChunkSet:
        """Return the counted blocks that can be read.  Blocking."""
        found = 0
        for first, shard in zip(self._firsts, self._shards, strict=True):
            if first >= self.counted:
                break
            found |= reader.here(shard.root) << first
        return found & self.all

    @property
    def all(self) -> ChunkSet:
        """All counted blocks."""
        return (1 << self.counted) - 1

    def bytes_of(self, blocks: ChunkSet) -> int:
        """Return the size of these counted blocks; each counts as one of the mean size."""
        return round(blocks.bit_count() * self.size_bytes / max(1, self.total))


@dataclass(frozen=True)
class CopyCounts:
    """Counted blocks by their copies.  at_least: item k is the set of blocks with k + 1 copies or more, up to `COPIES`."""

    at_least: tuple[ChunkSet, ...] = (0,) * COPIES

    @classmethod
    def among(cls, holdings: Iterable[ChunkSet]) -> CopyCounts:
        """Return the counts if these are the blocks of some peers."""
        counts = [0] * COPIES
        for blocks in holdings:
            for place in reversed(range(1, COPIES)):
                counts[place] |= counts[place - 1] & blocks
            counts[0] |= blocks
        return cls(tuple(counts))

    def by_rarity(self, among: ChunkSet) -> Iterator[tuple[int, ChunkSet]]:
        """Yield the blocks of a set by their number of copies, ascending; `COPIES` stands for that many or more."""
        for copies in range(COPIES + 1):
            fewer = self.at_least[copies - 1] if copies else -1
            more = self.at_least[copies] if copies < COPIES else 0
            if found := among & fewer & ~more:
                yield copies, found


# ------------------------------------------------------------------------------------------------------------------------
# The choice of blocks to keep.


def place_among_keepers(me: PeerId, peers: Collection[PeerId], block: Block) -> int:
    """Return our place among the keepers of a block, from 0; it is below `COPIES` if we are one.  peers: the other peers."""

    def draw(peer: PeerId) -> bytes:
        return hash_bytes("keeper of a block", peer.encode() + block.shard + block.number.to_bytes(4, "big"))

    ours = draw(me)
    return sum(draw(peer) > ours for peer in peers)


@dataclass(frozen=True)
class OtherCopies:
    """Copies at other peers, as they show them.

    peers: the peers of the run that may be keepers, without us.  counts: counts of the blocks at the peers that answered.
    shown: the blocks that any peer shows; None if they are not known.  number: number of the count, from 1; 0 before the
    first count.
    """

    peers: tuple[PeerId, ...] = ()
    counts: CopyCounts = CopyCounts()
    shown: ChunkSet | None = None
    number: int = 0


@dataclass(frozen=True)
class KeepRule:
    """Rule for the blocks that a peer keeps for others.

    share: the share of all blocks to keep, drawn by a hash of our ID and the block; None to choose by the number of copies.
    others: returns the copies at other peers.  mirrored: True if the run has mirrors, which then hold the copies of data
    that are too large to be kept whole.
    """

    share: float | None = 0.0
    others: Callable[[], OtherCopies] = OtherCopies
    mirrored: bool = False

    def draws(self, me: PeerId, block: Block) -> bool:
        """Return True if a block belongs to our share."""
        drawn = hash_bytes("block to keep", me.encode() + block.shard + block.number.to_bytes(4, "big"))
        return int.from_bytes(drawn[:8], "big") < (self.share or 0.0) * 2**64


class BlocksToKeep:
    """Missing blocks that this peer should keep for others, a few at a time."""

    def __init__(self, store: BlockStore, rule: KeepRule, me: PeerId) -> None:
        self._store, self._rule, self._me = store, rule, me
        self._numbers = BlockNumbers(store.shards)
        self._fits = self._numbers.size_bytes <= store.cache.cap_bytes
        self._found: list[Block] = []
        self._source: Iterator[Block | None] = iter(())
        self._again_at, self._counted = -inf, -1
        self._are_marked = False

    def keeps(self, block: Block) -> bool:
        """Return True if a block should leave the cache after all others."""
        if self._rule.share is not None:
            return self._rule.draws(self._me, block)
        return self._place(block) < COPIES

    def _place(self, block: Block) -> int:
        return place_among_keepers(self._me, self._rule.others().peers, block)

    def look(self, now: float) -> None:
        """Look for further blocks, unless enough are known.  Blocking.  now: trio time."""
        is_idle = self._rule.share == 0 or (self._rule.share is None and self._rule.mirrored and not self._fits)
        if is_idle or len(self._found) >= AHEAD_BLOCKS:
            return
        looked_at = [*islice(self._source, SCANNED_BLOCKS)]
        if not looked_at and (now >= self._again_at or self._rule.others().number != self._counted):
            self._source, self._again_at = self._scan(), now + AHEAD_AGAIN_S
            self._counted = self._rule.others().number
            looked_at = [*islice(self._source, SCANNED_BLOCKS)]
        known = set(self._found)
        self._found += missing_of(self._store, [block for block in looked_at if block is not None and block not in known])

    def _scan(self) -> Iterator[Block | None]:
        """Yield the missing blocks that we should keep in the order of the module's docstring, and None for all others."""
        numbers, others, by_share = self._numbers, self._rule.others(), self._rule.share is not None
        if not self._are_marked and not self._fits:
            self._are_marked = True  # the blocks that were here before, so that the cache keeps them
            for block in self._store.cache.blocks():
                if self.keeps(block):
                    self._store.cache.keep(block)
                yield None
        missing = numbers.all & ~numbers.here(self._store) & (-1 if others.shown is None else others.shown)
        found = False
        for place in [None] if by_share else [*range(COPIES), None]:
            for copies, rare in others.counts.by_rarity(missing):
                for number in self._turned(rare):
                    block = numbers.block(number)
                    if by_share:
                        is_ours = self._rule.draws(self._me, block)
                    elif place is not None:
                        is_ours = self._place(block) == place
                        found = found or is_ours
                    else:
                        stands_in = others.number > 0 and copies < COPIES and not found
                        is_ours = (self._fits or stands_in) and self._place(block) >= COPIES
                    yield block if is_ours else None
        for number in range(numbers.counted, numbers.total):
            block = numbers.block(number)
            yield block if self._fits or self.keeps(block) else None

    def _turned(self, blocks: ChunkSet) -> Iterator[int]:
        """Yield the members of a set, from a place on that differs from peer to peer."""
        drawn = hash_bytes("first block to keep", self._me.encode())
        start = int.from_bytes(drawn[:8], "big") % max(1, self._numbers.counted)
        yield from (number + start for number in chunks_in(blocks >> start))
        yield from chunks_in(blocks & ((1 << start) - 1))

    def fitting(self, others: Sequence[Block]) -> list[Block]:
        """Return known blocks for which there is space beside these other ones, which are not here yet."""
        room = self._store.cache.cap_bytes - self._store.cache.lasting_bytes - sum(map(space_of, others))
        left, fitting = set(others), list[Block]()
        for block in self._found:
            room -= space_of(block)
            if room < 0:
                break
            if block not in left:
                fitting.append(block)
        return fitting

    def take(self, blocks: Sequence[Block]) -> None:
        """Forget blocks that are being fetched now; if they do not come, they are found again later."""
        taken = set(blocks)
        self._found = [block for block in self._found if block not in taken]


def missing_of(store: BlockStore, blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks that are not on this computer, in their order.  Blocking."""
    here = {shard: store.here(shard) for shard in {block.shard for block in blocks}}
    return [block for block in blocks if not here[block.shard] >> block.number & 1]
