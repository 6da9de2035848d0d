"""A peer that rests while the others go on, and what they get from it."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from protocol.events.events import BatchJudged, Event, RolloutsGenerated
from protocol.events.status import WhyIdle
from protocol.wire.presence import Phase, Role
from tests.simulation.rollouts import RolloutJudge, Seats, played
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World


@pytest.mark.slow
@pytest.mark.parametrize("serves", [False, True])
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
        rests.permit.suspend(WhyIdle.PAUSED, "paused")
        before, others_before = served(first[0]), served(first[1]) + served(first[2])
        world.start(newcomer)
        await world.until("it came in", lambda: newcomer.node is not None and newcomer.node.rounds >= 8, within_s=120)
        assert served(first[1]) + served(first[2]) > others_before
        assert (served(first[0]) > before) is serves
        before = served(first[0])
        rests.permit.restore(WhyIdle.PAUSED)
        world.faults.kill(newcomer)
        await world.until_round(13, within_s=120)
        for other in first[1:]:
            assert other.node is not None
            other.node._swarm.serve(False)  # so that it depends on the first one alone
        world.start(newcomer)
        await world.until("back again", lambda: newcomer.node is not None and newcomer.node.rounds >= 14, within_s=120)
        assert served(first[0]) > before, "who trains serves, too"

    holds(simulate(4, scenario))


@pytest.mark.slow
@pytest.mark.parametrize("role", [Role.ROLLOUT, Role.VALIDATOR])
def test_a_paused_peer_makes_and_judges_nothing_serves_what_it_made_and_goes_on(role: Role) -> None:
    made: Counter[str] = Counter()

    def count(seat: Seat, event: Event) -> None:
        if isinstance(event, RolloutsGenerated) or (isinstance(event, BatchJudged) and event.validator == seat.peer):
            made[seat.peer] += 1

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        world.listeners.append(count)
        world.start_all()
        rests = seats[role][0]
        await world.until("it works", lambda: made[rests.peer] >= 2, within_s=240)
        assert rests.node is not None
        rests.node.permit.suspend(WhyIdle.PAUSED, "paused")
        assert (rests.node.phase, rests.node.status().why_idle) == (Phase.PAUSED, "paused")
        await trio.sleep(1)  # a judgement that was made by then is still said
        before, round = made[rests.peer], max(world.rounds())
        await world.until_round(round + 3, within_s=240)
        assert made[rests.peer] == before and rests.node.status().why_idle == "paused"
        assert rests.node._swarm.serves and not judge.aside
        rests.node.permit.restore(WhyIdle.PAUSED)
        await world.until("it works again", lambda: made[rests.peer] > before, within_s=240)
        assert rests.node.phase is not Phase.PAUSED

    played(scenario)


def test_who_generates_or_verifies_says_the_one_reason_why_it_does_not() -> None:
    """A rollout peer whose batches nobody judges, and a validator that is dealt nothing."""

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        await begin(world, 2, within_s=240)
        (trainer,), (worker,), (validator,) = seats[Role.TRAINER], seats[Role.ROLLOUT], seats[Role.VALIDATOR]
        world.faults.kill(trainer)

        def says(seat: Seat, why: WhyIdle) -> bool:
            return seat.node is not None and seat.node.status().why_idle == why.value

        await world.until("batches wait", lambda: says(worker, WhyIdle.WAITING_FOR_VERDICTS), within_s=240)
        await world.until("it has nothing", lambda: says(validator, WhyIdle.NOTHING_TO_CHECK), within_s=240)
        assert worker.node is not None and validator.node is not None
        assert (worker.node.phase, validator.node.phase) == (Phase.GENERATING, Phase.VERIFYING)

    played(scenario, {Role.TRAINER: 1, Role.ROLLOUT: 1, Role.VALIDATOR: 1})
