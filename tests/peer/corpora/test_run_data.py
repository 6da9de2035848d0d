"""Corpora that a run file names: remedies speak of its fields, not of the options of a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peer.corpora.options import TokenFormat
from peer.corpora.run_data import run_data
from peer.errors import PeerError
from tests.peer.corpora.makers import write_rows


def built(folder: Path, section: dict[str, Any]) -> None:
    run_data(section, folder, TokenFormat(), folder / "built")


def test_bad_rows_of_a_run_file_are_mended_by_its_fields(tmp_path: Path) -> None:
    for name in ("rows.jsonl", "rows.parquet"):
        write_rows(tmp_path / name, [{"body": f"text number {number}"} for number in range(50)])
        with pytest.raises(PeerError, match=r"it has no (field|column) text, .*; name one with text in \[data\]") as caught:
            built(tmp_path, {"from": name})
        assert "--" not in str(caught.value) and str(caught.value).endswith("name one with text in [data]")
        built(tmp_path, {"from": name, "text": "body", "sequence_length": 16})


def test_too_many_sources_of_a_run_file_are_told_by_their_field(tmp_path: Path) -> None:
    sources = [{"from": f"{number}.jsonl"} for number in range(17)]
    for source in sources:
        write_rows(tmp_path / source["from"], [{"text": "a text"}])
    with pytest.raises(PeerError, match=r"give several inputs one name: name in \[\[data.sources\]\]"):
        built(tmp_path, {"sources": sources})
    with pytest.raises(PeerError, match=r"\[data\] held_out_percent is 100; it must be"):
        built(tmp_path, {"from": "0.jsonl", "held_out_percent": 100})
