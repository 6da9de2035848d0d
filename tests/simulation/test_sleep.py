"""Peers on computers that sleep, with a clock that runs on meanwhile, and with one that stands still."""

from __future__ import annotations

import pytest
import trio

from tests.simulation.day import STEP_S, day_run
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.world import World

NIGHT_S = 3600.0


@pytest.mark.slow
def test_what_the_only_one_awake_has_done_at_night_is_kept_by_those_who_slept() -> None:
    """In a swarm of three: the two that slept are most of the electors, and were in the middle of a round."""

    async def scenario(world: World) -> None:
        for seat in world.seats:
            seat.step_s = world.random.uniform(*STEP_S)
        await begin(world, 4, within_s=1200)
        await trio.sleep(40)
        awake, *sleepers = world.seats
        for seat in sleepers:
            world.faults.freeze(seat)
        world.faults.partition([awake], sleepers)
        await trio.sleep(NIGHT_S)
        assert awake.node is not None and awake.node.rounds > 15
        night, tip = awake.node.rounds, awake.node.tip
        world.faults.heal()
        for seat in sleepers:
            world.faults.thaw(seat, NIGHT_S)
        await world.until_round(night + 2, within_s=600)
        await world.until_equal(within_s=60)
        assert {seat.node.tip_at(night) for seat in world.seats if seat.node is not None} == {tip}

    holds(simulate(3, scenario, signed=day_run()))
