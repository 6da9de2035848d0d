"""Fetching of blocks: only what is read, from whoever has it, and whatever others do."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from protocol.blobs.blob import BlobReply, BlobRequest, ChunksReply, ChunksRequest, to_bitmap
from protocol.blobs.reliability import PROVEN
from protocol.corpora.copies import KeepRule
from protocol.corpora.fetcher import BlockOrigin, FetchPolicy
from protocol.corpora.manifest import Block
from protocol.corpora.store import space_of
from protocol.events.events import Dropped, TransferEnded, TransferProgress
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from tests.protocol.corpora import web
from tests.protocol.corpora.block_table import BlockTable, Reader, SmallDisk, block_table
from tests.protocol.corpora.corpora import a_corpus
from tests.protocol.corpora.web import Manner, Site, files_of

pytestmark = pytest.mark.usefixtures("virtual_time")

CORPUS = a_corpus((80_000, 40_000), block_tokens=4096, shard_blocks=8, held_out=5_000)
SIZE = 8192


def size_of(blocks: list[Block]) -> int:
    return sum(block.size for block in blocks)


def add_mirror(table: BlockTable, manner: Manner = web.honest) -> Site:
    """Another mirror; add it before the peers that use it."""
    number = len(table.urls)
    table.urls.append(f"http://mirror{number}.test")
    return table.web.add(f"mirror{number}.test", f"93.184.216.{number}", Site(files_of(table.corpus), manner))


@block_table(CORPUS)
async def test_peers_that_read_a_block_serve_it_when_nobody_else_can(table: BlockTable) -> None:
    seed, first, second = table.add(built=True), table.add(), table.add()
    blocks = CORPUS.blocks()
    await first.read(blocks[:6])
    await second.read(blocks[4:10])
    seed.crash()
    await trio.sleep(1)
    third = table.add()
    await third.read(blocks[2:9])
    assert third.arrived == size_of(blocks[2:9])
    assert first.swarm.up_bytes > 0 < second.swarm.up_bytes, "each of them alone has some of these"


@block_table(CORPUS)
async def test_a_block_that_left_the_disk_is_fetched_again_when_it_is_needed_or_missed(table: BlockTable) -> None:
    table.add(built=True)
    reader, blocks = table.add(), CORPUS.blocks()
    await reader.read(blocks[:4])
    reader.cache.path(blocks[1]).unlink()
    await reader.read(blocks[6:8])
    reader.fetcher.need(blocks[:4])
    await trio.sleep(5)
    assert reader.store.read(blocks[1]) == CORPUS.bytes_of(blocks[1])
    reader.cache.path(blocks[2]).unlink()
    reader.fetcher.recheck(blocks[2])
    await trio.sleep(5)
    assert reader.store.read(blocks[2]) == CORPUS.bytes_of(blocks[2])
    reader.cache.path(blocks[3]).write_bytes(bytes(blocks[3].size))
    reader.fetcher.recheck(blocks[3])
    await trio.sleep(5)
    assert reader.cache.path(blocks[3]).read_bytes() == CORPUS.bytes_of(blocks[3]), "a damaged one is as good as gone"


@block_table(tokens=(1_000_000,), block_tokens=32_768, shard_blocks=64)
async def test_blocks_needed_now_come_before_those_needed_next(table: BlockTable) -> None:
    corpus = table.corpus
    table.add(built=True)
    reader, blocks = table.add(), corpus.blocks()
    reader.fetcher.need(blocks[20:24], blocks[:20])
    await reader.fetcher.until_here(blocks[20:24])
    late = trio.current_time()
    assert set(reader.cache.blocks()) == set(blocks[20:24]) and late < 2.0
    await reader.fetcher.until_here(blocks[:24])
    assert reader.arrived == size_of(blocks[:24])


@block_table(CORPUS)
async def test_leased_blocks_stay_and_prefetching_gives_way_to_the_cap(table: BlockTable) -> None:
    table.add(built=True)
    blocks = CORPUS.blocks()
    reader = table.add(cap_bytes=6 * space_of(blocks[0]))
    reader.fetcher.need(blocks[:4], blocks[4:12])
    await trio.sleep(20)
    assert set(reader.cache.blocks()) == set(blocks[:6]) and not reader.warnings()
    reader.fetcher.need(blocks[4:8], blocks[8:12])
    await trio.sleep(20)
    assert set(reader.cache.blocks()) == set(blocks[4:10])
    reader.fetcher.need(blocks[:8])
    await reader.fetcher.until_here(blocks[:8])
    (warning,) = reader.warnings()
    assert "more than" in warning


# -- reports ----------------------------------------------------------------------------------------------------------


@block_table(tokens=(1_200_000,), block_tokens=1 << 19, shard_blocks=4)
async def test_a_missing_block_is_named_with_the_peer_that_should_send_it(table: BlockTable) -> None:
    corpus = table.corpus
    table.add(built=True)
    reader = table.add(policy=FetchPolicy(name=lambda peer: "ada"))
    blocks = corpus.blocks()
    reader.fetcher.need(blocks)
    await reader.fetcher.until_here(blocks[:1])
    told = await reader.fetcher.waiting_for()
    assert told == "waiting for block 1 of source0, from ada (56 % of this round's blocks are here)"
    (progress,) = reader.swarm.transfers()
    assert (progress.what, progress.total, progress.size_bytes) == ("blocks", 3, size_of(blocks)) and progress.done
    await reader.fetcher.until_here(blocks)
    await trio.sleep(1)
    (ended,) = [event for event in reader.events if isinstance(event, TransferEnded)]
    assert ended.complete and ended.fetched_bytes == size_of(blocks)
    assert [event for event in reader.events if isinstance(event, TransferProgress)]


@block_table(CORPUS)
async def test_a_block_that_nobody_has_is_named_with_the_remedy_and_comes_once_somebody_has_it(table: BlockTable) -> None:
    reader, blocks = table.add(), CORPUS.blocks()
    table.add()
    reader.fetcher.need(blocks[2:5])
    await trio.sleep(300)
    assert await reader.fetcher.waiting_for() == (
        "waiting for block 2 of source0, which no peer and no mirror has given yet (0 % of this round's blocks are "
        "here): ask the organiser to start a peer that has the corpus"
    )
    table.add(built=True)
    start = trio.current_time()
    await reader.fetcher.until_here(blocks[2:5])
    assert trio.current_time() - start < 65


# -- mirrors ----------------------------------------------------------------------------------------------------------


@block_table(CORPUS)
async def test_without_peers_everything_comes_from_a_mirror(table: BlockTable) -> None:
    site = add_mirror(table)
    reader, blocks = table.add(), CORPUS.blocks()
    await reader.read(blocks[:12])
    assert dict(reader.fetcher.tally) == {BlockOrigin.MIRROR: size_of(blocks[:12]), BlockOrigin.DISK: 0}
    await trio.sleep(1)
    assert len(site.requests) == 4, "the leaves and one range of each shard"
    ended = [event for event in reader.events if isinstance(event, TransferEnded)]
    assert sum(event.fetched_bytes for event in ended) == size_of(blocks[:12])


@pytest.mark.slow
@pytest.mark.parametrize(
    "manner",
    [
        web.liar,
        web.stalling,
        web.endless,
        web.redirecting("http://x.test/"),
    ],
)
@pytest.mark.parametrize("beside_peers", [True, False])
@block_table(CORPUS)
async def test_mirrors_that_misbehave_cost_seconds_beside_peers_and_beside_another_mirror(
    table: BlockTable, manner: Manner, beside_peers: bool
) -> None:
    add_mirror(table, manner)
    table.web.names["x.test"] = ["10.0.0.7"]
    if beside_peers:
        table.add(built=True)
    else:
        add_mirror(table)
    reader = table.add()
    assert await reader.read(CORPUS.all_blocks()) < (10 if beside_peers else 40)
    assert beside_peers or reader.fetcher.tally[BlockOrigin.MIRROR] == size_of(CORPUS.all_blocks())


@block_table(CORPUS)
async def test_a_mirror_takes_over_what_peers_owe(table: BlockTable) -> None:
    add_mirror(table)
    table.add(Withholder, built=True)
    reader = table.add()
    assert await reader.read(CORPUS.blocks()[:4]) < 10
    assert reader.fetcher.tally[BlockOrigin.MIRROR] == 4 * SIZE
    await trio.sleep(1)
    assert not reader.swarm.transfers(), "nothing is asked of peers any more"


class Withholder(Reader):
    """Shows every block to everybody, and sends none.  asked: blocks that others wanted of it."""

    asked = 0

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind == "blob":
            shard = self.table.corpus.shards[Hash(decode_body(BlobRequest, data).blob)]
            chunks = to_bitmap((1 << len(shard)) - 1, len(shard))
            return BlobReply(chunks=chunks, more=True, apart=False, neighbours=[]).encode()
        if kind == "want":
            self.asked += len(decode_body(ChunksRequest, data).chunks)
            return await self.withhold(peer, kind, data)
        return await super().on_request(peer, kind, data)

    async def withhold(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        return ChunksReply(chunks=[], busy=[]).encode()


class SilentWithholder(Withholder):
    """Does not even answer."""

    async def withhold(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError


class GivingWithholder(Withholder):
    """Has all blocks; sends those that it is asked for first, and withholds all others."""

    async def withhold(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if self.asked <= 2:
            return await Reader.on_request(self, peer, kind, data)
        return await super().withhold(peer, kind, data)


@block_table(CORPUS)
async def test_who_sends_wrong_blocks_is_not_asked_again_and_the_blocks_come_from_another(table: BlockTable) -> None:
    liar, honest, reader = table.add(built=True), table.add(built=True), table.add()
    blocks = CORPUS.blocks()
    liar.store.read = lambda block: bytes(block.size)  # type: ignore[method-assign]
    await reader.read(blocks[:8])
    await trio.sleep(1)
    dropped = [event.peer for event in reader.events if isinstance(event, Dropped)]
    assert dropped and set(dropped) == {liar.id} and honest.swarm.up_bytes == 8 * SIZE


FULL = "blocks of the run's corpora do not fit on the disk; training continues with those here: "


@pytest.mark.parametrize("mirrored", [False, True])
@block_table(CORPUS)
async def test_a_full_disk_is_told_once_and_training_goes_on_with_the_blocks_here(table: BlockTable, mirrored: bool) -> None:
    if mirrored:
        add_mirror(table)
    else:
        table.add(built=True)
    disk, blocks = SmallDisk(table.folder / "1", 5 * SIZE), CORPUS.blocks()
    (table.folder / "1").mkdir()
    reader = table.add(disk=disk) if not mirrored else table.add(kind=second_reader, disk=disk)
    reader.fetcher.need(blocks[:8], blocks[8:12])
    await trio.sleep(200)
    [warning] = reader.warnings()
    assert warning.startswith(FULL) and warning.endswith("is full: make room there, or choose another --data-dir")
    assert reader.store.read(blocks[0]) == CORPUS.bytes_of(blocks[0]) and len(reader.cache.blocks()) == 4
    assert "waiting for disk space for blocks (50 % of this round's blocks are here)" in await reader.fetcher.waiting_for()
    await reader.read(blocks[8:12], within_s=30.0)
    assert {*reader.cache.blocks()} == {*blocks[8:12]}, "those of the round before leave"
    disk.room_bytes *= 4
    await reader.read(blocks[:8])
    assert len(reader.warnings()) == 1 and await reader.fetcher.waiting_for() == ""


def second_reader(table: BlockTable, number: int, *args: Any, **options: Any) -> Reader:
    """The reader in the folder "1", where the first one would be a peer that has the corpus."""
    return Reader(table, number + 1, *args, **options)


@pytest.mark.slow
@block_table(CORPUS)
async def test_a_seed_drives_no_block_out_of_a_full_disk_for_another(table: BlockTable) -> None:
    table.add(built=True)
    (table.folder / "1").mkdir()
    seed = table.add(policy=FetchPolicy(KeepRule(1.0)), disk=SmallDisk(table.folder / "1", 6 * SIZE))
    await trio.sleep(100)
    kept = seed.cache.blocks()
    await trio.sleep(2000)
    assert kept and seed.cache.blocks() == kept and len(seed.warnings()) == 1
    assert seed.arrived < 30 * SIZE, "it tries again less and less often"


# -- seeds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "least", "most"), [(1.0, 1.0, 1.0), (0.5, 0.3, 0.7)])
@block_table(CORPUS)
async def test_a_seed_fetches_its_share_ahead_and_then_serves_it(
    table: BlockTable, share: float, least: float, most: float
) -> None:
    origin, seed = table.add(built=True), table.add(policy=FetchPolicy(KeepRule(share)))
    await trio.sleep(200)
    kept, whole = seed.cache.blocks(), CORPUS.all_blocks()
    assert least <= len(kept) / len(whole) <= most and seed.arrived == size_of(kept)
    assert {*kept} == {block for block in whole if KeepRule(share).draws(seed.id, block)}
    origin.crash()
    reader = table.add(policy=FetchPolicy(is_seed=lambda peer: peer == seed.id))
    await reader.read(kept[:5])
    assert reader.fetcher.tally[BlockOrigin.SEED] == size_of(kept[:5])


# -- strangers that withhold ------------------------------------------------------------------------------------------


WITHHOLDERS = (SilentWithholder, GivingWithholder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WITHHOLDERS)
@block_table(tokens=(800_000,), block_tokens=4096, shard_blocks=1024)
async def test_strangers_that_withhold_blocks_delay_no_fetch_once_somebody_has_given_blocks(
    table: BlockTable, kind: type[Withholder]
) -> None:
    """Eight of them, and eight fresh keys in each round: a good name is earned, and a bad one is left behind."""
    corpus, each = table.corpus, 6
    table.has_member = lambda peer: False  # type: ignore[method-assign]
    _, reader = table.add(built=True), table.add()
    (shard,) = [shard for shard in corpus.shards.values() if not shard.is_held_out]
    rounds = [[shard.block(number) for number in range(at, at + each)] for at in range(0, 8 * each, each)]
    await trio.sleep(1)
    alone_s = [await reader.read(blocks) for blocks in rounds[:2]][1]
    for blocks in rounds[2:]:
        for _ in range(8):
            table.add(kind, built=True)
        await trio.sleep(1)
        assert await reader.read(blocks) <= 2 * alone_s


def add_withholder(table: BlockTable, kind: type[Withholder] = Withholder) -> Withholder:
    """One more of them, with all blocks."""
    added = table.add(kind, built=True)
    assert isinstance(added, Withholder)
    return added


@block_table(tokens=(800_000,), block_tokens=4096, shard_blocks=1024)
async def test_members_that_withhold_blocks_delay_two_fetches_at_most_and_then_others_come_first(table: BlockTable) -> None:
    corpus, each = table.corpus, 6
    seed, reader = table.add(built=True), table.add()
    liars = [add_withholder(table) for _ in range(8)]
    (shard,) = [shard for shard in corpus.shards.values() if not shard.is_held_out]
    await trio.sleep(1)
    waits = [await reader.read([shard.block(n) for n in range(at, at + each)]) for at in range(0, 5 * each, each)]
    assert max(waits[2:]) < 1.0 and sum(liar.asked for liar in liars) > 0, waits
    assert reader.swarm.reliability.rank(seed.id) == PROVEN
