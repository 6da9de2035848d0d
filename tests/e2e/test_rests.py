"""A peer that rests by itself, and goes on, while the others train: the sensors are a file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protocol.events import events as ev
from protocol.events.status import REMEDIES, WhyIdle
from tests.e2e.swarm import Peer, Swarm

pytestmark = pytest.mark.slow


def test_a_peer_rests_for_what_its_owner_set_and_goes_on(tmp_path: Path) -> None:
    sensors = tmp_path / "sensors.json"

    def feel(**what: Any) -> None:
        sensors.with_suffix(".new").write_text(json.dumps(what))
        sensors.with_suffix(".new").replace(sensors)

    with Swarm(tmp_path) as swarm:
        swarm.create_run()
        others = [swarm.peer(f"peer-{number}").start() for number in range(2)]
        swarm.environment |= {"PEER_SENSORS": str(sensors), "PEER_ON_BATTERY": "no"}
        calm: dict[str, Any] = {
            "plugged": True,
            "now": "2026-11-23T12:00",
            "temperature": 50,
            "gpu_used_by_others": 0,
            "unused_s": 600,
            "uptime": 0,
        }
        feel(**calm)
        limits = ("--schedule", "09:00-17:00", "--max-temperature", "83C", "--yield-gpu", "yes", "--unused-for", "10min")
        rester = swarm.peer("rester").start(*limits)
        swarm.whole(rester, *others)
        reasons: list[tuple[dict[str, Any], str, str]] = [
            ({"plugged": False}, "on battery", "peer config on_battery yes"),
            ({"now": "2026-11-23T18:00"}, "outside hours", "rests until Tuesday 09:00"),
            ({"unused_s": 30}, "in use", "resumes 10 min after the last key"),
            ({"temperature": 84}, "too hot", "a GPU was hotter than 83 °C: resumes at 78 °C"),
            ({"gpu_used_by_others": 62}, "gpu wanted", "resumes when they use less than 5 % of it"),
        ]
        for number, (what, why, end) in enumerate(reasons):
            feel(**calm | what)
            swarm.until(f"a rest: {why}", partial(_is, rester, "paused", why))
            status = rester.status()
            assert status["why_idle"] == why and end in status["why_detail"]
            assert status["why_remedy"] == REMEDIES[WhyIdle(why)]
            swarm.whole(*others)
            swarm.whole(*others)
            assert _is(rester, "paused", why), "the others go on without it"
            (seen,) = (each for each in others[0].status()["swarm"] if each["peer"] == rester.peer_id)
            assert seen["phase"] == "paused" and why not in json.dumps(seen), "why is nobody else's business"
            feel(**calm | {"uptime": 60 * (number + 1)})
            swarm.until("it goes on", lambda: not _is(rester, "paused"))
        swarm.equal(swarm.whole(rester, *others), rester, *others)


def _is(peer: Peer, phase: str, why: str | None = None) -> bool:
    """Whether this is what it does now, as it told last."""
    changes = peer.heard(ev.PhaseChanged)
    return bool(changes) and changes[-1].phase == phase and why in (None, changes[-1].why_idle)
