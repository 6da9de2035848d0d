"""The name that a peer was once given."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.settings.file import gather
from peer.settings.kept_name import FILE_NAME, KEPT, keep_name, with_kept_name

NONE = {"PEER_CONFIG": ""}


def test_a_name_from_the_command_line_is_kept_for_later_starts(tmp_path: Path) -> None:
    keep_name(gather({"name": "attic"}, NONE), tmp_path)
    later = with_kept_name(gather({}, NONE), tmp_path)
    assert (later.preferences.name, later.settings["name"].source) == ("attic", KEPT)
    keep_name(later, tmp_path)
    assert with_kept_name(gather({}, NONE), tmp_path).preferences.name == "attic"


def test_whatever_else_says_a_name_goes_before_the_kept_one(tmp_path: Path) -> None:
    keep_name(gather({"name": "attic"}, NONE), tmp_path)
    assert with_kept_name(gather({"name": "cellar"}, NONE), tmp_path).preferences.name == "cellar"
    assert with_kept_name(gather({}, {**NONE, "PEER_NAME": "roof"}), tmp_path).preferences.name == "roof"


def test_an_empty_name_forgets_the_kept_one(tmp_path: Path) -> None:
    for name in ("attic", "", ""):
        keep_name(gather({"name": name}, NONE), tmp_path)
    assert with_kept_name(gather({}, NONE), tmp_path).preferences.name == ""


@pytest.mark.parametrize("kept", [b"\xff", b"a\x1b[2J", b"x" * 50, b""])
def test_a_damaged_file_keeps_no_name(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(kept)
    assert with_kept_name(gather({}, NONE), tmp_path).preferences.name == ""
