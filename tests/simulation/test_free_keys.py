"""Free keys beside honest trainers in an open run that counts tokens: they name batches that nobody made."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from unittest.mock import patch

import pytest
import trio

from protocol.chain.records import most_tokens
from protocol.events.events import Event, NoticeCode
from protocol.node.contributor import Contributor, Work
from protocol.rollouts.selection import Selection
from protocol.run.manifest import SignedManifest
from protocol.trainer_link import ComputeTask, Contribution, TrainerLink
from protocol.wire.hashes import hash_bytes
from protocol.wire.messages import UsedBatch, learned_from
from protocol.wire.presence import Role
from tests.attacks.stage import identity_of
from tests.simulation.rollouts import cast, rl_run
from tests.simulation.runs import holds, is_notice, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World, changed

HONEST = {Role.TRAINER: 3, Role.ROLLOUT: 1, Role.VALIDATOR: 1}
STRANGERS = 4
TOTAL = 20_000
"""Tokens: a hundred honest records, and less than what one stranger claims in a record."""


def open_run() -> SignedManifest:
    """An open run of rollouts with three named founders, in which short answers are allowed to be long."""
    manifest = rl_run().manifest
    assert manifest.rl is not None
    rl = manifest.rl.model_copy(update={"max_tokens": 2048, "row_tokens": 4096})
    founders = sorted(identity_of(number).peer_id for number in range(HONEST[Role.TRAINER]))
    return changed(rl_run(), total_tokens=TOTAL, founders=founders, rl=rl)


class FalseLearners:
    """Replaces the learning of some peers: they contribute zeros, and claim as many tokens as they may."""

    def __init__(self, signed: SignedManifest) -> None:
        self._manifest, self._honest = signed.manifest, Contributor._learn
        self.peers: dict[str, World] = {}

    async def learn(
        self, contributor: Contributor, trainer: TrainerLink, task: ComputeTask, work: Work, selection: Selection
    ) -> Contribution:
        """Learn as `Contributor._learn` does, honestly unless the peer is one of `peers`."""
        me, rl = contributor._session.me, self._manifest.rl
        if me not in self.peers:
            return await self._honest(contributor, trainer, task, work, selection)
        assert rl is not None
        await trio.sleep(1.0)
        work.training.set()
        roots = (hash_bytes("none", f"{me} {task.round} {number}".encode()) for number in range(rl.batches_per_round))
        learned = learned_from([UsedBatch(me, root, rl.tokens_per_batch) for root in roots], 0.5)
        work.learn(learned)
        nothing = contributor._nothing(task.round)
        self.peers[me].judge.on_contribution(me, nothing.data, None)
        return replace(nothing, tokens=most_tokens(self._manifest, task.round, learned))


@pytest.mark.slow
def test_free_keys_that_are_most_of_the_members_do_not_end_a_run_of_rollouts() -> None:
    signed, honest = open_run(), sum(HONEST.values())
    false = FalseLearners(signed)
    ended: list[Event] = []

    async def scenario(world: World) -> None:
        _, found = cast(world, HONEST)
        world.listeners.append(lambda seat, event: ended.append(event) if is_notice(event, NoticeCode.RUN_ENDED) else None)
        for seat in world.seats[honest:]:
            seat.role, seat.make_trainer = Role.TRAINER, found[Role.TRAINER][0].make_trainer
            false.peers[seat.peer] = world
            world.judge.liars[seat.peer] = None
        for seat in world.seats[:honest]:
            world.start(seat)
        trainer = found[Role.TRAINER][0]
        await world.until("a record", lambda: trainer.node is not None and trainer.node.rounds > 0, 120)
        for seat in world.seats[honest:]:
            world.start(seat)
        await world.until(
            "three records with most of them", lambda: len(crowded(trainer, false.peers)) >= 3 or bool(ended), 120
        )
        assert not ended, "one record of strangers ended the run"
        assert trainer.node is not None
        progress = trainer.node._history.roster.progress
        claimed = max(member.tokens for member in trainer.node.commit_at(0).record.members)
        assert progress.tokens < progress.rounds * 2 * (HONEST[Role.TRAINER] + 1) * 4 * claimed < TOTAL

    async def learn(
        contributor: Contributor, trainer: TrainerLink, task: ComputeTask, work: Work, selection: Selection
    ) -> Contribution:
        return await false.learn(contributor, trainer, task, work, selection)

    with patch.object(Contributor, "_learn", learn):
        holds(simulate(honest + STRANGERS, scenario, signed=signed))


def crowded(seat: Seat, strangers: Collection[str]) -> list[int]:
    """Return the rounds of records of which most members are strangers."""
    assert seat.node is not None
    commits = [seat.node.commit_at(round) for round in range(seat.node.rounds)]
    shares = [[member.peer in strangers for member in commit.record.members] for commit in commits]
    return [round for round, share in enumerate(shares) if 2 * sum(share) > len(share)]
