"""Versions of the weights among real peers: one publishes, the others have the same bytes, and `peer weights` tells so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.events import events as ev
from protocol.formats.model import ModelConfig
from tests.e2e.swarm import TINY_RUN, Peer, Swarm
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

pytestmark = pytest.mark.slow


def write_weights(folder: Path, config: ModelConfig, values: np.ndarray) -> Path:
    """A folder as `peer export` writes it."""
    folder.mkdir()
    write_folder(folder, config, [values], ExportFormat.BF16, context=64, eos=None)
    return folder


def listed(swarm: Swarm, peer: Peer) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(swarm.command(peer.folder, "weights", "--json"))
    return told


def has(peer: Peer, version: int) -> bool:
    return any(event.version == version for event in peer.heard(ev.VersionComplete))


def test_what_one_peer_publishes_all_have(tmp_path: Path) -> None:
    with Swarm(
        tmp_path, TINY_RUN.replace("chunk_parameters", "checkpoint_chunk_bytes = 4096\nchunk_parameters", 1)
    ) as swarm:
        swarm.create_run()
        organiser, guest = swarm.peer("organiser").start(), swarm.peer("guest").start()
        swarm.whole(organiser, guest)
        assert listed(swarm, organiser)["versions"] == []
        swarm.command(organiser.folder, "export", str(tmp_path / "base"))
        config, values = (folder := WeightsFolder(tmp_path / "base")).config, np.concatenate([*folder.values()])
        said = swarm.command(organiser.folder, "weights", "publish", str(tmp_path / "base"))
        assert "version     1" in said
        swarm.until("version 1 at the guest", lambda: has(guest, 1))

        values[::100] += np.float32(0.5)
        second = write_weights(tmp_path / "second", config, values) / "model.safetensors"
        said = swarm.command(organiser.folder, "weights", "publish", str(second))
        assert "version     2" in said and "available as patches" in said
        late = swarm.peer("late").start()
        swarm.until("version 2 everywhere", lambda: has(guest, 2) and has(late, 2))
        for peer in (guest, late):
            told = listed(swarm, peer)
            newest = told["versions"][-1]
            assert (told["newest"], newest["version"], newest["here"], newest["kind"]) == (2, 2, True, "patch")
            held = Path(told["folder"]) / f"{newest['weights']}.blob"
            assert held.read_bytes() == second.read_bytes(), "what is exported is what is published, to the bit"
        assert "       2  patch" in swarm.command(late.folder, "weights")

        refused = swarm.command(guest.folder, "weights", "publish", str(second), code=1)
        assert "may not publish" in refused
        swarm.command(organiser.folder, "weights", "publish", str(tmp_path / "nothing"), code=3)
