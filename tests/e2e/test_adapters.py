"""Runs of real peers that train factors beside a frozen model, from rows and from rollouts; peers fetch the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protocol.events import events as ev
from protocol.formats.adapter import AdapterConfig, adapter_parameters
from protocol.run.manifest import open_manifest
from tests.e2e.swarm import Swarm
from tests.e2e.test_chats import CHATS, ROLLOUTS, ROUNDS, make_model
from trainer.weights.folder import WeightsFolder
from trainer.weights.peft_folder import PeftFolder, write_peft_folder
from trainer.weights.safetensors_file import ExportFormat

pytestmark = pytest.mark.slow

GUEST_ROUNDS = 4
ADAPTER = "[adapter]\nrank = 8\n"
KL = "kl_weight = 0.1\ndrop_zero_advantage = false\n"


def test_peers_fetch_the_frozen_model_and_train_the_factors_of_an_adapter(tmp_path: Path) -> None:
    records = [{"prompt": f"{n}?", "completion": "ab" * (1 + n % 3)} for n in range(80)]
    (tmp_path / "talk.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with Swarm(tmp_path, CHATS + ADAPTER + ROUNDS + "min_members = 2\n") as swarm:
        make_model(tmp_path / "base")
        swarm.create_run()
        manifest = open_manifest(swarm.manifest.read_bytes()).manifest
        assert manifest.base is not None and not manifest.initial_state
        organiser, guest = swarm.peer("organiser"), swarm.peer("guest")
        links = [path.resolve().parent for path in organiser.folder.glob("runs/*/files/*.blob") if path.is_symlink()]
        assert links == [tmp_path / "base"] * len(manifest.base.files), "the organiser's files stay where they are"
        organiser.start()
        guest.start("--rounds", str(GUEST_ROUNDS))
        swarm.until("the guest's rounds", lambda: not guest.up)
        guest.kill()  # it has left; this closes what is left of it here
        swarm.equal(GUEST_ROUNDS, organiser, guest)
        fetched = [event for event in guest.heard(ev.TransferEnded) if event.what == "file"]
        assert len(fetched) == 2 + len(manifest.base.files) and all(event.complete for event in fetched)
        committed = guest.heard(ev.RoundCommitted)
        assert committed[-1].loss < committed[0].loss
        said = swarm.command(guest.folder, "export", str(tmp_path / "peft"), "--dtype", "fp32")
        assert "for PEFT" in said
        base, written = WeightsFolder(tmp_path / "base"), PeftFolder(tmp_path / "peft", manifest.model)
        assert written.adapter == manifest.adapter and written.base_name == "base"
        factors = np.concatenate([*written.values()])
        swarm.command(organiser.folder, "export", str(tmp_path / "again"), "--dtype", "fp32")
        again = PeftFolder(tmp_path / "again", manifest.model)
        assert np.array_equal(factors, np.concatenate([*again.values()])) and factors.any()
        swarm.command(guest.folder, "export", str(tmp_path / "merged"), "--dtype", "fp32", "--merged")
        merged = np.concatenate([*WeightsFolder(tmp_path / "merged").values()])
        moved = np.abs(merged - np.concatenate([*base.values()]))
        assert 0 < moved.max() < 5
        command = [sys.executable, "-m", "peer", "chat", "--max-tokens", "3", "--data-dir", str(guest.folder)]
        answer = subprocess.run(command, input="1?", env=swarm.environment, text=True, capture_output=True, timeout=120)
        assert answer.returncode == 0 and answer.stdout, answer.stderr


def test_a_run_goes_on_with_the_factors_of_a_folder_which_a_newcomer_fetches(tmp_path: Path) -> None:
    (tmp_path / "talk.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{n}?", "completion": "ab"}) + "\n" for n in range(80))
    )
    make_model(tmp_path / "base")
    model, adapter = WeightsFolder(tmp_path / "base").config, AdapterConfig(rank=4, alpha=8.0, targets="mlp")
    values = np.random.default_rng(5).standard_normal(adapter_parameters(model, adapter)).astype(np.float32) * 0.01
    (tmp_path / "old").mkdir()
    write_peft_folder(tmp_path / "old", model, adapter, [values], ExportFormat.FP32, base_name="base")
    with Swarm(tmp_path, CHATS + '[adapter]\nfrom = "old"\n' + ROUNDS + "min_members = 2\n") as swarm:
        swarm.create_run()
        organiser, guest = swarm.peer("organiser"), swarm.peer("guest")
        swarm.command(organiser.folder, "export", str(tmp_path / "start"), "--dtype", "fp32")
        start = PeftFolder(tmp_path / "start", model)
        assert start.adapter == adapter and np.array_equal(values, np.concatenate([*start.values()]))
        organiser.start()
        guest.start("--rounds", "2")
        swarm.until("the guest's rounds", lambda: not guest.up)
        guest.kill()
        swarm.equal(2, organiser, guest)
        assert any(event.what == "checkpoint" and event.complete for event in guest.heard(ev.TransferEnded))


def test_a_late_joiner_gets_the_frozen_model_once_its_organiser_is_gone_and_a_killed_peer_comes_back(tmp_path: Path) -> None:
    """Everything is at the friend: it gives the model on, and trains with the newcomer; the model is held in int8."""
    (tmp_path / "talk.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{n}?", "completion": "ab"}) + "\n" for n in range(80))
    )
    run = (
        CHATS.replace("total_rounds = 50", "total_rounds = 500").replace('from = "base"', 'from = "base"\nformat = "int8"')
        + "[adapter]\nrank = 16\n"
        + ROUNDS
    )
    with Swarm(tmp_path, run) as swarm:
        make_model(tmp_path / "base")
        swarm.create_run()
        manifest = open_manifest(swarm.manifest.read_bytes()).manifest
        assert manifest.base is not None
        organiser, friend = swarm.peer("organiser").start(), swarm.peer("friend").start()
        swarm.whole(organiser, friend)
        organiser.kill()
        (tmp_path / "base").rename(tmp_path / "elsewhere")
        late = swarm.peer("late").start()
        swarm.whole(friend, late)
        fetched = [event for event in late.heard(ev.TransferEnded) if event.what == "file"]
        assert sum(event.fetched_bytes for event in fetched) >= manifest.base.size_bytes
        friend.kill()
        friend.start()
        rounds = friend.committed
        swarm.until("rounds after the kill", lambda: friend.committed >= rounds + 2)
        swarm.equal(swarm.whole(friend, late), friend, late)


def test_factors_are_the_versions_of_rollouts_which_are_verified_and_learned_from(tmp_path: Path) -> None:
    with Swarm(tmp_path, ROLLOUTS + KL + ADAPTER + ROUNDS) as swarm:
        make_model(tmp_path / "base")
        swarm.create_run()
        manifest = open_manifest(swarm.manifest.read_bytes()).manifest
        assert manifest.parameters < manifest.model.parameters and not manifest.reference_bytes
        trainer = swarm.peer("organiser").start()
        writer = swarm.peer("writer").start("--role", "rollout")
        validator = swarm.peer("validator").start("--role", "validator")
        swarm.until("two versions of rollouts", lambda: len(trainer.heard(ev.RolloutsUsed)) >= 2)
        swarm.until("verdicts", lambda: len({event.version for event in validator.heard(ev.BatchJudged)}) >= 2)
        made = {event.root for event in writer.heard(ev.RolloutsGenerated)}
        assert {root for event in trainer.heard(ev.RolloutsUsed) for root in event.batches} <= made
        assert all(event.rejected == 0 for event in validator.heard(ev.BatchJudged))
        assert any(event.kl is not None for event in trainer.heard(ev.RolloutsUsed))
