"""Rows of corpora: equal from every layout of the folders, in the order of the mixture, with their documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from kernels.mixture import MixturePhase, RowMixture
from protocol.corpora.manifest import CorpusKind, read_manifest
from tests.hostile_files import link_out, pipe
from tests.trainer.data.corpora import Shape, Stream, cut_into_blocks, documents, opened, texts, write_corpus
from trainer.data.corpus import (
    BEGINS,
    COUNTS,
    BlockMissing,
    CorpusFolder,
    CorpusReading,
    DocumentLayout,
    MixedSource,
    StoredCorpus,
)

pytestmark = pytest.mark.usefixtures("tiny_blocks")

LENGTH = 50
"""Longer than a third of a block, so that rows cross blocks and shards."""


def two_sources(folder: Path, shape: Shape) -> Path:
    return write_corpus(folder, shape, {"web": texts(1, 3000, 500, shape.vocab), "code": texts(2, 1234, 300, shape.vocab)})


def reading(folder: CorpusFolder, layout: DocumentLayout = DocumentLayout.MASKED, **changes: Any) -> CorpusReading:
    sources = [MixedSource(name, folder, name) for name in changes.get("sources", ["web", "code"])]
    mixture = RowMixture([MixturePhase(0, changes.get("weights", (3, 1)))])
    return CorpusReading(sources, mixture, changes.get("length", LENGTH), layout)


@pytest.mark.parametrize(
    "shape", [Shape(), Shape(token_bytes=2, vocab=300, block_tokens=40), Shape(token_bytes=4, shard_blocks=1)]
)
def test_rows_are_the_streams_windows_as_the_protocol_places_them(shape: Shape, tmp_path: Path) -> None:
    folder = two_sources(tmp_path / "corpus", shape)
    manifest, read = read_manifest((folder / "corpus.msgpack").read_bytes()), reading(opened(folder))
    mixture = RowMixture([MixturePhase(0, (3, 1))])
    rows = read.rows(range(100))
    for row in range(100):
        source, index = mixture.place(row)
        split = manifest.sources[source].train
        stream = documents(1 + source, split.tokens, shape.vocab)
        places = manifest.tokens_of(split, index % manifest.rows(split, LENGTH), LENGTH)
        assert rows.tokens_bt[row].tolist() == stream[places.start : places.stop].tolist()
    assert rows.sources_b is not None and Counter(rows.sources_b.tolist()) == {0: 75, 1: 25}
    assert rows.counted == 100 * LENGTH and rows.tokens_bt.dtype.itemsize == shape.token_bytes


def test_batches_are_byte_identical_from_shards_blocks_and_mixtures_of_both(tmp_path: Path) -> None:
    shape = Shape()
    folder = two_sources(tmp_path / "corpus", shape)
    whole, even, odd = tmp_path / "whole", tmp_path / "even", tmp_path / "odd"
    cut_into_blocks(folder, shape, whole)
    cut_into_blocks(folder, shape, even, [0, 2])
    cut_into_blocks(folder, shape, odd, [1])
    wanted = reading(opened(folder))
    for caches in ([whole], [even, odd], [tmp_path / "nothing", odd, folder / "shards"]):
        found = reading(opened(folder, *caches))
        assert found.digest == wanted.digest
        for held_out in (False, True):
            one, other = (each.rows(range(13), held_out=held_out) for each in (wanted, found))
            assert one.tokens_bt.tobytes() == other.tokens_bt.tobytes()
            assert one.documents_bt is not None and other.documents_bt is not None
            assert one.documents_bt.tobytes() == other.documents_bt.tobytes()


def test_a_missing_block_is_named_and_read_once_it_is_there(tmp_path: Path) -> None:
    shape = Shape()
    folder = write_corpus(tmp_path / "corpus", shape, {"web": texts(1, 200, 100)})
    cache = cut_into_blocks(folder, shape, tmp_path / "cache", [0])
    read = reading(opened(folder, cache), sources=["web"], weights=(1,))
    shard = read_manifest((folder / "corpus.msgpack").read_bytes()).sources[0].train.shards[0]
    assert len(read.rows([0])) == 1
    with pytest.raises(BlockMissing) as caught:
        read.rows([1])
    assert (caught.value.shard, caught.value.number) == (shard.hex(), 1)
    data = (folder / "shards" / f"{shard.hex()}.shard").read_bytes()
    (cache / shard.hex() / "1").write_bytes(data[64:100])  # a file that is too short holds no block
    with pytest.raises(BlockMissing):
        read.rows([1])
    (cache / shard.hex() / "1").unlink()
    (cache / shard.hex() / "1").write_bytes(data[64:128])
    assert read.rows([1]).tokens_bt[0].tolist() == documents(1, 200)[50:101].tolist()


def cleared(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flipped(path: Path) -> None:
    """In the second block, or in its hash."""
    raw = bytearray(path.read_bytes())
    for place in (40, 104):
        raw[place : place + 1] = bytes(each ^ 4 for each in raw[place : place + 1])
    path.write_bytes(raw)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [cleared, flipped, a_folder, Path.unlink, pipe, link_out])
@pytest.mark.parametrize("damaged", ["block", "hashes"])
@pytest.mark.parametrize("place", ["cache", "folder"])
def test_a_damaged_block_is_missing_until_it_is_right(
    place: str, damaged: str, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    shape = Shape()
    folder = write_corpus(tmp_path / "corpus", shape, {"web": texts(1, 200, 100)})
    root = read_manifest((folder / "corpus.msgpack").read_bytes()).sources[0].train.shards[0].hex()
    shards = folder / "shards"
    data, leaves = (shards / f"{root}.shard").read_bytes(), (shards / f"{root}.leaves").read_bytes()
    cache = cut_into_blocks(folder, shape, tmp_path / "cache", [0, 1] if place == "cache" else [])
    files = {"block": cache / root / "1", "hashes": cache / root / "leaves"}
    if place == "folder":
        files["hashes"].unlink()
        files = {"block": shards / f"{root}.shard", "hashes": shards / f"{root}.leaves"}
    damage(files[damaged])
    read = reading(opened(folder, *([shards] if place == "folder" else []), cache), sources=["web"], weights=(1,))
    with pytest.raises(BlockMissing, match=root[:12]):
        read.rows([1])
    for name, content in (("leaves", leaves), ("0", data[:64]), ("1", data[64:128])):
        there = cache / root / name
        if there.is_dir():
            there.rmdir()
        there.unlink(missing_ok=True)
        there.write_bytes(content)
    assert read.rows([1]).tokens_bt[0].tolist() == documents(1, 200)[50:101].tolist(), "fetched blocks are read instead"


def test_a_source_that_ends_begins_again_and_windows_end_before(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path, Shape(), {"web": texts(1, 3000, 500), "code": texts(2, 501, 300)})
    read = reading(opened(folder))
    assert read.windows == 43, "the eleventh row of the ten of code would be the 44th"
    of_code = [row for row in range(200) if read.place(row)[0] == 1]
    rows = read.rows(of_code)
    assert rows.tokens_bt[:10].tobytes() == rows.tokens_bt[10:20].tobytes()


def test_held_out_windows_of_each_source_follow_each_other(tmp_path: Path) -> None:
    folder = write_corpus(
        tmp_path, Shape(), {"web": texts(1, 300, 101), "none": texts(3, 300, 20), "code": texts(2, 300, 130)}
    )
    read = reading(opened(folder), sources=["web", "none", "code"], weights=(1, 1, 1))
    assert [read.held_out_of(source) for source in range(3)] == [range(2), range(2, 2), range(2, 5)]
    rows = read.rows(range(5), held_out=True)
    assert rows.sources_b is not None and rows.sources_b.tolist() == [0, 0, 2, 2, 2]
    assert rows.tokens_bt[4].tolist() == documents(1002, 130)[79:].tolist()
    assert read.held_out_windows == 5 and read.names == ("web", "none", "code")


def test_joined_rows_are_one_document(tmp_path: Path) -> None:
    folder = opened(two_sources(tmp_path, Shape()))
    joined, masked = (reading(folder, layout) for layout in (DocumentLayout.JOINED, DocumentLayout.MASKED))
    assert joined.rows([0]).documents_bt is None
    assert masked.rows([0]).tokens_bt.tobytes() == joined.rows([0]).tokens_bt.tobytes()
    assert joined.digest != masked.digest


def rows_of(seed: int, rows: int, row_tokens: int) -> Stream:
    """Rows of documents of 4 tokens, of which the last two count, as does the first, wrongly."""
    tokens = np.random.default_rng(seed).integers(1, 256, rows * row_tokens)
    flags = np.tile(np.array([BEGINS | COUNTS, 0, COUNTS, COUNTS], np.uint8), rows * row_tokens // 4)
    return Stream(tokens, flags)


def test_chats_count_by_their_flags_and_never_the_first_token_of_a_document(tmp_path: Path) -> None:
    shape = Shape(CorpusKind.CHAT, row_tokens=8, block_tokens=16)
    folder = write_corpus(tmp_path, shape, {"web": (rows_of(1, 9, 8), rows_of(2, 3, 8))})
    read = reading(opened(folder), sources=["web"], weights=(1,), length=7)
    rows = read.rows([4, 0, 9])
    assert rows.counts_bt is not None and rows.documents_bt is not None
    assert rows.tokens_bt.tolist() == rows_of(1, 9, 8).tokens.reshape(9, 8)[[4, 0, 0]].tolist()
    assert rows.counts_bt.tolist() == 3 * [[False, True, True, False, False, True, True]]
    assert rows.documents_bt.tolist() == 3 * [[1, 1, 1, 1, 2, 2, 2]]
    assert rows.counted_b.tolist() == [4, 4, 4] and rows.pairs_b is None


def test_a_preference_is_two_rows_with_one_number(tmp_path: Path) -> None:
    shape = Shape(CorpusKind.PREFERENCE, row_tokens=8, block_tokens=32, token_bytes=2)
    folder = write_corpus(
        tmp_path, shape, {"a": (rows_of(1, 6, 8), rows_of(2, 2, 8)), "b": (rows_of(3, 4, 8), rows_of(4, 4, 8))}
    )
    read = reading(opened(folder), sources=["a", "b"], weights=(1, 1), length=7)
    rows = read.rows([0, 1, 2])
    assert rows.pairs_b is not None and rows.sources_b is not None
    assert rows.pairs_b.tolist() == [0, 0, 3, 3, 1, 1] and rows.sources_b.tolist() == [0, 0, 1, 1, 0, 0]
    assert rows.tokens_bt[2:4].tolist() == rows_of(3, 4, 8).tokens.reshape(4, 8)[:2].tolist()
    held_out = read.rows(range(3), held_out=True)
    assert held_out.pairs_b is not None and held_out.pairs_b.tolist() == [5, 5, 6, 6, 7, 7]
    assert len(rows[2:4]) == 2 and rows[2:4].pairs_b is not None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sources": ["web", "books"]}, "has no source 'books'; it has web, code"),
        ({"length": 2000}, "the source code has no row of data.sequence_length"),
        ({"length": 600}, "no source has a held-out row of data.sequence_length"),
    ],
)
def test_sources_that_cannot_be_read_are_refused_with_a_sentence(
    change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder = opened(two_sources(tmp_path, Shape()))
    with pytest.raises(ValueError, match=sentence):
        reading(folder, **change)


def test_chats_of_another_length_than_the_runs_are_refused(tmp_path: Path) -> None:
    shape = Shape(CorpusKind.CHAT, row_tokens=8, block_tokens=16)
    folder = write_corpus(tmp_path, shape, {"web": (rows_of(1, 9, 8), rows_of(2, 3, 8))})
    with pytest.raises(ValueError, match="rows of 7 predicted tokens, but data.sequence_length is 8"):
        reading(opened(folder), sources=["web"], weights=(1,), length=8)


def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path, Shape(vocab=100), {"web": texts(1, 300, 200)})
    with pytest.raises(
        ValueError, match="a token 2.., and its vocabulary has 100, .*check them with `peer data verify FOLDER`"
    ):
        reading(opened(folder), sources=["web"], weights=(1,)).rows([0, 1, 2])


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2}, {"kind": "pictures"}, {"token_bytes": 3}, {"block_tokens": 0}, {"row_tokens": 9}, {"sources": 5},
        {"shard_blocks": 1}, {"sources": [{"name": "web"}]},
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_add_up_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = write_corpus(tmp_path, Shape(), {"web": texts(1, 300, 200)}) / "corpus.msgpack"
    path.write_bytes(msgpack.packb(msgpack.unpackb(path.read_bytes()) | change))
    with pytest.raises(ValueError, match="does not describe a corpus that this version reads"):
        StoredCorpus.read(path)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02", b"x" * 100, b"\xc0", b"\xdf\xff\xff\xff\xff"])
def test_bytes_that_are_no_manifest_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "corpus.msgpack").write_bytes(data)
    for path, sentence in ((tmp_path / "corpus.msgpack", "does not describe a corpus"), (tmp_path / "gone", "cannot read")):
        with pytest.raises(ValueError, match=sentence):
            StoredCorpus.read(path)
