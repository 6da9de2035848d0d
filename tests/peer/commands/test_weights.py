"""`peer weights` for a person, and what it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peer.cli import main
from peer.commands.weights import describe_weights
from peer.control.requests import GIVEN
from peer.errors import ExitCode
from tests.protocol.peers import ANN

VERSION: dict[str, Any] = {
    "version": 3,
    "publisher": ANN.peer_id,
    "kind": "patch",
    "weights": "ab" * 32,
    "size_bytes": 2_000_000,
    "patch_base": 2,
    "patch_bytes": 20_000,
    "here": False,
    "patch_here": False,
    "refused": "",
}
COMING: dict[str, Any] = {
    "what": "patch",
    "number": 3,
    "blob": "cd" * 32,
    "done": 3,
    "total": 10,
    "size_bytes": 20_000,
    "chunks": "###.......",
    "down_bytes_per_s": 1000.0,
    "sources": 4,
    "left_s": 14.0,
}


def a_blob(what: str, number: int, size_bytes: int) -> dict[str, Any]:
    return {"what": what, "number": number, "blob": "ab" * 32, "size_bytes": size_bytes}


def test_versions_and_blobs_are_listed_with_what_is_on_its_way() -> None:
    first = {**VERSION, "version": 2, "kind": "anchor", "patch_bytes": None, "here": True}
    void = {**VERSION, "version": 1, "refused": "two statements were signed"}
    blobs = [a_blob("checkpoint", 40, 8000), *(a_blob("result", round, 1000) for round in (40, 41, 42))]
    lines = describe_weights(
        {
            "run": "ef" * 32,
            "newest": 2,
            "versions": [void, first, VERSION],
            "coming": [COMING, {**COMING, "what": "checkpoint", "number": 44, "sources": 1, "left_s": None}],
            "blobs": [*blobs, a_blob("weights", 2, 9)],
            "disk_bytes": 9,
            "folder": "/w",
        }
    )
    assert lines[1] == "here    version 2, 9 B in /w"
    assert lines[2] == "coming  version 3, patch: 3/10 chunks, 1.0 kB/s from 4 peers, 14 s to go"
    assert lines[3].strip() == "###......."
    assert lines[4] == "coming  checkpoint after 44 rounds: 3/10 chunks, 1.0 kB/s from 1 peer"
    assert lines[6] == "serves  1 checkpoint (after round 40; 8.0 kB)"
    assert lines[7] == "        3 results (of rounds 40 to 42; 3.0 kB)"
    assert [line.split()[0] for line in lines[9:]] == ["3", "2", "1"]
    assert lines[9].endswith("not here") and lines[10].endswith(" here") and lines[11].endswith("two statements were signed")


def test_without_a_peer_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["weights"], ["weights", "--json"], ["weights", "publish", str(tmp_path)]):
        assert main([*words, "--data-dir", str(tmp_path)]) == ExitCode.NOT_RUNNING
        assert "no peer is running" in capsys.readouterr().err


@pytest.mark.parametrize("anchors", ["0", "65", "x"])
def test_anchors_are_counted_from_one_to_sixty_four(anchors: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["weights", "publish", "x", "--anchor-every", anchors, "--data-dir", str(tmp_path)])


def test_only_a_file_that_the_command_made_ready_is_published() -> None:
    assert GIVEN.fullmatch(".given-12.new")
    for name in ("../.given-1.new", ".given-1.new/..", "x.safetensors", ".given-.new", ".given-1.new\n"):
        assert not GIVEN.fullmatch(name)
