"""Settings that are changed while a peer runs: from a shell, and from its interface."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peer.control.client import ControlClient
from peer.errors import ExitCode
from protocol.events import events as ev
from tests.e2e.swarm import Peer, Swarm

pytestmark = pytest.mark.slow

NOON, NIGHT = "2026-11-23T12:00", "2026-11-23T20:00"


def test_a_running_peer_takes_what_its_person_changes(tmp_path: Path) -> None:
    sensors, config = tmp_path / "sensors.json", tmp_path / "peer.toml"

    def setting(name: str) -> tuple[str, str]:
        told = json.loads(swarm.command(peer.folder, "config", name, "--json"))
        assert told["running"]
        return told["settings"][0]["shown"], told["settings"][0]["source"]

    sensors.write_text(json.dumps({"now": NIGHT}))
    with Swarm.created(tmp_path) as swarm:
        swarm.environment |= {"PEER_SENSORS": str(sensors), "PEER_CONFIG": str(config)}
        other, peer = swarm.peer("other").start(), swarm.peer("peer").start("--max-up", "50Mbit")
        swarm.whole(other, peer)
        assert setting("max_up") == ("50Mbit", "--max-up")
        said = swarm.command(peer.folder, "config", "max_up", "40Mbit")
        assert "uses it from now on" in said and 'max_up = "40Mbit"' in config.read_text()
        assert setting("max_up") == ("40Mbit", "changed while running")
        swarm.until("it is told", partial(_told, peer, "max_up is 40Mbit from now on"))
        assert "takes effect when it starts again" in swarm.command(peer.folder, "config", "port", "4002")
        assert 'port = "4002"' in config.read_text() or "port = 4002" in config.read_text()
        swarm.command(peer.folder, "config", "--unset", "port")
        swarm.command(peer.folder, "config", "port", "4002", "--now", code=ExitCode.USAGE)
        assert "much is not a rate" in swarm.command(peer.folder, "config", "max_up", "much", code=ExitCode.USAGE)

        swarm.command(peer.folder, "config", "schedule", "09:00-17:00", "--now")
        swarm.until("it is outside its hours", partial(_is, peer, "outside hours"))
        assert peer.status()["next_rest"] == "resumes at Tuesday 09:00"
        assert "schedule" not in config.read_text()
        swarm.command(peer.folder, "config", "schedule", "--unset", "--now")
        swarm.until("it has no hours", lambda: not _rests(peer))

        swarm.command(peer.folder, "config", "max_load", "50%", "--now")
        assert peer.status()["limits"].items() >= {"max_up": "40Mbit", "max_load": "50%"}.items()
        swarm.whole(other, peer)
        swarm.until("its contribution is counted", lambda: (peer.status()["contribution"] or {}).get("rounds"))
        given, computer = peer.status()["contribution"], peer.status()["computer"]
        assert given["rank"] in (1, 2) and given["tokens"] == given["tokens_today"] > 0 and given["days"] == 1
        assert computer["processor"] and 0 < computer["memory_used"] < computer["memory_total"]

        client = ControlClient(peer.folder)
        assert client.request("set", name="monthly_quota", value="1MB", keep=True)["written"] == str(config)
        swarm.until("the quota is used up", partial(_is, peer, "monthly quota"))
        client.request("set", name="monthly_quota", value="1GB", keep=True)
        swarm.equal(swarm.whole(other, peer), other, peer)
        assert 'monthly_quota = "1GB"' in config.read_text()
        assert "1GB" in swarm.command(peer.folder, "config", "monthly_quota")
        assert peer.leave() == 0
        assert setting_without_peer(swarm, peer) == ("1GB", str(config))


def setting_without_peer(swarm: Swarm, peer: Peer) -> tuple[str, str]:
    told = json.loads(swarm.command(peer.folder, "config", "monthly_quota", "--json"))
    assert not told["running"]
    swarm.command(peer.folder, "config", "max_up", "3", "--now", code=ExitCode.NOT_RUNNING)
    return told["settings"][0]["shown"], told["settings"][0]["source"]


def _changes(peer: Peer) -> list[Any]:
    return peer.heard(ev.PhaseChanged)


def _rests(peer: Peer) -> bool:
    return bool(_changes(peer)) and _changes(peer)[-1].phase == "paused"


def _is(peer: Peer, why: str) -> bool:
    """Whether it rests for this reason now, as it told last."""
    return _rests(peer) and _changes(peer)[-1].why_idle == why


def _told(peer: Peer, text: str) -> bool:
    return any(notice.text == text for notice in peer.heard(ev.Notice))
