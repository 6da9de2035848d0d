"""Real peers in a run with rollouts beside a crowd of keys that copies, withholds and floods."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.events import events as ev
from tests.e2e.swarm import ROLLOUT_RUN, Swarm
from tests.e2e.test_rollouts import learns

pytestmark = pytest.mark.slow

VERSIONS = 6


def test_a_crowd_of_keys_that_copies_and_withholds_stops_nobody(tmp_path: Path) -> None:
    with Swarm(tmp_path, ROLLOUT_RUN) as swarm:
        swarm.create_run()
        trainer, writer, validator, crowd = map(swarm.peer, ("trainer", "writer", "validator", "crowd"))
        crowd.program = ("tests.e2e.crowding_peer",)
        for peer, role in ((trainer, "trainer"), (writer, "rollout"), (validator, "validator"), (crowd, "seed")):
            peer.start("--role", role)
        used = learns(swarm, trainer, VERSIONS)

        accepted = [event for event in trainer.heard(ev.BatchDecided) if event.verdict == "accepted"]
        assert {event.author for event in accepted} == {writer.peer_id}, "keys that nobody met count for nothing"
        assert {root for event in used for root in event.batches} <= {event.root for event in accepted}
        assert writer.peer_id not in {event.peer for event in trainer.heard(ev.RolloutPeerSetAside)}
        for peer in (trainer, writer, validator):
            assert not peer.heard(ev.TrainerStopped), "its trainer process lived"
