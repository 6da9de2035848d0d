"""Peers that read a corpus under fire: floods of questions, news, pushes and hashes, for known and unknown shards.

Nothing that a stranger says may raise, queue without bound, reach the disk, or keep the blocks from those that need them.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
import trio

from protocol.blobs.blob import (
    MAX_BLOB_CHUNKS,
    MAX_NEWS,
    MAX_WANTED,
    BlobReply,
    BlobRequest,
    ChunkHeader,
    ChunkNews,
    ChunksReply,
    ChunksRequest,
    LeavesRequest,
    to_bitmap,
)
from protocol.blobs.offers import MAX_GUESTS
from protocol.blobs.swarm import MAX_ASKERS
from protocol.blobs.uploads import MOST_QUEUE
from protocol.corpora.fetcher import BATCHES
from protocol.transport.interface import NetworkError, Refused
from protocol.wire.envelope import Body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply
from tests.fuzz.mutations import mutated
from tests.protocol.answering import ABOUT_BLOBS
from tests.protocol.corpora.block_table import BlockTable, Reader, on_block_table
from tests.protocol.corpora.corpora import a_corpus

pytestmark = pytest.mark.slow

SHOTS = 60
"""Against each peer, in each virtual second."""
CORPUS = a_corpus((60_000, 30_000), block_tokens=4096, shard_blocks=8)


class BlockStranger(Reader):
    """Says whatever there is to say about blocks; answers questions likewise.  refused: its questions that were."""

    refused = 0

    def _name(self, random: Random) -> Hash:
        return random.choice([*self.table.corpus.shards, Hash(random.randbytes(32))])

    def _said(self, random: Random) -> Body:
        """A question, or an answer, with chunks and counts of any number."""
        name, count = self._name(random), random.choice([1, 7, 8, 9, 64, MAX_BLOB_CHUNKS])
        chunks = [random.randrange(1 << random.randrange(1, 16)) for _ in range(random.randrange(1, MAX_WANTED))]
        bitmap = random.choice([b"", to_bitmap((1 << count) - 1, count), random.randbytes(count // 8 + 1)])
        bodies: list[Body] = [
            BlobRequest(blob=name, chunks=bitmap[: MAX_BLOB_CHUNKS // 8]),
            ChunkNews(blob=name, chunks=(chunks * 20)[:MAX_NEWS]),
            ChunksRequest(blob=name, chunks=chunks),
            LeavesRequest(blob=name),
            BlobReply(
                chunks=bitmap[: MAX_BLOB_CHUNKS // 8], more=True, apart=random.random() < 0.5, neighbours=[self.id] * 9
            ),
            ChunksReply(chunks=chunks[:5], busy=chunks[5:]),
            LeavesReply(leaves=[random.randbytes(32)] * random.choice([1, 8, 32_000])),
        ]
        return random.choice(bodies)

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        random = self.table.random
        said = self._said(random).encode()
        return said if random.random() < 0.7 else mutated(said, random)

    async def fire(self, target: Reader) -> None:
        random = self.table.random
        while True:
            await trio.sleep(1 / SHOTS)
            said = self._said(random).encode()
            question = said if random.random() < 0.7 else mutated(said, random)
            try:
                with trio.move_on_after(1.0):
                    await self.network.request(target.id, random.choice(sorted(ABOUT_BLOBS)), question, timeout_s=5.0)
            except Refused:
                self.refused += 1
            except NetworkError:
                pass

    async def push(self, target: Reader) -> None:
        """Push blocks that nobody asked for, and wrong bytes for those that somebody did."""
        random = self.table.random
        while True:
            await trio.sleep(0.05)
            header = ChunkHeader(blob=self._name(random), chunk=random.choice([0, 1, 7, 8, 32_000])).encode()
            with suppress(NetworkError):
                data = memoryview(bytes(random.choice([0, 1, 8192, 1 << 16])))
                await self.network.push(target.id, header, data, timeout_s=5.0)


def files_under(reader: Reader) -> set[str]:
    return {path.name for path in (reader.table.folder / str(reader.number)).rglob("*") if path.is_file()}


def test_floods_of_statements_about_blocks_leave_bounded_traces_and_the_needed_blocks() -> None:
    async def check(table: BlockTable) -> None:
        honest = [table.add(built=True), table.add(), table.add()]
        strangers = [table.add(BlockStranger) for _ in range(3)]
        for stranger in strangers:
            assert isinstance(stranger, BlockStranger)
            for target in honest:
                table.nursery.start_soon(stranger.fire, target)
                table.nursery.start_soon(stranger.push, target)
        await trio.sleep(2)
        blocks = CORPUS.all_blocks()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(honest[1].read, blocks[: 2 * len(blocks) // 3])
            nursery.start_soon(honest[2].read, blocks[len(blocks) // 3 :])
        await trio.sleep(5)
        for reader in honest:
            swarm = reader.swarm
            assert sum(map(len, swarm._uploads._queues.values())) <= 2 * MOST_QUEUE
            assert len(swarm._askers) <= MAX_ASKERS and not swarm._fetches and not reader.fetcher._batches
            assert all(len(offer.guests()) <= MAX_GUESTS for _, offer in swarm._offers())
            assert len(reader.fetcher._pauses) == len(reader.fetcher._leaves_locks) == 0
            assert files_under(reader) <= {"leaves", *map(str, range(8))}
        assert not honest[0].cache.blocks() and not files_under(honest[0])
        assert all(isinstance(stranger, BlockStranger) and stranger.refused > 50 for stranger in strangers)

    on_block_table(CORPUS, check)


def test_a_fetcher_whose_blocks_only_liars_claim_keeps_its_bounds() -> None:
    async def check(table: BlockTable) -> None:
        reader = table.add()
        for _ in range(4):
            table.add(BlockStranger)
        reader.fetcher.need(CORPUS.all_blocks())
        for _ in range(60):
            await trio.sleep(5)
            assert len(reader.fetcher._batches) <= BATCHES
            assert not reader.cache.blocks() and not files_under(reader)
        table.add(built=True)
        await reader.read(CORPUS.all_blocks(), within_s=300)

    on_block_table(CORPUS, check)
