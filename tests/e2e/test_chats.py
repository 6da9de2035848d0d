"""Chats and a tokenizer in runs of real peers: the organiser has the files, the others fetch them and learn from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.events import events as ev
from protocol.formats.model import ModelConfig
from protocol.run.manifest import open_manifest
from tests.e2e.swarm import Swarm
from tests.trainer.made_tokenizer import ENDS, VOCAB, make_tokenizer
from tests.trainer.weights.models import QWEN3, in_blocks, random_parameters
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

pytestmark = pytest.mark.slow

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


def make_model(folder: Path) -> None:
    """A tiny Qwen3 with its tokenizer."""
    config = ModelConfig.from_mapping(QWEN3 | {"tied": True, "vocab": VOCAB})
    folder.mkdir()
    write_folder(folder, config, in_blocks(random_parameters(config)), ExportFormat.FP32, context=64, eos=None)
    make_tokenizer(folder / "tokenizer.json")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ENDS)}))


def test_peers_fetch_the_chats_and_the_tokenizer_and_learn_from_them(tmp_path: Path) -> None:
    records = [{"prompt": f"{n}?", "completion": "ab" * (1 + n % 3)} for n in range(80)]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with Swarm(tmp_path, CHATS + ROUNDS + "min_members = 2\n") as swarm:
        make_model(tmp_path / "base")
        swarm.create_run()
        manifest = open_manifest(swarm.manifest.read_bytes()).manifest
        assert manifest.tokenizer is not None and manifest.tokenizer.template == "chatml"
        assert manifest.tokenizer.ends == list(ENDS)
        organiser, guest = swarm.peer("organiser").start(), swarm.peer("guest")
        guest.start("--rounds", "3")
        swarm.until("the guest's rounds", lambda: not guest.up)
        guest.kill()
        swarm.equal(3, organiser, guest)
        fetched = [event for event in guest.heard(ev.TransferEnded) if event.what == "file"]
        assert len(fetched) == 2 and all(event.complete for event in fetched)
        assert not organiser.heard(ev.TransferEnded) or all(
            event.what != "file" for event in organiser.heard(ev.TransferEnded)
        )
        committed = guest.heard(ev.RoundCommitted)
        assert committed[-1].loss < committed[0].loss
        full_round = 2 * 10 * 4 * 64
        assert all(event.tokens < full_round / 2 for event in committed), "a few tokens of each window count"


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
