"""Errors for people: sentences of limited length, whatever names stand in them."""

from __future__ import annotations

import pytest

from peer.errors import MAX_SENTENCE_CHARACTERS, MAX_SENTENCES, PeerError


@pytest.mark.parametrize("name", ["a" * 100_000, "/" * 100_000, "é" * 100_000, "a b" * 100_000, "'" * 100_000])
def test_a_long_name_leaves_the_beginning_and_the_remedy_of_a_sentence(name: str) -> None:
    text = PeerError(f"there is no {name}; name a file").text
    assert len(text) == MAX_SENTENCE_CHARACTERS
    assert text.startswith(f"there is no {name[:100]}") and " … " in text and text.endswith("; name a file")


@pytest.mark.parametrize("lines", [MAX_SENTENCES, MAX_SENTENCES + 1, 100_000])
def test_sentences_are_limited_in_number(lines: int) -> None:
    assert len(PeerError("mistake\n" * lines).text.splitlines()) == MAX_SENTENCES


def test_a_sentence_of_the_limit_is_told_as_it_is() -> None:
    text = "\n".join(["x" * MAX_SENTENCE_CHARACTERS] * 3)
    assert PeerError(text).text == str(PeerError(text)) == text
