"""What editors put into TOML files: taken off, or named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.settings.file import gather
from protocol.run.run_file import load_run_file
from protocol.run.toml_text import decode_toml, parse_toml
from protocol.wire.identity import Identity

ME = Identity.from_seed(bytes(32)).peer_id
MISTAKES = {
    "name = “mine”": "line 1 has typographic quotation marks (“ ”)",
    "name = 'a'\nabout = “mine”\n": "line 2 has typographic quotation marks (“ ”)",
    'name = "mine”\nother = 1\n': "line 1 has typographic quotation marks (”)",
    "name = ‘mine’": "line 1 has typographic quotation marks (‘ ’)",
    "name = „mine“": "line 1 has typographic quotation marks („ “)",
    "name = «mine»": "line 1 has typographic quotation marks (« »)",
    "“name” = 3": "line 1 has typographic quotation marks (“ ”)",
    "[“model”]\ndim = 8": "line 1 has typographic quotation marks (“ ”)",
    "name\u00a0= 3": "line 1 has a character that cannot be seen (U+00A0)",
    "name = \u200b3": "line 1 has a character that cannot be seen (U+200B)",
    "a = 1\n\ufeffb = 2": "line 2 has a character that cannot be seen (U+FEFF)",
    "name = ": "Invalid value",
    "a = " + "[" * 5000: "nested too deeply",
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_what_was_slipped_in_is_named_with_its_line(text: str) -> None:
    with pytest.raises(ValueError) as told:
        parse_toml(text)
    assert str(told.value).startswith(MISTAKES[text])


def test_marks_inside_a_string_are_text() -> None:
    assert parse_toml('name = "the “best” run"') == {"name": "the “best” run"}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("name = 3".encode("utf-16"), "saved as UTF-16"),
        ("name = 3".encode("utf-16-le"), ""),
        (b"a = 1\nname = '\xe4'\n", "line 2 has a character that is not UTF-8"),
    ],
)
def test_other_encodings_are_named(raw: bytes, said: str) -> None:
    if said:
        with pytest.raises(ValueError, match=said):
            decode_toml(raw)
    else:
        with pytest.raises(ValueError):
            parse_toml(decode_toml(raw))


def test_a_byte_order_mark_is_no_part_of_a_run_file_or_of_peer_toml(tmp_path: Path) -> None:
    run, settings = tmp_path / "run.toml", tmp_path / "peer.toml"
    run.write_bytes(b'\xef\xbb\xbfname = "mine"\r\n')
    settings.write_bytes(b'\xef\xbb\xbfname = "attic"\r\n')
    assert load_run_file(run, ME).name == "mine"
    assert gather({}, {"PEER_CONFIG": str(settings)}).now.name == "attic"
