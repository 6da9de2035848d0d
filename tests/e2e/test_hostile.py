"""A real peer under attack by real peers: the swarm goes on, and whoever can be named is out."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.e2e.attacks import BANNED, FLOODS
from tests.e2e.hostile import MEMORY_BYTES, Assault
from tests.e2e.swarm import Swarm

pytestmark = pytest.mark.slow


def test_attacks_cost_their_peer_the_connection_and_the_swarm_goes_on(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.create_run()
        for name in ("one", "two", "three"):
            swarm.peer(name).start()
        assault = Assault(swarm, swarm.peers[0], patient=False)
        trio.run(assault.run)
        for outcome in assault.outcomes:
            assert outcome.grown < MEMORY_BYTES, outcome
            assert outcome.name in FLOODS or bool(outcome.reason) == (outcome.name in BANNED), outcome
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
        assert all(peer.lives == 1 for peer in swarm.peers)
