"""A small file is there whole or not at all, and never in place of one that must stay."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from peer.files.atomic import write_atomically


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
