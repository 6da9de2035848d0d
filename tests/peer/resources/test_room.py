"""What a peer may still write, and what it is refused."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from peer.paths import BLOCKS
from peer.resources.room import MARGIN_BYTES, CappedDisk, DiskRoom, used_bytes
from protocol.corpora.store import BlockCache
from protocol.disk import StoreFull
from tests.protocol.corpora.corpora import a_corpus

MB = 10**6
GB = 10**9


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=size))


def test_what_lies_below_a_folder_is_counted_once_and_links_lead_nowhere(tmp_path: Path) -> None:
    write(tmp_path / "data" / "runs" / "a" / "state", 3 * MB)
    os.link(tmp_path / "data" / "runs" / "a" / "state", tmp_path / "data" / "same")
    write(tmp_path / "elsewhere", 5 * MB)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    assert 3 * MB <= used_bytes(tmp_path / "data") < 4 * MB
    assert used_bytes(tmp_path / "nothing") == 0


def test_a_run_needs_three_states_and_what_is_there_already_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, run = DiskRoom(tmp_path), tmp_path / "runs" / "a"
    free(monkeypatch, 30 * MB + MARGIN_BYTES)
    assert room.problem(run, 10 * MB) == ""
    assert "the run needs about 34.0 MB more on disk" in room.problem(run, 11 * MB)
    write(run / "checkpoint", 10 * MB)
    free(monkeypatch, 20 * MB + MARGIN_BYTES)
    assert room.problem(run, 10 * MB) == ""
    write(run / "another", 10 * MB)
    free(monkeypatch, 19 * MB)
    sentence = room.problem(run, 10 * MB)
    assert "19.0 MB free: make room there, or choose another folder with --data-dir" in sentence, (
        "two more have to fit in any case"
    )


def test_a_cap_below_what_is_free_is_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, run = DiskRoom(tmp_path, lambda: 25 * MB), tmp_path / "runs" / "a"
    free(monkeypatch, 100 * GB)
    write(tmp_path / "runs" / "b" / "checkpoint", 5 * MB)
    assert "max_disk (25.0 MB) leaves 20.0 MB" in room.problem(run, 10 * MB)
    assert "raise max_disk, or remove what is not needed" in room.problem(run, 10 * MB)
    assert room.problem(run, 5 * MB) == ""
    free(monkeypatch, 10 * MB)
    assert "10.0 MB free" in room.problem(run, 10 * MB)


def test_cached_blocks_count_as_free_and_leave_for_other_files(tmp_path: Path) -> None:
    run, corpus = tmp_path / "runs" / "a", a_corpus((300_000, 100_000), block_tokens=32_768)
    room = DiskRoom(tmp_path, lambda: 4 * MB)
    disk = CappedDisk(room, durable=False)
    run.mkdir(parents=True)
    cache = BlockCache(disk, run / BLOCKS, corpus.shards, 4 * MB)
    cache.load()
    for block in corpus.blocks():
        cache.write_leaves(block.shard, corpus.leaves[block.shard])
        cache.put(block, corpus.bytes_of(block))
    disk.write_file(tmp_path / "other run", os.urandom(3 * MB))
    assert cache.used_bytes > MB // 2 and room.left_bytes() < MB // 2
    assert "max_disk" in DiskRoom(tmp_path, lambda: 5 * MB).problem(tmp_path / "runs" / "b", MB // 2)
    assert DiskRoom(tmp_path, lambda: 5 * MB + MARGIN_BYTES).problem(run, MB // 4) == ""
    disk.write_file(run / "initial.bf16", os.urandom(MB // 4))
    disk.allocate(run / "checkpoint", MB // 2).close()
    assert used_bytes(tmp_path) <= 4 * MB and len(cache.blocks()) < len(corpus.blocks())
    cache.pin(corpus.blocks())
    with pytest.raises(StoreFull, match=r"above max_disk \(4\.0 MB\)"):
        for block in corpus.blocks():
            cache.put(block, corpus.bytes_of(block))
    assert used_bytes(tmp_path) <= 4 * MB


def test_nothing_is_written_above_the_cap_and_room_that_was_made_counts(tmp_path: Path) -> None:
    cap: list[int | None] = [4 * MB]
    disk = CappedDisk(DiskRoom(tmp_path, lambda: cap[0]), durable=False)
    disk.write_file(tmp_path / "first", bytes(os.urandom(2 * MB)))
    disk.allocate(tmp_path / "second", MB).close()
    for _ in range(2):
        with pytest.raises(StoreFull, match=r"above max_disk \(4\.0 MB\).*raise max_disk"):
            disk.write_file(tmp_path / "third", bytes(os.urandom(2 * MB)))
        with pytest.raises(StoreFull, match="above max_disk"):
            disk.allocate(tmp_path / "part", 2 * MB)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"], "nothing half-written stays"
    disk.remove(tmp_path / "first")
    disk.write_file(tmp_path / "third", bytes(os.urandom(2 * MB)))
    cap[0] = None
    disk.write_file(tmp_path / "fourth", bytes(os.urandom(2 * MB)))
    cap[0] = MB
    with pytest.raises(StoreFull):
        disk.write_file(tmp_path / "fifth", b"x")
