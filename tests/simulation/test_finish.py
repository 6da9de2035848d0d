"""`peer finish` in a simulated swarm: a peer whose round cannot be completed any more leaves all the same."""

from __future__ import annotations

import pytest

from protocol.events.events import Event, Notice
from protocol.node.lifecycle import ALONE_S
from protocol.wire.presence import Role
from tests.simulation.rollouts import RolloutJudge, Seats, played
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World, simulated_run

pytestmark = pytest.mark.slow


def test_who_finishes_with_others_completes_its_round() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        seat, node = world.seats[0], world.seats[0].node
        assert node is not None
        rounds = node.rounds
        assert node.finish() > 0
        status = node.status()
        assert status.finishing and (status.finishing_left_s or 0) > 0
        await world.until("it has left", lambda: not seat.up, within_s=60)
        assert node.rounds == rounds + 1

    holds(simulate(3, scenario))


def test_who_finishes_when_the_others_have_left_leaves_too() -> None:
    said: list[Event] = []

    async def scenario(world: World) -> None:
        await begin(world)
        last, *others = world.seats
        world.listeners.append(lambda seat, event: said.append(event) if seat is last else None)
        for seat in others:
            world.leave(seat)
        await world.until("the goodbyes", lambda: world.up() == [last], within_s=10)
        assert last.node is not None
        last.node.finish()
        await world.until("it has left", lambda: not last.up, within_s=ALONE_S + 60)

    holds(simulate(3, scenario, signed=simulated_run(min_members=3)))
    assert any(isinstance(event, Notice) and "nobody is left" in event.text for event in said)


def test_a_trainer_whose_rollout_peers_have_gone_says_what_it_waits_for_and_leaves() -> None:
    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        await begin(world, 2, within_s=240)
        (trainer,) = seats[Role.TRAINER]

        def waits(seat: Seat) -> bool:
            return seat.node is not None and seat.node.status().why_idle == "waiting for rollouts"

        for seat in seats[Role.ROLLOUT]:
            world.leave(seat)
        await world.until("nothing is left to learn from", lambda: len(world.up()) == 2 and waits(trainer), within_s=60)
        assert trainer.node is not None
        trainer.node.finish()
        assert "batches of rollouts" in trainer.node.status().finishing
        await world.until("it has left", lambda: not trainer.up, within_s=ALONE_S + 60)

    played(scenario, {Role.TRAINER: 1, Role.ROLLOUT: 2, Role.VALIDATOR: 1})
