"""A small file is there whole or not at all, and never in place of one that must stay."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.files.atomic import remove_left_overs, write_atomically


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"two"):
        write_atomically(path, content)
        assert path.read_bytes() == content and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_must_stay_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    def refuse(*names: object) -> None:
        raise PermissionError("no links here")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    write_atomically(tmp_path / "file", b"one", replace=False)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", b"two", replace=False)
    assert (tmp_path / "file").read_bytes() == b"one" and os.listdir(tmp_path) == ["file"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "file", b"one")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one" and os.listdir(tmp_path) == ["file"]


def test_what_a_killed_writer_left_goes_and_what_another_one_writes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def look(descriptor: int) -> None:
        remove_left_overs(tmp_path)
        seen.append(os.listdir(tmp_path))

    (tmp_path / ".other.x.new").write_bytes(b"hal")
    (tmp_path / ".hidden").write_bytes(b"somebody's own")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", look)
        write_atomically(tmp_path / "file", b"one")
    being_written = [name for name in seen[0] if name.startswith(".file.") and name.endswith(".new")]
    assert sorted(seen[0]) == sorted([".hidden", *being_written]) and len(being_written) == 1
    assert sorted(os.listdir(tmp_path)) == [".hidden", "file"]


def test_a_file_taken_for_a_left_over_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Callable[..., tuple[int, str]] = tempfile.mkstemp
    made: list[str] = []

    def make_and_lose(*args: object, **names: object) -> tuple[int, str]:
        descriptor, path = make(*args, **names)
        made.append(path)
        if len(made) == 1:
            remove_left_overs(tmp_path)
        return descriptor, path

    monkeypatch.setattr(tempfile, "mkstemp", make_and_lose)
    write_atomically(tmp_path / "file", b"one")
    assert len(made) == 2 and os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_bytes() == b"one"
