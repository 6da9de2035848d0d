"""Blobs on disk after they were written, restarted, damaged, used and removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import pytest

from protocol.blobs.blob import EvenSpans
from protocol.blobs.store import BlobStore, leaves_of
from protocol.disk import Disk, StoreFailed, StoreFull
from protocol.wire.hashes import Hash, chunk_hash, tree_root

CHUNK = 4096
DATA = Random(1).randbytes(40_000)
SPANS = EvenSpans(len(DATA), CHUNK)
LEAVES = leaves_of(memoryview(DATA), CHUNK)
ROOT = tree_root(LEAVES)


def opened(folder: Path) -> BlobStore:
    files = BlobStore(Disk(durable=False), folder / "files")
    files.load()
    return files


def complete(folder: Path) -> BlobStore:
    files = opened(folder)
    files.put(ROOT, len(DATA), [DATA[:100], DATA[100:]], LEAVES)
    return files


def test_a_complete_file_is_found_again(tmp_path: Path) -> None:
    complete(tmp_path)
    files = opened(tmp_path)
    assert files.sizes() == {ROOT: len(DATA)} and files.parts() == {} and files.leaves(ROOT) == LEAVES
    assert files.read(ROOT, SPANS[1], LEAVES[1]) == DATA[CHUNK : 2 * CHUNK]
    view = files.view(ROOT, len(DATA))
    assert view is not None and bytes(view) == DATA


def test_a_file_that_was_begun_goes_on_with_the_chunks_that_are_right(tmp_path: Path) -> None:
    files = opened(tmp_path)
    part = files.begin(ROOT, len(DATA))
    assert part.missing(LEAVES, SPANS) == [*range(len(LEAVES))]
    part.view[: 3 * CHUNK] = DATA[: 3 * CHUNK]
    part.view[0] ^= 1
    again = opened(tmp_path)
    assert again.parts() == {ROOT: len(DATA)} and not again.has(ROOT)
    assert again.begin(ROOT, len(DATA)).missing(LEAVES, SPANS) == [0, *range(3, len(LEAVES))]
    assert again.begin(ROOT, len(DATA) - 2).is_new, "one of another size is none of it"


def test_a_chunk_that_is_not_what_it_was_is_never_read_and_the_file_is_a_part_again(tmp_path: Path) -> None:
    files = complete(tmp_path)
    data = bytearray(DATA)
    data[CHUNK + 7] ^= 1
    files.path(ROOT).write_bytes(data)
    assert files.read(ROOT, SPANS[0], LEAVES[0]) is not None and files.has(ROOT)
    assert files.read(ROOT, SPANS[1], LEAVES[1]) is None and not files.has(ROOT)
    assert files.parts() == {ROOT: len(DATA)} and not files.has(ROOT)
    assert files.begin(ROOT, len(DATA)).missing(LEAVES, SPANS) == [1], "only the damaged one is missing"


@pytest.mark.parametrize("left", [0, 100, len(DATA) - 1])
def test_a_file_that_became_shorter_is_a_part_again(tmp_path: Path, left: int) -> None:
    files = complete(tmp_path)
    files.path(ROOT).write_bytes(DATA[:left])
    files.check()
    assert not files.has(ROOT) and files.view(ROOT, len(DATA)) is None


def test_a_lost_index_is_made_anew_and_a_false_one_is_not_believed(tmp_path: Path) -> None:
    files = complete(tmp_path)
    index = files.folder / f"{files.name(ROOT)}.leaves"
    for damage in (b"", b"x" * 64, index.read_bytes()[:-32]):
        index.write_bytes(damage)
        assert files.leaves(ROOT) is None
        assert files.index(ROOT, CHUNK) == LEAVES and files.leaves(ROOT) == LEAVES
    files.write_leaves(ROOT, LEAVES[:-1])
    assert files.index(ROOT, CHUNK) == LEAVES, "hashes of other chunks"
    index.unlink()
    files.path(ROOT).write_bytes(bytes(len(DATA)))
    assert files.index(ROOT, CHUNK) is None and not files.has(ROOT)


def test_statements_are_kept_by_number_and_a_damaged_one_counts_as_absent(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for number, raw in [(10, b"ten"), (2, b"two"), (2, b"other two"), (11, b"eleven")]:
        files.keep(number, raw)
        files.keep(number, raw)
    assert files.statements()[2:] == [b"ten", b"eleven"] and set(files.statements()[:2]) == {b"two", b"other two"}
    next(files.folder.glob("*10-*")).write_bytes(b"torn")
    files.keep_all([], least=3)
    assert opened(tmp_path).statements() == [b"eleven"]


def test_a_part_that_was_copied_without_its_blocks_gets_them_before_anything_is_written(tmp_path: Path) -> None:
    """To write where a full disk has no block ends the process."""
    files = opened(tmp_path)
    path = files.folder / f"part-{ROOT.hex()}.blob"
    with path.open("wb") as file:
        file.truncate(1 << 20)
    assert path.stat().st_blocks == 0
    files.begin(ROOT, 1 << 20)
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_a_blob_that_cannot_be_written_is_not_worked_on_for_ever(tmp_path: Path) -> None:
    files = opened(tmp_path)

    def pieces() -> Iterator[bytes]:
        yield DATA[:100]
        raise StoreFull("no room")

    with pytest.raises(StoreFull):
        files.put(ROOT, len(DATA), pieces(), LEAVES)
    files.drop(ROOT)
    assert [*files.folder.iterdir()] == []


def test_a_disk_that_became_read_only_is_a_failure_of_the_store(tmp_path: Path) -> None:
    class ReadOnly(Disk):
        def reserve(self, file: BinaryIO, size: int) -> None:
            raise OSError(errno.EROFS, "read-only")

        def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
            raise OSError(errno.EROFS, "read-only")

        def remove(self, path: Path) -> None:
            raise OSError(errno.EROFS, "read-only")

    files = BlobStore(ReadOnly(durable=False), tmp_path)
    with pytest.raises(StoreFailed):
        files.begin(ROOT, len(DATA))
    with pytest.raises(StoreFailed):
        files.write_leaves(ROOT, LEAVES)


@pytest.mark.parametrize(("number", "stays"), [(errno.EMFILE, True), (errno.ENOMEM, True), (errno.EIO, False)])
def test_a_shortage_of_open_files_or_memory_makes_no_right_blob_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, stays: bool
) -> None:
    files = complete(tmp_path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, "failed")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        assert files.read(ROOT, SPANS[0], LEAVES[0]) is None
    assert files.has(ROOT) is stays
    assert not stays or files.read(ROOT, SPANS[0], LEAVES[0]) == DATA[:CHUNK]


def test_a_damaged_file_does_not_take_the_place_of_a_part_that_is_being_fetched(tmp_path: Path) -> None:
    files = opened(tmp_path)
    part = files.begin(ROOT, len(DATA))
    (files.folder / "draft").write_bytes(DATA)
    files.adopt(files.folder / "draft", ROOT, LEAVES)
    files.path(ROOT).write_bytes(bytes(len(DATA)))
    assert files.read(ROOT, SPANS[0], LEAVES[0]) is None and not files.path(ROOT).exists()
    part.view[:] = DATA
    files.publish(part, LEAVES)
    view = files.view(ROOT, len(DATA))
    assert view is not None and bytes(view) == DATA


def test_a_damaged_file_does_not_take_the_place_of_a_part_that_is_being_mapped(tmp_path: Path) -> None:
    class Meanwhile(Disk):
        def reserve(self, file: BinaryIO, size: int) -> None:
            super().reserve(file, size)
            files.demote(ROOT)

    files = complete(tmp_path)
    files.path(ROOT).write_bytes(bytes(len(DATA)))
    files.disk = Meanwhile(durable=False)
    part = files.begin(ROOT, len(DATA))
    part.view[:] = DATA
    files.publish(part, LEAVES)
    assert files.path(ROOT).read_bytes() == DATA


def test_a_file_elsewhere_that_is_cut_short_while_it_is_checked_is_no_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping of the file would end this process by a signal."""
    files, source = opened(tmp_path), tmp_path / "model"

    def hash_and_cut(piece: bytes) -> Hash:
        os.truncate(source, CHUNK)
        return chunk_hash(piece)

    source.write_bytes(DATA)
    files.link(ROOT, source, LEAVES)
    monkeypatch.setattr("protocol.blobs.store.chunk_hash", hash_and_cut)
    assert not files.is_right(ROOT, len(DATA), CHUNK) and not files.has(ROOT)
    assert source.stat().st_size == CHUNK, "it stays where it is"
