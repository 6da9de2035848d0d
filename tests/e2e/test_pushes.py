"""Pushes to a hub beside a peer that follows a run to its end: killed in the middle of an upload, and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.events import events as ev
from tests.e2e.swarm import PATIENCE_S, Peer, Swarm
from tests.e2e.test_run_end import SHORT_RUN
from tests.peer.hubs.fake_hub import TOKEN, FakeHub, fake_hub

ROUNDS = 12
NAME = "us/model"


def pushing(peer: Peer, hub: FakeHub) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "peer", "--data-dir", str(peer.folder)]
    environment = {**os.environ, "HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.address}
    return subprocess.Popen([*command, "export", "--every", "3", "--push", f"hf:{NAME}"], env=environment)


@pytest.mark.slow
def test_states_of_a_live_run_reach_a_hub_once_each_with_the_final_one(tmp_path: Path) -> None:
    run_file = SHORT_RUN.replace("total_rounds = 2", f"total_rounds = {ROUNDS}").replace("steps = 4\n", "steps = 400\n")
    with fake_hub() as hub, Swarm(tmp_path, run_file) as swarm:
        swarm.create_run()
        trainer = swarm.peer("trainer", str(swarm.run_file)).start()
        swarm.until("it trains", lambda: trainer.heard(ev.PhaseChanged))
        seed = swarm.peer("seed", trainer.status()["invitation"]).start("--role", "seed")
        swarm.until("the seed knows the run", lambda: [*seed.folder.glob("runs/*/manifest")])
        hub.takes_half = True
        killed = pushing(seed, hub)
        assert hub.holding.wait(PATIENCE_S)
        killed.kill()
        killed.wait()
        begun = [json.loads(path.read_text())["rounds"] for path in seed.folder.glob("runs/*/push/*/bf16/manyhands.json")]
        again = pushing(seed, hub)
        assert again.wait(PATIENCE_S) == 0, "it ends with the run"
        there = hub.repositories[NAME]
        assert there.pushed[:1] == begun and there.pushed[-1] == ROUNDS
        assert there.pushed == sorted({*there.pushed}) and set(there.tags) == {f"round-{rounds}" for rounds in there.pushed}
        swarm.command(seed.folder, "export", str(tmp_path / "model"))
        for path in (tmp_path / "model").iterdir():
            assert there.files[path.name] == path.read_bytes(), path.name
        assert json.loads(there.files["manyhands.json"])["is_final"]
