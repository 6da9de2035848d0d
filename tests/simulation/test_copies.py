"""A peer whose data directory was set back does not know what it voted: it says nothing as a voter until that is past."""

from __future__ import annotations

import pytest

from protocol.events.events import Event, Notice, RoundCommitted, RoundVoted
from protocol.node.round_parts import ABSTENTIONS
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World


@pytest.mark.slow
def test_a_peer_that_was_set_back_votes_again_after_two_rounds() -> None:
    async def scenario(world: World) -> None:
        await begin(world, 4)
        events: list[Event] = []
        copy = world.seats[0]

        def listen(seat: Seat, event: Event) -> None:
            if seat is copy:
                events.append(event)

        world.faults.kill(copy)
        copy.is_copy = True
        world.listeners.append(listen)
        world.start(copy)
        await world.until("its vote", lambda: any(isinstance(event, RoundVoted) for event in events), within_s=120)
        committed = [event.round for event in events if isinstance(event, RoundCommitted)]
        [voted, *_] = [event.round for event in events if isinstance(event, RoundVoted)]
        assert voted == committed[ABSTENTIONS - 1] + 1, "it took part in two rounds without a vote"
        assert Notice("info", f"this peer votes again from round {voted} on") in events

    holds(simulate(4, scenario))
