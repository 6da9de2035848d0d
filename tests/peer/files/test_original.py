"""A folder that was copied, or put back from a backup, is not the one that was marked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.files.original import MARK, SLACK_S, is_original, mark_original


def copied(folder: Path) -> Path:
    return shutil.copytree(folder, folder.with_name("copy"))


def altered(folder: Path) -> Path:
    (folder / MARK).write_text("?")
    return folder


def written_over(folder: Path) -> Path:
    """The same inode, with a content and times of earlier: its status was changed now, which nobody can hide."""
    path = folder / MARK
    marked = path.stat().st_mtime - 10 * SLACK_S
    path.write_text(path.read_text().replace(path.read_text().split()[-1], f"{marked}}}"))
    os.utime(path, (marked, marked))
    return folder


@pytest.mark.parametrize("change", [copied, altered, written_over])
def test_what_is_not_as_it_was_marked_is_no_original(tmp_path: Path, change: Callable[[Path], Path]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    assert is_original(folder), "nothing is known of a new one"
    mark_original(folder)
    assert is_original(folder)
    changed = change(folder)
    assert not is_original(changed)
    mark_original(changed)
    assert is_original(changed)


def test_a_folder_that_moves_within_its_disk_stays_the_original(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    mark_original(folder)
    folder.rename(tmp_path / "elsewhere")
    assert is_original(tmp_path / "elsewhere")
