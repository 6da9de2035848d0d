"""What heartbeats tell, the rate and the time to the end of a round from its first moment on; and how often they do."""

from __future__ import annotations

import pytest
import trio

from protocol.events.events import ComputeProgress, Event, ReadySent, RoundCommitted
from protocol.membership.heartbeats import SOONEST
from protocol.membership.liveness import BEAT_S
from tests.simulation.runs import begin, holds, simulate
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
        world.start_all()
        assert first.node is None or first.node.status().round_left_s is None
        await world.until_round(3, within_s=60)
        assert first.node is not None
        (known,) = first.node.status().swarm
        assert known.counted_tokens_per_s is not None and known.counted_tokens_per_s > 0
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


@pytest.mark.slow
def test_who_comes_late_is_ready_with_the_others_and_in_their_record() -> None:
    """A member is killed in the middle of a round, and comes back at once; nobody has to ask it to finish."""

    async def scenario(world: World) -> None:
        first, *_, last = world.seats
        ready: list[int] = []

        def listen(seat: Seat, event: Event) -> None:
            if seat is last and isinstance(event, ReadySent) and event.round == 2:
                ready.append(event.steps)

        world.listeners.append(listen)
        for seat in world.seats:
            seat.step_s = 3.0
            world.start(seat)
        await world.until_round(2, within_s=200)
        await world.until("half of the steps", lambda: first.node is not None and first.node.status().steps == 5, 60)
        world.faults.kill(last)
        world.start(last)
        await world.until_round(3, within_s=60)
        assert len(ready) == 1 and 1 <= ready[0] <= 5
        assert first.node is not None
        assert last.peer in {member.peer for member in first.node.commit_at(2).record.members}

    holds(simulate(4, scenario))


@pytest.mark.slow
def test_who_is_greeted_again_and_again_does_not_speak_to_all_each_time() -> None:
    async def scenario(world: World) -> None:
        first, second = world.seats
        await begin(world, 1)

        async def heard_in_a_minute(tell_every_s: float) -> int:
            before = world.wire.arrivals["gossip", second.peer]
            until = world.now() + 60
            while world.now() < until:
                assert first.node is not None
                first.node._activity.tell_now()
                await trio.sleep(tell_every_s)
            return world.wire.arrivals["gossip", second.peer] - before

        seldom, often = await heard_in_a_minute(60.0), await heard_in_a_minute(0.01)
        assert often <= seldom + 2 * 60 / (SOONEST * BEAT_S), "a heartbeat and the READY, a tenth of the time apart"

    holds(simulate(2, scenario))
