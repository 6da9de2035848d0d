"""Weights in and out of a run of real peers: one has a folder, the other fetches it, and both export the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.formats.model import ModelConfig
from protocol.run.manifest import open_manifest
from tests.e2e.swarm import Swarm
from tests.trainer.weights.models import LLAMA3, in_blocks, random_parameters
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

RUN = """
name = "begun"
founders = "anyone"
chunk_parameters = 4096
checkpoint_chunk_bytes = 8192
[model]
from = "base"
[data]
sequence_length = 64
sequences_per_step = 2
[inner]
warmup_steps = 4
[rounds]
inner_steps = 5
min_members = 2
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
ROUNDS = 3


def read(folder: Path) -> np.ndarray:
    return np.concatenate(list(WeightsFolder(folder).values()))


@pytest.mark.slow
def test_a_run_begins_with_a_folder_and_every_peer_exports_the_same_model(tmp_path: Path) -> None:
    with Swarm(tmp_path, RUN) as swarm:
        config = ModelConfig.from_mapping(LLAMA3 | {"tied": True})
        values = random_parameters(config)
        (tmp_path / "base").mkdir()
        write_folder(tmp_path / "base", config, in_blocks(values), ExportFormat.FP32, context=64, eos=None)
        swarm.create_run()
        organiser, guest = swarm.peer("organiser"), swarm.peer("guest")
        organiser.start()
        guest.start("--rounds", str(ROUNDS))
        swarm.until("the guest's rounds", lambda: not guest.up)
        guest.kill()  # it has left; this closes what is left of it here
        swarm.equal(ROUNDS, organiser, guest)
        assert organiser.up, "alone it holds no round, so it stays where the guest left"
        manifest = open_manifest(swarm.manifest.read_bytes()).manifest
        for peer in (organiser, guest):
            said = swarm.command(peer.folder, "export", str(tmp_path / f"from {peer.name}"), "--dtype", "fp32")
            assert f"rounds      {ROUNDS}" in said
            assert WeightsFolder(tmp_path / f"from {peer.name}").config == config
        ours, theirs = (read(tmp_path / f"from {peer.name}") for peer in (organiser, guest))
        assert np.array_equal(ours, theirs) and not np.array_equal(ours, values)
        assert manifest.genesis is not None
        swarm.command(guest.folder, "export", str(tmp_path / "beginning"), "--checkpoint", "0", "--dtype", "fp32")
        assert np.array_equal(read(tmp_path / "beginning"), values), "which the guest has fetched"
