"""The only elector of an open run is gone: the members that are left go on together, though none of them is punctual."""

from __future__ import annotations

import random

import pytest
import trio

from protocol.events.events import Event, RolledBack, RoundCommitted
from tests.attacks.stage import founded_run
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

ROUNDS = 25


@pytest.mark.parametrize(
    ("seed", "jitter", "killed"),
    [
        (1, 4.0, True),
        pytest.param(1, 4.0, False, marks=pytest.mark.slow),
        pytest.param(2, 1.0, False, marks=pytest.mark.slow),
    ],
)
def test_friends_go_on_in_one_history_beside_a_slow_newcomer(seed: int, jitter: float, killed: bool) -> None:
    """A busy computer (`jitter`: one of four rounds takes so many times as long) splits nobody.

    Strangers are remembered together, so the friends gave each other up because of the newcomer, and made records alone.
    With seed 2 the founder is another peer, which never comes.  killed: one of the two friends is killed meanwhile, and
    comes back after a minute.
    """

    async def scenario(world: World) -> None:
        draws, back = random.Random(seed), list[tuple[int, Event]]()
        founder, friend, cousin, newcomer = world.seats
        newcomer.step_s = 10 * friend.step_s

        def listen(seat: Seat, event: Event) -> None:
            if isinstance(event, RolledBack):
                back.append((seat.number, event))
            if isinstance(event, RoundCommitted):
                for each in (friend, cousin):
                    if each.trainer is not None:
                        each.trainer.step_s = each.step_s * draws.choice([1.0, 1.0, 1.0, jitter])

        def done(seat: Seat) -> int:
            return seat.node.status().round if seat.node is not None else 0

        world.listeners.append(listen)
        for seat in (founder, friend, cousin):
            world.start(seat)
        await world.until_round(5, within_s=120)
        world.faults.kill(founder)
        world.start(newcomer)
        if killed:
            await world.until_round(max(world.rounds()) + 5, within_s=120)
            world.faults.kill(cousin)
            await trio.sleep(60)
            world.start(cousin)
        wanted = max(world.rounds()) + ROUNDS
        await world.until("rounds without it", lambda: min(map(done, (friend, cousin))) >= wanted, within_s=600)
        assert not back, "nobody has lost a round"
        world.start(founder)
        await world.until_equal(within_s=120)
        assert not back

    holds(simulate(4, scenario, seed=seed, signed=founded_run(1)))
