"""A peer that rests while the others go on, and what they get from it."""

from __future__ import annotations

import pytest

from protocol.wire.presence import WhyIdle
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World


@pytest.mark.parametrize("serves", [True, False])
def test_a_peer_that_rests_serves_a_newcomer_unless_its_owner_said_no(serves: bool) -> None:
    def served(seat: Seat) -> int:
        return seat.node._swarm.up_bytes if seat.node is not None else 0

    async def scenario(world: World) -> None:
        *first, newcomer = world.seats
        for seat in first:
            world.start(seat)
        await world.until_round(5, within_s=120)
        rests = first[0].node
        assert rests is not None
        rests.serve_while_paused(serves)
        rests.rest(WhyIdle.PAUSED, "paused")
        before, others_before = served(first[0]), served(first[1]) + served(first[2])
        world.start(newcomer)
        await world.until("it came in", lambda: newcomer.node is not None and newcomer.node.rounds >= 8, within_s=120)
        assert served(first[1]) + served(first[2]) > others_before
        assert (served(first[0]) > before) is serves
        before = served(first[0])
        rests.go_on(WhyIdle.PAUSED)
        world.faults.kill(newcomer)
        await world.until_round(13, within_s=120)
        world.start(newcomer)
        await world.until("back again", lambda: newcomer.node is not None and newcomer.node.rounds >= 14, within_s=120)
        assert served(first[0]) > before, "who trains serves, too"

    holds(simulate(4, scenario))
