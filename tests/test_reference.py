"""The pages in docs/reference are those that docs/generate.py writes, and say something of everything."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GENERATOR: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate.py"))
PAGES: dict[Path, bytes] = GENERATOR["pages"]()


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_generated_file_is_current(path: Path) -> None:
    assert (ROOT / path).read_bytes() == PAGES[path], "`python docs/generate.py` writes it anew"


def test_every_command_setting_event_and_field_has_a_meaning() -> None:
    for path, content in PAGES.items():
        if path.suffix == ".md":
            empty = [row for row in content.decode().splitlines() if row.startswith("| `") and row.endswith("|  |")]
            assert not empty, path


def test_a_docstring_that_describes_no_field_is_found() -> None:
    class Told:
        """A class.  size: its bytes.  colour: of nothing."""

    with pytest.raises(ValueError, match="colour"):
        GENERATOR["described"](Told, ["size"])
    assert GENERATOR["described"](Told, ["size", "colour"]) == ("A class.", {"size": "its bytes", "colour": "of nothing"})
