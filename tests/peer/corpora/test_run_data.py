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


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            {"sources": [{"weight": 1}, {"weight": 1.5}]},
            "weight in entry 2 of data.sources is 1.5; it must be a whole number",
        ),
        ({"sources": [{"name": "a b"}]}, r"name in entry 1 of data.sources is .?'?a b.*it must be 1 to 64 letters, digits"),
        ({"sources": [{"name": 5}]}, "name in entry 1 of data.sources is 5; it must be 1 to 64 letters"),
        (
            {"phases": [{"weights": {"zz": 1}}]},
            "weights in entry 1 of data.phases names 'zz', and the sources are a; correct",
        ),
        ({"phases": [{"weights": {"a": -5}}]}, "the weight of a in entry 1 of data.phases is -5; it must be a whole number"),
        ({"phases": [{"from_tokens": 5}]}, "weights in entry 1 of data.phases must be { SOURCE = WEIGHT }"),
        (
            {"sources": [{"name": "a b"}, {"weight": 1.5}]},
            "(?s)name in entry 1 of data.sources.*weight in entry 2 of data.sources",
        ),
    ],
)
def test_mistake_in_sources_and_phases_names_its_entry_and_field(section: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"text": f"text number {number}"} for number in range(50)])
    sources = [{"from": "a.jsonl", **each} for each in section.get("sources", [{}])]
    with pytest.raises(PeerError, match=said):
        built(tmp_path, {"sequence_length": 16, **section, "sources": sources})
