"""A peer that rests by itself, and goes on, while the others train: the sensors are a file."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peer.control.client import ControlClient
from protocol.events import events as ev
from protocol.events.status import REMEDIES, WhyIdle
from tests.e2e.swarm import Peer, Swarm
from tests.e2e.test_invitation import free_port

pytestmark = pytest.mark.slow

QUOTA = 10**9
CALM: dict[str, Any] = {
    "plugged": True,
    "now": "2026-11-23T12:00",
    "temperature": 50,
    "gpu_used_by_others": 0,
    "unused_s": 600,
    "uptime": 0,
}
REASONS: list[tuple[dict[str, Any], str, str]] = [
    ({"plugged": False}, "on battery", "peer config on_battery yes"),
    ({"now": "2026-11-23T18:00"}, "outside hours", "rests until Tuesday 09:00"),
    ({"unused_s": 30}, "in use", "resumes 10 min after the last key"),
    ({"temperature": 84}, "too hot", "a GPU was hotter than 83 °C: resumes at 78 °C"),
    ({"gpu_used_by_others": 62}, "gpu wanted", "resumes when they use less than 5 % of it"),
]


def test_a_peer_rests_for_what_its_owner_set_and_goes_on(tmp_path: Path) -> None:
    """Beside two others: within its run for each limit, and outside of it while its disk is full or its quota is used up."""
    sensors = tmp_path / "sensors.json"

    def feel(**what: Any) -> None:
        sensors.with_suffix(".new").write_text(json.dumps(CALM | what))
        sensors.with_suffix(".new").replace(sensors)

    with Swarm.created(tmp_path) as swarm:
        others = [swarm.peer(f"peer-{number}").start() for number in range(2)]
        swarm.environment |= {"PEER_SENSORS": str(sensors), "PEER_ON_BATTERY": "no", "PEER_MONTHLY_QUOTA": "2GB"}
        feel()
        limits = ("--schedule", "09:00-17:00", "--max-temperature", "83C", "--yield-gpu", "yes", "--unused-for", "10min")
        port, rester = free_port(), swarm.peer("rester")
        (rester.folder / "month.json").write_text(json.dumps({"month": "2026-11", "bytes": QUOTA - 100_000}))
        rester.start(*limits, "--max-disk", "20MB", "--port", str(port))
        swarm.whole(rester, *others)
        for number, (what, why, end) in enumerate(REASONS):
            feel(**what)
            rests_for(swarm, rester, others, why, end)
            (seen,) = (each for each in others[0].status()["swarm"] if each["peer"] == rester.peer_id)
            assert seen["phase"] == "paused" and why not in json.dumps(seen), "why is nobody else's business"
            feel(uptime=60 * (number + 1))
            swarm.until("it goes on", lambda: not _is(rester, "paused"))

        ballast = rester.folder / "ballast"
        ballast.write_bytes(os.urandom(21_000_000))
        rests_for(swarm, rester, others, "disk full", "raise max_disk")
        assert len(rester.heard(ev.PhaseChanged)) < 1000
        ballast.unlink()
        swarm.equal(swarm.whole(rester, *others), rester, *others)
        assert rester.lives == 1 and all(f"/tcp/{port}/" in address for address in rester.status()["addresses"])

        swarm.command(rester.folder, "config", "monthly_quota", "1GB", "--now")
        rests_for(swarm, rester, others, "monthly quota", "resumes at 2026-12-01")
        status = rester.status()
        assert (status["peers"], status["swarm"]) == (0, []) and "monthly_quota" in status["why_detail"]
        gone = partial(_said_goodbye, others[0], rester)
        swarm.until("goodbye", gone)
        counted = _counted(rester)
        assert counted >= QUOTA
        rester.kill()
        swarm.environment["PEER_MONTHLY_QUOTA"] = "1GB"
        rester.start(*limits)
        swarm.until("the quota is still used up", partial(_is, rester, "paused", "monthly quota"))
        assert _counted(rester) == counted and not rester.status()["addresses"], "it has not even opened its network"
        ControlClient(rester.folder).request("pause")
        feel(now="2026-12-01T12:00")
        swarm.until("it is paused in the run", partial(_is, rester, "paused", "paused"))
        assert ControlClient(rester.folder).request("resume") == {"rests": ""}
        swarm.equal(swarm.whole(rester, *others), rester, *others)
        swarm.until("the new month is counted", lambda: 0 < _counted(rester) < QUOTA)
        assert rester.leave() == 0


def rests_for(swarm: Swarm, rester: Peer, others: list[Peer], why: str, detail: str) -> None:
    """Wait until it rests for this reason, which it tells with a remedy, and the others go on without it."""
    swarm.until(f"a rest: {why}", partial(_is, rester, "paused", why))
    status = rester.status()
    assert (status["phase"], status["why_idle"], status["why_remedy"]) == ("paused", why, REMEDIES[WhyIdle(why)])
    assert detail in status["why_detail"]
    swarm.whole(*others)
    swarm.whole(*others)
    assert _is(rester, "paused", why), "the others go on without it"


def _is(peer: Peer, phase: str, why: str | None = None) -> bool:
    """Whether this is what it does now, as it told last."""
    changes = peer.heard(ev.PhaseChanged)
    return bool(changes) and changes[-1].phase == phase and why in (None, changes[-1].why_idle)


def _said_goodbye(peer: Peer, leaver: Peer) -> bool:
    return any(gone.goodbye and gone.peer == leaver.peer_id for gone in peer.heard(ev.PeerGone))


def _counted(peer: Peer) -> int:
    found: int = json.loads((peer.folder / "month.json").read_text())["bytes"]
    return found
