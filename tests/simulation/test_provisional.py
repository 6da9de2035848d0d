"""Rounds that were made without some electors, as the status of the others tells them."""

from __future__ import annotations

import pytest

from protocol.events.status import NodeStatus
from tests.attacks.stage import founded_run
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World


def status(seat: Seat) -> NodeStatus:
    assert seat.node is not None
    return seat.node.status()


@pytest.mark.slow
def test_the_electors_that_are_away_are_named_until_they_are_back() -> None:
    async def scenario(world: World) -> None:
        here, away = world.seats[2:4], world.seats[:2]
        for seat in world.seats[:4]:
            world.start(seat)
        await world.until_round(2, within_s=60)
        assert not any(status(seat).unconfirmed_by for seat in world.seats[:4])
        for seat in away:
            world.faults.kill(seat)
        await world.until(
            "rounds without them", lambda: all(status(seat).provisional_rounds > 3 for seat in here), within_s=120
        )
        for seat in here:
            assert status(seat).unconfirmed_by == sorted(each.peer for each in away)
            assert status(seat).round == status(seat).provisional_rounds + status(seat).final_rounds
        for seat in away:
            world.start(seat)
        await world.until("all are back", lambda: not any(status(seat).unconfirmed_by for seat in here), within_s=120)

    holds(simulate(4, scenario, signed=founded_run(4)))
