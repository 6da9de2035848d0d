"""The rate and the time to the end of a round, as status and heartbeats tell them from the first moment of a round."""

from __future__ import annotations

from protocol.events import ComputeProgress, Event, RoundCommitted
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World


def test_the_rate_outlives_its_round() -> None:
    async def scenario(world: World) -> None:
        first, second = world.seats
        seen: list[tuple[Seat, Event, float]] = []

        def listen(seat: Seat, event: Event) -> None:
            if seat.node is not None:
                seen.append((seat, event, seat.node.status().tokens_per_s))

        world.listeners.append(listen)
        for seat in world.seats:
            world.start(seat)
        assert first.node is None or first.node.status().round_left_s is None
        await world.until_round(3, within_s=60)
        between = [rate for seat, event, rate in seen if isinstance(event, RoundCommitted)]
        assert between and all(rate > 0 for rate in between), "a rate of 0 where a round ends and the next begins"
        steps = [event for seat, event, _ in seen if seat is first and isinstance(event, ComputeProgress)]
        assert all((event.left_s == 0) == (event.steps == event.total_steps) for event in steps)
        assert [event.left_s for event in steps[:10]] == sorted((event.left_s for event in steps[:10]), reverse=True)
        await world.until("a round that has begun", lambda: first.phase == "computing", within_s=20)
        assert first.node is not None and (first.node.status().round_left_s or 0) > 0
        await world.until(
            "its heartbeat",
            lambda: (
                second.node is not None
                and any(known.peer == first.peer and known.tokens_per_s > 0 for known in second.node.status().swarm)
            ),
            20,
        )

    holds(simulate(2, scenario))
