"""Somebody trains their own model on their own data with two others: from a folder of files to an exported folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from protocol.events import events as ev
from tests.e2e.own_texts import VOCABULARY, write_inputs, write_tokenizer
from tests.e2e.swarm import Peer, Swarm

pytestmark = pytest.mark.slow

RUN = f"""
name = "own data"
total_rounds = 1000
[model]
vocab = {VOCABULARY}
dim = 64
layers = 2
[tokenizer]
from = "tokenizer.json"
ends = [0]
[data]
sequence_length = 64
sequences_per_step = 4
documents = "masked"
[[data.sources]]
name = "stories"
from = "texts/stories"
weight = 50
[[data.sources]]
name = "reports"
from = "texts/reports.jsonl.zst"
weight = 30
[[data.sources]]
name = "code"
from = "texts/code.parquet"
weight = 20
[samples]
prompts = ["the", "def "]
tokens = 16
[inner]
lr = 2e-3
warmup_steps = 20
[rounds]
inner_steps = 20
min_members = 3
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
ROUNDS = 8


def samples_at(peers: Sequence[Peer]) -> dict[int, set[str]]:
    """The samples of each state of which all of these peers have heard."""
    written = [{event.rounds: str(event.completions) for event in peer.heard(ev.SamplesWritten)} for peer in peers]
    return {rounds: {each[rounds] for each in written} for rounds in set.intersection(*map(set, written))}


def test_three_train_on_the_corpus_that_one_of_them_has(tmp_path: Path) -> None:
    write_inputs(tmp_path / "texts", 3_000_000)
    write_tokenizer(tmp_path / "tokenizer.json", 300_000)
    with Swarm.created(tmp_path, RUN) as swarm:
        organiser, *others = peers = [swarm.peer(name).start() for name in ("organiser", "friend", "cousin")]
        swarm.whole(*peers)
        swarm.until("some rounds", lambda: organiser.committed >= ROUNDS)
        losses = [event.loss for event in organiser.heard(ev.EvalLoss)]
        assert losses[-1] < losses[0]
        swarm.until("samples of three states at all peers", lambda: len(samples_at(peers)) >= 3)
        assert all(len(texts) == 1 for texts in samples_at(peers).values()), "all peers have the same"
        assert len(set.union(*samples_at(peers).values())) > 1, "texts change with the model"
        for peer in others:
            assert list((peer.folder / "runs").glob("*/blocks/*/[0-9]*")), "its blocks came from others"
        assert not list((organiser.folder / "runs").glob("*/blocks/*/[0-9]*")), "it reads its own corpus in place"
        swarm.equal(organiser.committed, *peers)
        told = json.loads(swarm.command(organiser.folder, "status", "--json"))
        assert told["why_idle"] in ("", "waiting for members", "exchanging", "committing")
