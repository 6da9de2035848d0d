"""Teams of real peers: others hear of them, and the ledger and the page sum them, also when a peer has left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.swarm import Swarm

TEAMS = {"one": "Night owls", "two": "E\u0301quipe", "three": "Night owls"}
"""Teams by peer, as their owners type them."""


@pytest.mark.slow
def test_the_credit_of_peers_counts_for_the_team_that_they_named(tmp_path: Path) -> None:
    with Swarm.created(tmp_path) as swarm:
        one, two, three = (swarm.peer(name).start("--team", team) for name, team in TEAMS.items())
        swarm.until("a round of all", lambda: any(len(one.members_of(round)) == 3 for round in one.commits))
        heard = {each["peer"]: each["team"] for each in one.status()["swarm"]}
        assert heard == {two.peer_id: "Équipe", three.peer_id: "Night owls"}
        three.leave()
        two.leave()
        two.start("--team", "")
        swarm.until("its new start", lambda: any(each["team"] == "" for each in one.status()["swarm"]))
        one.leave()
        told = json.loads(swarm.command(one.folder, "ledger", "--json"))
        (owls,) = told["teams"]
        of = {each["peer"]: each for each in told["members"]}
        assert (owls["team"], owls["peers"]) == ("Night owls", 2)
        assert owls["tokens"] == of[one.peer_id]["tokens"] + of[three.peer_id]["tokens"]
        assert of[two.peer_id]["team"] == "" and of[two.peer_id]["tokens"] > 0
        assert "Night owls" in swarm.command(one.folder, "ledger")
        swarm.command(one.folder, "page", str(tmp_path / "www"))
        assert json.loads((tmp_path / "www" / "run.json").read_text())["teams"] == [owls]
