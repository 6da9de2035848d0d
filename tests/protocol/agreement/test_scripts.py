"""Rounds told by scripts: what each peer does, line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.protocol.agreement.script import play

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_round_goes_as_its_script_says(path: Path) -> None:
    written = path.read_text()
    played = play(written)
    if os.environ.get("REWRITE"):
        path.write_text(played)
    else:
        assert played == written, "REWRITE=1 writes what happens now"
