"""Blocks of a joiner whose mirrors are all bad: they come from the organiser, no more of them than the joiner reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.block_sources import BAR, SwarmSize, measure
from tests.e2e.mirror_server import MIRRORS

pytestmark = pytest.mark.slow

BAD = [manner for manner, (_, words) in MIRRORS.items() if words]


def test_training_goes_on_beside_bad_mirrors_which_are_set_aside_with_a_sentence(tmp_path: Path) -> None:
    found = measure(tmp_path, BAD, SwarmSize(corpus=10_000_000, block=1 << 20, rounds=12, steps=4))
    for manner, sentence in zip(BAD, found.sentences, strict=True):
        assert sentence.startswith("the mirror 127.0.0.1:") and MIRRORS[manner][1] in sentence
        assert "it is asked again in" in sentence or "please tell the organiser" in sentence
    assert found.ratio <= BAR and found.downloaded_bytes < found.corpus_bytes / 2
    came = sum(count for origin, count in found.block_bytes.items() if origin != "disk")
    assert came >= found.downloaded_bytes > 0 == found.block_bytes["seed"]
