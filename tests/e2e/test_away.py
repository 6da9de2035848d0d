"""A peer that leaves its run for a while by itself: its month's quota is used up, or its disk is full."""

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


def test_at_its_monthly_quota_a_peer_leaves_and_comes_back_in_the_next_month(tmp_path: Path) -> None:
    sensors = tmp_path / "sensors.json"

    def feel(now: str) -> None:
        sensors.with_suffix(".new").write_text(json.dumps({"now": now}))
        sensors.with_suffix(".new").replace(sensors)

    with Swarm(tmp_path) as swarm:
        swarm.create_run()
        others = [swarm.peer(f"peer-{number}").start() for number in range(2)]
        swarm.environment |= {"PEER_SENSORS": str(sensors), "PEER_MONTHLY_QUOTA": "2GB"}
        feel("2026-11-23T12:00")
        rester = swarm.peer("rester")
        (rester.folder / "month.json").write_text(json.dumps({"month": "2026-11", "bytes": QUOTA - 100_000}))
        rester.start()
        swarm.whole(rester, *others)
        swarm.command(rester.folder, "config", "monthly_quota", "1GB", "--now")
        swarm.until("the quota is used up", partial(_is, rester, "monthly quota"))
        status = rester.status()
        assert (status["phase"], status["peers"], status["swarm"]) == ("paused", 0, [])
        assert status["why_remedy"] == REMEDIES[WhyIdle.MONTHLY_QUOTA]
        assert "resumes at 2026-12-01" in status["why_detail"] and "monthly_quota" in status["why_detail"]
        swarm.until(
            "goodbye", lambda: any(gone.goodbye and gone.peer == rester.peer_id for gone in others[0].heard(ev.PeerGone))
        )
        counted = _counted(rester)
        assert counted >= QUOTA
        swarm.whole(*others)
        swarm.whole(*others)
        assert _is(rester, "monthly quota"), "the others go on without it"
        rester.kill()
        swarm.environment["PEER_MONTHLY_QUOTA"] = "1GB"
        rester.start()
        swarm.until("the quota is still used up", partial(_is, rester, "monthly quota"))
        assert _counted(rester) == counted and not rester.status()["addresses"], "it has not even opened its network"
        ControlClient(rester.folder).request("pause")
        feel("2026-12-01T00:00")
        swarm.until("it is paused in the run", partial(_is, rester, "paused"))
        assert ControlClient(rester.folder).request("resume") == {"rests": ""}
        swarm.equal(swarm.whole(rester, *others), rester, *others)
        swarm.until("the new month is counted", lambda: 0 < _counted(rester) < QUOTA)


def test_a_full_disk_lets_a_peer_rest_and_room_lets_it_go_on(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.create_run()
        others = [swarm.peer(f"peer-{number}").start() for number in range(2)]
        port = free_port()
        rester = swarm.peer("rester").start("--max-disk", "20MB", "--port", str(port))
        swarm.whole(rester, *others)
        ballast = rester.folder / "ballast"
        ballast.write_bytes(os.urandom(21_000_000))
        swarm.until("the cap is reached", partial(_is, rester, "disk full"))
        status = rester.status()
        assert (
            status["phase"] == "paused" and "max_disk" in status["why_detail"] and "raise max_disk" in status["why_detail"]
        )
        assert status["why_remedy"] == REMEDIES[WhyIdle.DISK_FULL]
        swarm.whole(*others)
        assert _is(rester, "disk full") and len(rester.heard(ev.PhaseChanged)) < 1000
        ballast.unlink()
        swarm.equal(swarm.whole(rester, *others), rester, *others)
        assert rester.lives == 1 and all(f"/tcp/{port}/" in address for address in rester.status()["addresses"])
        assert rester.leave() == 0


def _is(peer: Peer, why: str) -> bool:
    """Whether it rests for this reason now, as it told last."""
    changes: list[Any] = peer.heard(ev.PhaseChanged)
    return bool(changes) and (changes[-1].phase, changes[-1].why_idle) == ("paused", why)


def _counted(peer: Peer) -> int:
    found: int = json.loads((peer.folder / "month.json").read_text())["bytes"]
    return found
