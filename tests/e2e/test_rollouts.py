"""A run with rollouts among real peers: a trainer, a rollout peer and a validator make versions out of verified rollouts."""

from __future__ import annotations

import json
from pathlib import Path

from protocol import events as ev
from tests.e2e.swarm import TINY_MODEL, Swarm

RUN = (
    TINY_MODEL.replace("[data]", '[data]\ncorpus = "examples"')
    + """
[rounds]
inner_steps = 10
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
[rl]
environment = "mixture(sort(digits=4), reverse)"
warm_rounds = 1
prompts_per_batch = 2
group_size = 4
batches_per_round = 2
max_tokens = 8
row_tokens = 64
micro_batch_tokens = 512
optimizer_steps = 1
lr = 1e-3
warmup_steps = 0
"""
)
VERSIONS = 3
"""Rounds that learn from rollouts."""


def test_versions_come_of_rollouts_that_were_generated_proved_and_verified(tmp_path: Path) -> None:
    with Swarm(tmp_path, RUN) as swarm:
        swarm.create_run()
        trainer = swarm.peer("trainer").start("--role", "trainer")
        writer, validator = (
            swarm.peer("writer").start("--role", "rollout"),
            swarm.peer("validator").start("--role", "validator"),
        )
        swarm.until("some versions of rollouts", lambda: len(trainer.heard(ev.RolloutsUsed)) >= VERSIONS)
        swarm.until("a verdict", lambda: validator.heard(ev.BatchJudged))
        last = trainer.heard(ev.RolloutsUsed)[VERSIONS - 1].round
        swarm.until("all to have them", lambda: all(last + 1 in peer.digests for peer in (trainer, writer, validator)))

        assert trainer.heard(ev.RolloutsUsed)[0].round >= 1, "the first round reads examples"
        made = {event.root for event in writer.heard(ev.RolloutsGenerated)}
        used = [root for event in trainer.heard(ev.RolloutsUsed) for root in event.batches]
        assert set(used) <= made and len(set(used)) == len(used), "each batch is learned from once"
        decided = {event.root: event.verdict for event in trainer.heard(ev.BatchDecided)}
        assert all(decided[root] == "accepted" for root in used)
        assert all(event.rejected == 0 for event in validator.heard(ev.BatchJudged))
        assert not trainer.heard(ev.RolloutPeerSetAside) and not trainer.heard(ev.ValidatorSetAside)
        assert len({peer.digests[last + 1] for peer in (trainer, writer, validator)}) == 1

        swarm.until("all to hear of rewards", lambda: all(p.heard(ev.RolloutsCounted) for p in (writer, validator, trainer)))
        kept = json.loads(swarm.command(validator.folder, "ledger", "--json"))
        (credited,) = (each for each in kept["members"] if each["peer"] == writer.peer_id)
        assert credited["accepted_tokens"] == kept["accepted_tokens"] > 0 == credited["tokens"]
        for peer, text in (
            (writer, "this peer made "),
            (validator, "this peer judged "),
            (trainer, "this trainer learned from "),
        ):
            assert text in swarm.command(peer.folder, "rollouts")
            told = peer.status()["rollouts"]
            assert told["accepted"] > 0 == told["rejected"] and told["version"] > 1
