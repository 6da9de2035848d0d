"""Mapped files: a process lets go of their memory, and their bytes stay."""

from __future__ import annotations

from pathlib import Path

from protocol.disk import Disk, in_turn, let_go, map_file, pieces_of

SIZE = 48 << 20
LITTLE = 4 << 20


def resident() -> int:
    """Bytes of files and of shared memory that count as this process's memory."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[0] in ("RssFile:", "RssShmem:"))


def test_bytes_written_to_a_mapped_file_stay_after_its_memory_is_let_go(tmp_path: Path) -> None:
    view = memoryview(Disk().allocate(tmp_path / "file", SIZE))
    before = resident()
    view[:] = bytes([7]) * SIZE
    assert resident() - before > SIZE - LITTLE
    let_go(view)
    assert resident() - before < LITTLE
    assert view == bytes([7]) * SIZE and (tmp_path / "file").read_bytes() == bytes([7]) * SIZE


def test_a_pass_over_a_mapped_file_leaves_nothing_resident(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    view = map_file(path)
    assert view is not None
    before, most = resident(), 0
    for piece in pieces_of(view, 1 << 20):
        assert piece[:256] == bytes(range(256)) and piece[-1] == 255 and sum(piece[::4096]) == 0
        most = max(most, resident() - before)
    assert most < 2 * LITTLE and resident() - before < LITTLE


def test_a_view_of_a_mapped_file_is_written_without_becoming_resident(tmp_path: Path) -> None:
    view = memoryview(Disk().allocate(tmp_path / "file", SIZE))
    view[-1] = 9
    let_go(view)
    before = resident()
    Disk().write_file(tmp_path / "copy", view)
    assert resident() - before < LITTLE
    assert (tmp_path / "copy").read_bytes() == bytes(SIZE - 1) + b"\x09"


def test_parts_are_handed_out_in_the_order_of_their_spans_and_the_last_piece_may_be_shorter() -> None:
    view = memoryview(b"0123456789")
    assert [*map(bytes, in_turn(view, [slice(4, 6), slice(0, 3)]))] == [b"45", b"012"]
    assert [*map(bytes, pieces_of(view, 4))] == [b"0123", b"4567", b"89"]
    assert [*pieces_of(memoryview(b""), 4)] == []
