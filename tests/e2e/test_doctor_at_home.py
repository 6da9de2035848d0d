"""`peer doctor` behind each kind of router: what others reach, what stands before this computer, and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.swarm import PATIENCE_S, Swarm
from tests.routers.homes import Home, Homes, why_not
from tests.routers.router import Kind
from tests.routers.table import create, start

WHY_NOT = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

NOBODY = "a router or firewall that lets nobody in"
RELAY = "it gives each connection a different port, so peers behind such routers meet through a relay"
HOLES = "it keeps ports, so holes can be punched through it"
TOLD = {
    Kind.REACHABLE: ("ok", "", "none: this computer has a public address"),
    Kind.CONE: ("warn", "forward this TCP port", f"{NOBODY}; {HOLES}"),
    Kind.SYMMETRIC: ("warn", "forward this TCP port", f"{NOBODY}; {RELAY}"),
    Kind.DOUBLE: ("warn", "forward this TCP port", f"{NOBODY}; {HOLES}"),
    Kind.FIREWALL: (
        "warn",
        "forward this TCP port",
        "none: this computer has a public address, and a firewall that lets nobody in",
    ),
    Kind.UPNP: ("ok", "", f"a router that opens the port by UPnP; {HOLES}"),
    Kind.IPV6: ("ok", "", "none: this computer has a public address"),
}


def doctor(swarm: Swarm, place: tuple[str, ...], name: str, *words: str) -> subprocess.Popen[str]:
    """It runs there, as a seed's: the training is looked at elsewhere."""
    command = [*place, sys.executable, "-m", "peer", "doctor", *words, "--json", "--data-dir", str(swarm.place(name))]
    environment = {**swarm.environment, "PEER_ROLE": "seed"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str], code: int) -> dict[str, dict[str, Any]]:
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, printed
    answer = json.loads(printed.splitlines()[-1])
    assert answer["ok"] == (code == 0)
    return {check["name"]: check for check in answer["checks"]}


def test_behind_each_kind_of_router_it_says_what_others_reach_and_what_to_do(tmp_path: Path) -> None:
    with Homes(tmp_path, list(TOLD)) as homes, Swarm(tmp_path) as swarm:
        invitation = create(swarm)
        public = start(swarm, "public", homes.public, invitation)
        swarm.until("it runs", lambda: public.peer_id)

        def examine(home: Home) -> subprocess.Popen[str]:
            return doctor(swarm, home.place, f"at-{home.kind.value}", invitation)

        for home, process in [(home, examine(home)) for home in homes.homes]:
            verdict, remedy, router = TOLD[home.kind]
            found = told(process, 0)
            reachable = found["reachable"]
            assert (reachable["verdict"], found["router"]["value"]) == (verdict, router), home.kind
            assert remedy in reachable["remedy"] and bool(remedy) == bool(reachable["remedy"])
            assert found["peers"]["verdict"] == found["admission"]["verdict"] == "ok"


def test_without_a_route_it_names_the_address_and_ends_with_a_code(tmp_path: Path) -> None:
    with Homes(tmp_path, [Kind.CONE]) as homes, Swarm(tmp_path) as swarm:
        invitation = create(swarm)
        subprocess.run([*homes.homes[0].place, "ip", "route", "del", "default"], check=True)
        found = told(doctor(swarm, homes.homes[0].place, "lost", invitation), 1)
        assert found["peers"]["verdict"] == "fail" and found["peers"]["remedy"] and "11.77.0.2" in found["peers"]["value"]
        assert found["disk space"]["verdict"] == "ok", "the other checks are made all the same"
