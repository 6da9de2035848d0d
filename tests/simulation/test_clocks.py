"""A peer whose clock is wrong is told so by the others' clocks, and takes part like the others."""

from __future__ import annotations

import pytest

from protocol.events.events import Notice
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.world import World


@pytest.mark.slow
def test_only_the_peer_whose_clock_is_wrong_is_told_once() -> None:
    told: list[tuple[int, str]] = []
    skews: list[str] = []

    async def scenario(world: World) -> None:
        world.seats[0].clock_ahead_s = 7380.0
        world.listeners.append(
            lambda seat, event: (
                told.append((seat.number, event.text)) if isinstance(event, Notice) and "clock" in event.text else None
            )
        )
        await begin(world)
        skews.extend(seat.node.status().clock_skew for seat in world.seats if seat.node is not None)

    holds(simulate(4, scenario))
    skew = "2 h 3 min ahead of the clocks of"
    assert told == [(0, f"this computer's clock is {skew} 2 peers; set the clock, because invitations expire by it")]
    assert skews == [f"{skew} 3 peers", "", "", ""]
