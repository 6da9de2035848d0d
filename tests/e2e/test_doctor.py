"""`peer doctor` beside a real swarm, before and after joining, and where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protocol import events as ev
from tests.e2e.swarm import Swarm


def examined(swarm: Swarm, folder: Path, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    printed = json.loads(swarm.command(folder, "doctor", *words, "--local", "--json", code=code).splitlines()[-1])
    assert printed["ok"] == (code == 0)
    return {check["name"]: check for check in printed["checks"]}


def test_a_newcomer_learns_whether_the_swarm_has_it_and_reaches_it(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.create_run()
        founder = swarm.peer("founder").start()
        swarm.until("it waits for others", lambda: founder.heard(ev.PhaseChanged))
        invitation = founder.status()["invitation"]
        guest = swarm.place("guest")
        found = examined(swarm, guest, invitation)
        assert found["peers"]["verdict"] == found["admission"]["verdict"] == found["reachable"]["verdict"] == "ok"
        assert "tokens/s" in found["estimate"]["value"] and "tiny" in found["run"]["value"]
        assert found["lines"]["verdict"] == "unknown" and "join" in found["lines"]["remedy"]
        wrong = examined(swarm, guest, invitation[:-4] + "aaaa", code=1)
        assert wrong["run"]["verdict"] == "fail" and wrong["run"]["remedy"] and wrong["disk space"]["verdict"] == "ok"
        asked = examined(swarm, founder.folder)
        assert "held by the peer that runs here" in asked["identity"]["value"] and "running peer" in asked["port"]["value"]
        assert founder.leave() == 0
        alone = examined(swarm, guest, invitation, code=1)
        assert alone["peers"]["verdict"] == "fail" and alone["peers"]["remedy"]
