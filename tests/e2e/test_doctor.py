"""`peer doctor` beside a real swarm, before and after joining, and where something is wrong."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.namespaces import why_not
from peer.errors import ExitCode
from protocol.events import events as ev
from tests.e2e.swarm import PATIENCE_S, TINY_RUN, Swarm


def examined(swarm: Swarm, folder: Path, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    return read(swarm.command(folder, "doctor", *words, "--local", "--json", code=code), code)


def read(printed_lines: str, code: int) -> dict[str, dict[str, Any]]:
    printed = json.loads(printed_lines.splitlines()[-1])
    assert all(list(check) == ["name", "verdict", "value", "limit", "remedy"] for check in printed["checks"])
    assert printed["ok"] == (code == 0)
    return {check["name"]: check for check in printed["checks"]}


@pytest.mark.slow
def test_a_newcomer_learns_whether_the_swarm_has_it_and_reaches_it(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
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


def test_who_does_not_meet_the_requirements_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    required = '[requires]\nversion = ">=999.1"\n'
    with Swarm.created(tmp_path, TINY_RUN + required) as swarm:
        guest = swarm.place("guest")
        said = swarm.command(guest, "join", str(swarm.manifest), "--headless", "--local", code=ExitCode.RESOURCES)
        assert "training in this run requires manyhands 999.1 or later (this is " in said
        assert "or join with --role seed" in said and not [*(guest / "runs").glob("*/records/*")]
        seed = swarm.peer("seed").start("--role", "seed")
        swarm.until("it waits for others", lambda: seed.heard(ev.PhaseChanged))
        assert seed.status()["run_definition"]["requires"].startswith("manyhands 999.1 or later; its model needs about ")


@pytest.mark.slow
def test_a_busy_port_and_another_version_are_told_beside_all_the_rest(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        swarm.create_run()
        swarm.environment["PEER_PORT"] = str(other.getsockname()[1])
        busy = examined(swarm, swarm.place("busy"), str(swarm.manifest), code=1)
        assert busy["port"]["verdict"] == "fail" and "peer config port" in busy["port"]["remedy"]
        del swarm.environment["PEER_PORT"]
        assert busy["gpu"]["verdict"] in ("ok", "warn") and busy["gpu"]["value"]
        swarm.run_file.write_text("protocol_min = 90\nprotocol_max = 99\n" + swarm.run_file.read_text())
        swarm.create_run()
        old = examined(swarm, swarm.place("old"), str(swarm.manifest), code=1)
        assert "install a newer version of manyhands" in old["admission"]["remedy"], old
        assert old["disk space"]["verdict"] == "ok"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.slow
def test_a_full_disk_is_told_with_what_to_do(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        folder = swarm.place("full")
        doctor = (
            sys.executable,
            "-m",
            "peer",
            "doctor",
            str(swarm.manifest),
            "--local",
            "--json",
            "--data-dir",
            str(folder),
        )
        small = 'mount -t tmpfs -o size=256k,mode=700 none "$0" && exec "$@"'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", small, str(folder), *doctor],
            env=swarm.environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 1
        found = read(done.stdout, 1)
        assert found["disk space"]["verdict"] == found["disk speed"]["verdict"] == "fail"
        assert "make room" in found["disk space"]["remedy"] and found["cores"]["verdict"] == "ok"
