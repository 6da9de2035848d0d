"""A log keeps its newest lines, whole and in order, and stays under its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.files.rotating_file import RotatingFile

NAMES = ["some.log", "some.1.log", "some.2.log"]


@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2], NAMES])
def test_the_files_rotate_and_stay_under_their_limit(tmp_path: Path, names: list[str]) -> None:
    file = RotatingFile(tmp_path / "made", names, max_bytes=1000)
    for number in range(500):
        file.append(f"line {number}\n".encode())
    paths = [tmp_path / "made" / name for name in reversed(names)]
    assert sorted((tmp_path / "made").iterdir()) == sorted(paths)
    assert all(path.stat().st_size <= 1000 for path in paths)
    kept = [int(line.split()[1]) for path in paths for line in path.read_text().splitlines()]
    assert kept == list(range(kept[0], 500)) and len(kept) > 90 * (len(names) - 1)


def test_one_piece_that_is_larger_than_the_limit_is_kept_whole(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path, NAMES[:2], max_bytes=10)
    file.append(b"x" * 50)
    file.append(b"y")
    assert (tmp_path / "some.log").read_bytes() == b"y" and (tmp_path / "some.1.log").read_bytes() == b"x" * 50


def test_a_folder_that_cannot_be_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        RotatingFile(tmp_path / "file", NAMES, max_bytes=10).append(b"x")
