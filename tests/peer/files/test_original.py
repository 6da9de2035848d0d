"""A folder that was copied, or put back from a backup, is not the one that was marked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.files.atomic import MARK, is_original, mark_original


def copied(folder: Path) -> Path:
    return shutil.copytree(folder, folder.with_name("copy"))


def altered(folder: Path) -> Path:
    (folder / MARK).write_text("?")
    return folder


def put_back_in_place(folder: Path) -> Path:
    """The mark of an earlier vote is written over the newest one, as `cp` does."""
    path = folder / MARK
    mark = json.loads(path.read_text())
    path.write_text(json.dumps({**mark, "changed": mark["changed"] - 3600}))
    return folder


def put_back_by_renaming(folder: Path) -> Path:
    """The mark of an earlier vote takes the place of the newest one, with its times, as `rsync` does."""
    path, earlier = folder / MARK, folder / "earlier"
    shutil.copy2(path, earlier)
    mark_original(folder)
    earlier.replace(path)
    return folder


@pytest.mark.parametrize("change", [copied, altered, put_back_in_place, put_back_by_renaming])
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


def test_what_happens_to_a_folder_every_day_makes_no_copy_of_it(tmp_path: Path) -> None:
    """It moves within its disk, gets other permissions, is read by a backup, or linked by one."""
    folder = tmp_path / "run"
    folder.mkdir()
    mark_original(folder)
    folder.rename(tmp_path / "elsewhere")
    path = tmp_path / "elsewhere" / MARK
    path.chmod(0o640)
    path.read_bytes()
    os.link(path, tmp_path / "snapshot")
    assert is_original(tmp_path / "elsewhere")
