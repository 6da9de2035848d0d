"""The cache of blocks: nothing torn or damaged is read as a block, pinned blocks stay, the cap holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.corpora.manifest import Block
from protocol.corpora.store import LEAVES, BlockCache, BlockStore, CorpusShelf
from protocol.disk import Disk, StoreFailed, StoreFull, size_of
from tests.hostile_files import link_out, pipe
from tests.protocol.corpora.block_table import SmallDisk
from tests.protocol.corpora.corpora import Corpus, a_corpus

SPACE = 4096


class FullDisk(Disk):
    """A disk without room for more bytes."""

    def write(self, file: object, data: object) -> None:
        raise OSError(28, "No space left on device")


@pytest.fixture
def corpus() -> Corpus:
    return a_corpus()


def a_cache(folder: Path, corpus: Corpus, cap_bytes: int = 1 << 20, disk: Disk | None = None) -> BlockCache:
    cache = BlockCache(disk or Disk(durable=False), folder, corpus.shards, cap_bytes)
    cache.load()
    return cache


def keep(cache: BlockCache, corpus: Corpus, blocks: list[Block]) -> None:
    for block in blocks:
        cache.write_leaves(block.shard, corpus.leaves[block.shard])
        cache.put(block, corpus.bytes_of(block))


def test_a_block_is_a_file_of_exactly_its_bytes_and_found_after_a_restart(tmp_path: Path, corpus: Corpus) -> None:
    blocks = corpus.blocks()
    cache = a_cache(tmp_path, corpus)
    keep(cache, corpus, [blocks[3], blocks[-1]])
    assert (tmp_path / blocks[3].shard.hex() / "3").read_bytes() == corpus.bytes_of(blocks[3])
    again = a_cache(tmp_path, corpus)
    assert set(again.blocks()) == {blocks[3], blocks[-1]} and again.used_bytes == 2 * SPACE
    assert again.read(blocks[3]) == corpus.bytes_of(blocks[3]) and again.read(blocks[4]) is None
    assert again.here(blocks[3].shard) == 1 << 3
    assert again.leaves(blocks[3].shard) == corpus.leaves[blocks[3].shard]


def test_incomplete_files_and_blocks_of_other_corpora_are_removed_at_the_start(tmp_path: Path, corpus: Corpus) -> None:
    first, other = corpus.blocks()[0], a_corpus(seed=2).blocks()[0]
    folder, foreign = tmp_path / first.shard.hex(), tmp_path / other.shard.hex()
    for path in (folder, foreign, tmp_path / "notes"):
        path.mkdir(parents=True)
    (folder / "0").write_bytes(corpus.bytes_of(first)[:-1])
    (folder / ".1.new").write_bytes(b"x" * 2048)
    (folder / "01").write_bytes(b"x" * 2048)
    (folder / "99").write_bytes(b"x" * 2048)
    (folder / LEAVES).write_bytes(b"".join(corpus.leaves[first.shard]))
    (folder / "a person's note").write_bytes(b"x")
    (foreign / "0").write_bytes(b"x" * 2048)
    (tmp_path / "notes" / "0").write_bytes(b"x")
    cache = a_cache(tmp_path, corpus)
    assert cache.blocks() == [] and cache.used_bytes == 0
    assert {path.name for path in folder.iterdir()} == {"a person's note", LEAVES}
    assert not foreign.exists() and (tmp_path / "notes" / "0").exists()


def test_folders_and_links_that_a_person_made_in_the_cache_do_no_harm(tmp_path: Path, corpus: Corpus) -> None:
    first, other = corpus.blocks()[0], a_corpus(seed=2).blocks()[0]
    folder = tmp_path / first.shard.hex()
    (folder / "0").mkdir(parents=True)
    (folder / "1").symlink_to("1")
    (folder / "2").symlink_to("/dev/zero")
    os.mkfifo(folder / "3")
    (folder / LEAVES).write_bytes(b"".join(corpus.leaves[first.shard]))
    (tmp_path / other.shard.hex()).write_bytes(b"x")
    (tmp_path / ("0" * 64)).symlink_to("nowhere")
    assert a_cache(tmp_path, corpus).blocks() == []
    assert {path.name for path in folder.iterdir()} == {"0", LEAVES}


def test_a_damaged_block_is_not_served_and_leaves_the_disk(tmp_path: Path, corpus: Corpus) -> None:
    block, cache = corpus.blocks()[2], a_cache(tmp_path, corpus)
    for damaged in (b"x" + corpus.bytes_of(block)[1:], corpus.bytes_of(block) + b"x", corpus.bytes_of(block)[:-1]):
        keep(cache, corpus, [block])
        cache.path(block).write_bytes(damaged)
        assert cache.read(block) is None and not cache.has(block) and not cache.path(block).exists()
        assert cache.used_bytes == 0 and cache.here(block.shard) == 0


def test_leaves_that_do_not_have_the_root_are_not_believed(tmp_path: Path, corpus: Corpus) -> None:
    block, cache = corpus.blocks()[0], a_cache(tmp_path, corpus)
    keep(cache, corpus, [block])
    (tmp_path / block.shard.hex() / LEAVES).write_bytes(bytes(32 * len(corpus.leaves[block.shard])))
    assert a_cache(tmp_path, corpus).leaves(block.shard) is None
    assert a_cache(tmp_path, corpus).read(block) is None


def test_the_block_that_was_not_needed_for_longest_leaves_and_pinned_ones_never(tmp_path: Path, corpus: Corpus) -> None:
    blocks, cache = corpus.blocks(), a_cache(tmp_path, corpus, cap_bytes=4 * SPACE)
    keep(cache, corpus, blocks[:4])
    cache.pin([blocks[0]])
    keep(cache, corpus, [blocks[4]])
    assert set(cache.blocks()) == {blocks[0], *blocks[2:5]} and not cache.path(blocks[1]).exists()
    cache.pin([blocks[2]])
    keep(cache, corpus, blocks[5:7])
    assert set(cache.blocks()) == {blocks[0], blocks[2], *blocks[5:7]}, "block 0 was needed later than 3 and 4"
    cache.pin(blocks[:20])
    keep(cache, corpus, blocks[:6])
    assert set(blocks[:6]) <= set(cache.blocks()), "pinned blocks stay beyond the cap"


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path, corpus: Corpus) -> None:
    block, cache = corpus.blocks()[0], a_cache(tmp_path, corpus, disk=FullDisk(durable=False))
    with pytest.raises(StoreFull, match="is full"):
        cache.put(block, corpus.bytes_of(block))
    assert not cache.has(block) and not [*cache.path(block).parent.iterdir()]
    assert issubclass(StoreFull, StoreFailed)


def test_blocks_that_are_not_needed_leave_a_full_disk_for_other_files(tmp_path: Path, corpus: Corpus) -> None:
    disk, blocks = SmallDisk(tmp_path, 13_000), corpus.blocks()
    cache = a_cache(tmp_path / "blocks", corpus, disk=disk)
    keep(cache, corpus, blocks[:5])
    cache.pin(blocks[:1])
    disk.write_file(tmp_path / "checkpoint", bytes(4096))
    assert blocks[0] in cache.blocks() and len(cache.blocks()) < 5 and size_of(tmp_path / "checkpoint") == 4096
    with pytest.raises(StoreFull, match="is full: make room there"):
        disk.write_file(tmp_path / "another", bytes(13_000))
    assert cache.blocks() == blocks[:1] and size_of(tmp_path / "checkpoint") == 4096
    cache.pin(())
    with pytest.raises(StoreFull):
        disk.write_file(tmp_path / "another", bytes(13_000))
    assert cache.blocks() == []


# -- corpora that a person built --------------------------------------------------------------------------------------


def test_whole_shards_are_read_in_place_and_never_changed(tmp_path: Path, corpus: Corpus) -> None:
    corpus.write(tmp_path / "built")
    before = {path: path.read_bytes() for path in (tmp_path / "built").rglob("*") if path.is_file()}
    cache = a_cache(tmp_path / "blocks", corpus)
    store = BlockStore(cache, [CorpusShelf(tmp_path / "built", corpus.shards)], corpus.shards)
    assert all(store.read(block) == corpus.bytes_of(block) for block in corpus.all_blocks())
    assert all(store.find(root) is not None for root in corpus.shards) and not cache.blocks()
    assert before == {path: path.read_bytes() for path in (tmp_path / "built").rglob("*") if path.is_file()}


def test_a_damaged_block_of_a_built_corpus_is_missing_until_the_cache_has_it(tmp_path: Path, corpus: Corpus) -> None:
    corpus.write(tmp_path / "built")
    block, other = corpus.blocks()[1:3]
    path = tmp_path / "built" / "shards" / f"{block.shard.hex()}.shard"
    data = bytearray(path.read_bytes())
    data[2048] ^= 1
    path.write_bytes(data)
    cache = a_cache(tmp_path / "blocks", corpus)
    store = BlockStore(cache, [CorpusShelf(tmp_path / "built", corpus.shards)], corpus.shards)
    assert store.read(block) is None and store.read(other) == corpus.bytes_of(other)
    held = store.find(block.shard)
    assert held is not None and held.here == 0xFF & ~(1 << 1) and path.read_bytes() == data
    keep(cache, corpus, [block])
    held = store.find(block.shard)
    assert held is not None and held.here == 0xFF and store.read(block) == held.read(1) == corpus.bytes_of(block)


def test_a_shard_of_another_size_or_without_its_leaves_is_not_here(tmp_path: Path, corpus: Corpus) -> None:
    corpus.write(tmp_path)
    first, second, third = [*corpus.shards][:3]
    with (tmp_path / "shards" / f"{first.hex()}.shard").open("ab") as file:
        file.write(b"x")
    (tmp_path / "shards" / f"{second.hex()}.leaves").unlink()
    (tmp_path / "shards" / f"{third.hex()}.leaves").write_bytes(bytes(32 * 8))
    shelf = CorpusShelf(tmp_path, corpus.shards)
    assert shelf.here(first) == shelf.here(second) == 0 and shelf.here(bytes(32)) == 0  # type: ignore[arg-type]
    assert shelf.read(corpus.shards[third].block(0)) is None and shelf.here(third) == 0


@pytest.mark.parametrize("replace_by", [pipe, link_out])
@pytest.mark.parametrize("replaced", ["shard", "leaves"])
def test_pipes_and_links_out_in_a_built_corpus_are_not_read_and_the_cache_has_its_blocks(
    replaced: str, replace_by: Callable[[Path], None], tmp_path: Path, corpus: Corpus
) -> None:
    corpus.write(tmp_path / "built")
    block = corpus.blocks()[1]
    replace_by(tmp_path / "built" / "shards" / f"{block.shard.hex()}.{replaced}")
    shelf, cache = CorpusShelf(tmp_path / "built", corpus.shards), a_cache(tmp_path / "blocks", corpus)
    store = BlockStore(cache, [shelf], corpus.shards)
    assert store.read(block) is None and shelf.here(block.shard) & 1 << block.number == 0
    keep(cache, corpus, [block])
    assert store.read(block) == corpus.bytes_of(block)


@pytest.mark.parametrize("replace_by", [pipe, link_out])
@pytest.mark.parametrize("replaced", ["block", "leaves"])
def test_pipes_and_links_out_in_the_cache_are_not_read(
    replaced: str, replace_by: Callable[[Path], None], tmp_path: Path, corpus: Corpus
) -> None:
    block = corpus.blocks()[2]
    keep(a_cache(tmp_path / "blocks", corpus), corpus, [block])
    cache = a_cache(tmp_path / "blocks", corpus)  # which has not read the hashes
    path = cache.path(block)
    replace_by(path if replaced == "block" else path.with_name(LEAVES))
    assert cache.read(block) is None and not cache.has(block)
