"""The only elector of an open run is gone: the members that are left go on together, though none of them is punctual."""

from __future__ import annotations

import random

import pytest
import trio

from protocol.events.events import Event, RolledBack, RoundCommitted
from protocol.run.admission import bearer_token, make_proof
from tests.attacks.stage import founded_run
from tests.simulation.returns import BEARER, NEVER_EXPIRES_S, ORGANISER, Entry, run_of
from tests.simulation.runs import holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

pytestmark = pytest.mark.slow

ROUNDS = 25


@pytest.mark.parametrize(
    ("seed", "jitter", "killed"),
    [
        (1, 4.0, True),
        (2, 1.0, False),
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


@pytest.mark.parametrize("entry", [Entry.INVITE, Entry.ANYONE])
def test_founder_that_left_after_a_few_records_of_its_own_follows_the_friend_who_went_on(entry: Entry) -> None:
    """All recorded work is the founder's, and the friend, who has just come, has no seat yet."""

    async def scenario(world: World) -> None:
        founder, friend = world.seats
        back = list[Event]()
        world.listeners.append(lambda seat, event: back.append(event) if isinstance(event, RolledBack) else None)
        run = run_of(entry, 1).run
        token = bearer_token(ORGANISER, run, BEARER, expires=NEVER_EXPIRES_S)
        for seat in world.seats if entry is Entry.INVITE else ():
            seat.admission = make_proof(token, run, seat.peer, BEARER)
            seat.introduced = frozenset({founder.peer} - {seat.peer})
        world.start(founder)
        await world.until_round(2, within_s=60)
        world.start(friend)
        await world.until("the friend to follow", lambda: friend.node is not None and friend.node.rounds >= 2, within_s=60)
        world.faults.kill(founder)
        left = max(world.rounds())
        await world.until_round(left + 10, within_s=240)
        world.start(founder)
        await world.until_equal(within_s=120)
        assert friend.node is not None and friend.node.rounds >= left + 10 and not back, "nobody has lost a round"

    holds(simulate(2, scenario, signed=run_of(entry, 1)))
