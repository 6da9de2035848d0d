"""Names of teams are short, can be read, and have one form."""

from __future__ import annotations

import pytest

from protocol.team import MAX_TEAM, team_named
from tests.hostile_texts import HOSTILE

GOOD = {
    "ascii": "Night_owls - 42",
    "one letter": "x",
    "the longest": "a" * MAX_TEAM,
    "accents": "Équipe Zürich",
    "vowel signs": "\u0939\u093f\u0928\u094d\u0926\u0940",
    "right to left": "\u05e9\u05dc\u05d5\u05dd",
    "two marks on a letter": "\u0e17\u0e35\u0e48",
}
BAD = {
    **{name: text for name, text in HOSTILE.items() if name != "right to left"},
    "nothing": "",
    "too long": "a" * (MAX_TEAM + 1),
    "only a space": " ",
    "a space at the beginning": " owls",
    "a space at the end": "owls ",
    "two spaces": "night  owls",
    "another space": "night\u00a0owls",
    "a line": "night\nowls",
    "a hyphen first": "-owls",
    "a mark first": "\u0301owls",
    "an emoji": "owls \U0001f989",
    "markup": "[bold]owls",
    "a filler that is a letter": "owls\u3164",
    "a filler of jamo": "\u1160",
    "a variation selector": "owls\ufe0f",
    "a grapheme joiner": "o\u034fwls",
    "a tag": "owls\U000e0041",
    "another variation selector": "owls\U000e0100",
    "pictures of digits": "\u2460",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_a_name_that_people_can_read_names_a_team(text: str) -> None:
    assert team_named(text) == text


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_any_other_text_names_no_team(text: str) -> None:
    assert team_named(text) == ""


def test_the_status_of_many_peers_checks_each_name_once() -> None:
    texts = ["\U00020000" * 20 + str(number) for number in range(600)]
    team_named.cache_clear()
    for _ in range(3):
        assert all(map(team_named, texts))
    assert team_named.cache_info().misses == len(texts)


def test_a_name_has_one_form_however_its_letters_are_written() -> None:
    assert team_named("E\u0301quipe") == team_named("\u00c9quipe") == "\u00c9quipe"
