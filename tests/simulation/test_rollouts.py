"""Rollouts in a simulated swarm: committed, dealt, judged and learned from, whoever lies and dies."""

from __future__ import annotations

from protocol.wire.presence import Role
from tests.simulation.rollouts import ROLES, cast, rl_run
from tests.simulation.runs import holds, simulate
from tests.simulation.world import World


def test_trainers_learn_from_rollouts_that_validators_accepted() -> None:
    async def scenario(world: World) -> None:
        judge, seats = cast(world, ROLES)
        for seat in world.seats:
            world.start(seat)
        await world.until_round(6, within_s=240)
        assert all(judge.learned[seat.number] >= 8 for seat in seats[Role.TRAINER])
        assert not judge.aside and judge.decisions["rejected"] == 0

    holds(simulate(sum(ROLES.values()), scenario, signed=rl_run()))
