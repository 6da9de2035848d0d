"""Runs with a tokenizer of their own and no data are built from a small text here: the text of the program takes seconds."""

from __future__ import annotations

import pytest

from peer.corpora.inputs import Document


@pytest.fixture(autouse=True)
def small_text(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [Document(str(number), f"{number} is a number, and so is {number + 1}.\n" * 40) for number in range(60)]
    monkeypatch.setattr("peer.corpora.builtin.read_text", lambda: documents)
