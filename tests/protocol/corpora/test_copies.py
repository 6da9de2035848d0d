"""Copies of blocks: every block gets three, whoever leaves, and what somebody needs goes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
import trio

from protocol.blobs.blob import ChunkSet
from protocol.corpora.copies import (
    COPIES,
    BlockNumbers,
    CopyCounts,
    KeepRule,
    OtherCopies,
    place_among_keepers,
)
from protocol.corpora.fetcher import BlockOrigin, FetchPolicy
from protocol.corpora.store import space_of
from protocol.wire.identity import PeerId
from tests.protocol.corpora.block_table import BlockTable, Reader, block_table
from tests.protocol.corpora.corpora import a_corpus

pytestmark = pytest.mark.usefixtures("virtual_time")

CORPUS = a_corpus((80_000, 40_000), block_tokens=4096, shard_blocks=8, held_out=5_000)
WHOLE = CORPUS.all_blocks()
SPACE = sum(map(space_of, WHOLE))
PEERS = [PeerId(f"peer{number}") for number in range(12)]


class Crowd:
    """Readers on a table that count each other's blocks, as a census does.  shown: blocks that a peer claims instead."""

    def __init__(self, table: BlockTable) -> None:
        self.table, self.live = table, list[Reader]()
        self.numbers = BlockNumbers(table.corpus.shards)
        self.shown: dict[PeerId, ChunkSet] = {}
        self.counted = 0

    def add(self, *, built: bool = False, cap_bytes: int = 1 << 30, share: float | None = None) -> Reader:
        place = len(self.table.readers)
        rule = KeepRule(share, lambda: self._others(place))
        reader = self.table.add(built=built, cap_bytes=cap_bytes, policy=FetchPolicy(rule))
        self.live.append(reader)
        return reader

    def _others(self, place: int) -> OtherCopies:
        others = [reader for reader in self.live if reader.number != place]
        blocks = [self.shown.get(reader.id, self.numbers.here(reader.store)) for reader in others]
        return OtherCopies(tuple(reader.id for reader in others), CopyCounts.among(blocks), None, self.counted)

    def crash(self, reader: Reader) -> None:
        self.live.remove(reader)
        reader.crash()

    def copies(self) -> Counter[int]:
        """Number of blocks by their number of copies."""
        here = [self.numbers.here(reader.store) for reader in self.live]
        return Counter(sum(blocks >> number & 1 for blocks in here) for number in range(self.numbers.total))

    async def until(self, is_so: Callable[[Counter[int]], bool], within_s: float = 2000.0) -> None:
        with trio.fail_after(within_s):
            while not is_so(self.copies()):
                self.counted += 1
                await trio.sleep(5)


def test_counts_are_those_of_each_block() -> None:
    random = Random(3)
    for peers in range(6):
        holdings = [random.getrandbits(40) for _ in range(peers)]
        counts, found = CopyCounts.among(holdings), dict[int, int]()
        for copies, blocks in counts.by_rarity((1 << 40) - 1):
            found |= {number: copies for number in range(40) if blocks >> number & 1}
        expected = {number: min(COPIES, sum(each >> number & 1 for each in holdings)) for number in range(40)}
        assert found == expected


def test_each_block_has_three_keepers_and_a_peer_that_leaves_changes_only_its_own() -> None:
    def keepers(peers: list[PeerId]) -> list[set[PeerId]]:
        return [{each for each in peers if place_among_keepers(each, {*peers} - {each}, block) < COPIES} for block in WHOLE]

    before, after = keepers(PEERS), keepers(PEERS[1:])
    assert all(len(each) == COPIES for each in before + after)
    for one, other in zip(before, after, strict=True):
        assert one == other if PEERS[0] not in one else one - {PEERS[0]} < other


@pytest.mark.slow
@block_table(tokens=(6_000_000,), block_tokens=32_768, shard_blocks=32)
async def test_small_data_come_to_every_peer_and_leave_the_founder_about_once(table: BlockTable) -> None:
    crowd = Crowd(table)
    founder, others = crowd.add(built=True), [crowd.add() for _ in range(4)]
    await crowd.until(lambda copies: copies[5] == crowd.numbers.total)
    size = crowd.numbers.size_bytes
    sent = founder.swarm.up_bytes / size
    print(f"the founder sent {sent:.2f} times the data to 4 peers")
    assert sent < 2.0
    assert all(size <= each.arrived < 1.2 * size and each.fetcher.tally[BlockOrigin.COPY] == size for each in others)
    crowd.crash(founder)
    newcomer = crowd.add()
    await crowd.until(lambda copies: copies[5] == crowd.numbers.total)
    assert newcomer.arrived < 1.2 * size


@pytest.mark.slow
@block_table(CORPUS)
async def test_data_beyond_the_caches_get_three_copies_and_get_them_back_after_deaths(table: BlockTable) -> None:
    crowd = Crowd(table)
    founder, others = crowd.add(built=True), [crowd.add(cap_bytes=3 * SPACE // 4) for _ in range(8)]
    await crowd.until(lambda copies: min(copies) >= COPIES)
    most = max(len(each.cache.blocks()) for each in others)
    assert most < 3 * len(WHOLE) // 4, "nobody fills its cache with what others keep"
    crowd.crash(founder)
    await crowd.until(lambda copies: min(copies) >= COPIES)
    crowd.crash(others[0])
    await crowd.until(lambda copies: min(copies) >= COPIES)
    crowd.crash(others[1])
    crowd.crash(others[2])
    assert min(crowd.copies()) >= 1
    await crowd.until(lambda copies: min(copies) >= COPIES)


@pytest.mark.slow
@block_table(CORPUS)
async def test_a_liar_that_shows_all_blocks_changes_nothing_for_keepers(table: BlockTable) -> None:
    crowd = Crowd(table)
    founder, liars = crowd.add(built=True), [crowd.add(share=0.0) for _ in range(3)]
    for liar in liars:
        crowd.shown[liar.id] = crowd.numbers.all
    for _ in range(9):
        crowd.add(cap_bytes=3 * SPACE // 4)
    await trio.sleep(200)
    crowd.crash(founder)
    lost = crowd.copies()[0]
    print(f"{lost} of {len(WHOLE)} blocks had none but liars as keepers")
    assert lost <= len(WHOLE) // 10
