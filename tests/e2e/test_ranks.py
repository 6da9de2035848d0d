"""A member whose trainer has two ranks and whose rates are capped trains with a member of one process."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from protocol.events import events as ev
from protocol.node.commands import ROUNDS_AGO
from tests.e2e.swarm import TINY_RUN, Peer, Swarm

pytestmark = pytest.mark.slow


def trainers_of(peer: Peer) -> list[psutil.Process]:
    """The ranks of a peer's trainer."""
    found = [each for each in psutil.Process(peer.pid).children(recursive=True) if "trainer" in each.cmdline()]
    return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]


def test_a_capped_member_with_two_ranks_trains_along_is_measured_and_goes_on_when_a_rank_is_killed(tmp_path: Path) -> None:
    with Swarm.created(tmp_path, TINY_RUN.replace("inner_steps = 150", "inner_steps = 20")) as swarm:
        one, two = swarm.peer("one").start(), swarm.peer("two")
        two.start("--processes", "2", "--max-up", "4", "--max-down", "500kB")
        swarm.equal(swarm.whole(one, two), one, two)
        swarm.until("there is a past result", lambda: one.committed >= ROUNDS_AGO)
        found = json.loads(swarm.command(one.folder, "bench", "--only", "lines", "--json").splitlines()[-1])
        (line,) = found["lines"]["peers"]
        assert (line["name"], line["peer"]) == ("two", two.peer_id) and found["run"]["members"] == 2
        assert line["down_bytes_per_s"] > 0 or line["problem"] == "it sent nothing in time"  # on a busy computer
        ranks = trainers_of(two)
        assert len(ranks) == 2
        ranks[1].kill()
        swarm.until("the end of the trainer", lambda: two.heard(ev.TrainerStopped))
        assert "was killed by SIGKILL" in two.heard(ev.TrainerStopped)[0].reason
        _, alive = psutil.wait_procs(ranks, timeout=60)
        assert not alive, "the ranks end together"
        swarm.until("another trainer", lambda: len(two.heard(ev.TrainerStarted)) == 2)
        swarm.equal(swarm.whole(one, two), one, two)
