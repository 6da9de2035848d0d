"""Lines measured by a peer whose swarm trains, and a peer with rate caps that trains with others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.node.commands import ROUNDS_AGO
from tests.e2e.swarm import Swarm

pytestmark = pytest.mark.slow


def test_a_capped_peer_trains_along_and_the_lines_to_it_are_measured(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.create_run()
        free, capped = swarm.peer("free"), swarm.peer("capped")
        free.start()
        capped.start("--max-up", "4", "--max-down", "500kB")
        swarm.equal(swarm.whole(free, capped), free, capped)
        swarm.until("there is a past result", lambda: free.committed >= ROUNDS_AGO)
        printed = swarm.command(free.folder, "bench", "--only", "lines", "--json")
        found = json.loads(printed.splitlines()[-1])
        (line,) = found["lines"]["peers"]
        assert (line["name"], line["peer"]) == ("capped", capped.peer_id) and found["run"]["members"] == 2
        assert line["down_bytes_per_s"] > 0 or line["problem"] == "it sent nothing in time"  # on a busy computer
        swarm.equal(swarm.newest() + 1, free, capped)
