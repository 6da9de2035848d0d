"""Chats, a tokenizer and weights in runs of real peers: the organiser has them, the others fetch and learn from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from protocol.events import events as ev
from protocol.formats.model import ModelConfig
from protocol.run.manifest import open_manifest
from tests.e2e.swarm import Peer, Swarm
from tests.trainer.made_tokenizer import ENDS, VOCAB, make_tokenizer
from tests.trainer.weights.models import QWEN3, in_blocks, random_parameters
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

pytestmark = pytest.mark.slow

GUEST_ROUNDS = 3
ROUNDS = """
[inner]
lr = 1e-2
warmup_steps = 2
[rounds]
inner_steps = 10
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
CHATS = """
name = "talk"
total_rounds = 50
founders = "anyone"
chunk_parameters = 4096
checkpoint_chunk_bytes = 8192
[model]
from = "base"
[data]
format = "chat"
from = "talk.jsonl"
sequence_length = 64
sequences_per_step = 4
"""
ROLLOUTS = """
name = "rollouts"
founders = "anyone"
chunk_parameters = 4096
checkpoint_chunk_bytes = 8192
[model]
from = "base"
[data]
from = "examples"
sequence_length = 64
sequences_per_step = 4
[rl]
environment = "sort"
warm_rounds = 1
prompts_per_batch = 2
group_size = 4
batches_per_round = 2
max_tokens = 8
row_tokens = 96
micro_batch_tokens = 512
optimizer_steps = 1
lr = 1e-3
warmup_steps = 0
"""


def make_model(folder: Path) -> npt.NDArray[Any]:
    """A tiny Qwen3 with its tokenizer; its values."""
    config = ModelConfig.from_mapping(QWEN3 | {"tied": True, "vocab": VOCAB})
    folder.mkdir()
    values = random_parameters(config)
    write_folder(folder, config, in_blocks(values), ExportFormat.FP32, context=64, eos=None)
    make_tokenizer(folder / "tokenizer.json")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ENDS)}))
    return values


def exported(swarm: Swarm, peer: Peer, *words: str) -> npt.NDArray[Any]:
    """What a peer exports."""
    folder = swarm.folder / "-".join(["exported", peer.name, *words])
    said = swarm.command(peer.folder, "export", str(folder), "--dtype", "fp32", *words)
    assert f"rounds      {0 if words else GUEST_ROUNDS}" in said
    assert WeightsFolder(folder).config == WeightsFolder(swarm.folder / "base").config
    return np.concatenate(list(WeightsFolder(folder).values()))


def test_peers_fetch_chats_tokenizer_and_weights_learn_and_export_the_same_model(tmp_path: Path) -> None:
    records = [{"prompt": f"{n}?", "completion": "ab" * (1 + n % 3)} for n in range(80)]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with Swarm(tmp_path, CHATS + ROUNDS + "min_members = 2\n") as swarm:
        values = make_model(tmp_path / "base")
        swarm.create_run()
        manifest = open_manifest(swarm.manifest.read_bytes()).manifest
        assert manifest.tokenizer is not None and manifest.tokenizer.template == "chatml"
        assert manifest.tokenizer.ends == list(ENDS)
        organiser, guest = swarm.peer("organiser").start(), swarm.peer("guest")
        guest.start("--rounds", str(GUEST_ROUNDS))
        swarm.until("the guest's rounds", lambda: not guest.up)
        guest.kill()  # it has left; this closes what is left of it here
        swarm.equal(GUEST_ROUNDS, organiser, guest)
        assert organiser.up, "alone it holds no round, so it stays where the guest left"
        fetched = [event for event in guest.heard(ev.TransferEnded) if event.what == "file"]
        assert len(fetched) == 2 and all(event.complete for event in fetched)
        assert not organiser.heard(ev.TransferEnded) or all(
            event.what != "file" for event in organiser.heard(ev.TransferEnded)
        )
        committed = guest.heard(ev.RoundCommitted)
        assert committed[-1].loss < committed[0].loss
        full_round = 2 * 10 * 4 * 64
        assert all(event.tokens < full_round / 2 for event in committed), "a few tokens of each window count"
        ours, theirs = exported(swarm, organiser), exported(swarm, guest)
        assert np.array_equal(ours, theirs) and not np.array_equal(ours, values)
        assert np.array_equal(exported(swarm, guest, "--checkpoint", "0"), values), "which the guest has fetched"


def test_rollouts_of_a_model_with_a_tokenizer_are_made_verified_and_learned_from(tmp_path: Path) -> None:
    with Swarm(tmp_path, ROLLOUTS + ROUNDS) as swarm:
        make_model(tmp_path / "base")
        swarm.create_run()
        trainer = swarm.peer("organiser").start()
        writer = swarm.peer("writer").start("--role", "rollout")
        validator = swarm.peer("validator").start("--role", "validator")
        swarm.until("a version of rollouts", lambda: trainer.heard(ev.RolloutsUsed))
        swarm.until("a verdict", lambda: validator.heard(ev.BatchJudged))
        (chosen,) = trainer.notices(ev.NoticeCode.ROLE_CHOSEN)
        assert chosen["role"] == "trainer" and "organiser" in chosen["reason"]
        assert not writer.notices(ev.NoticeCode.ROLE_CHOSEN)
        made = {event.root for event in writer.heard(ev.RolloutsGenerated)}
        assert {root for event in trainer.heard(ev.RolloutsUsed) for root in event.batches} <= made
        assert all(event.rejected == 0 for event in validator.heard(ev.BatchJudged))
