"""What happens in a simulated world: schedules of joins, deaths, freezes and partitions drawn from the world's seed."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from tests.simulation.world import Seat, World


@dataclass(frozen=True)
class Troubles:
    """Chances, in every step of a few virtual seconds, that each of these happens to somebody."""

    join: float = 0.3
    leave: float = 0.05
    crash: float = 0.15
    restart: float = 0.5
    freeze: float = 0.0
    trainer: float = 0.05
    partition: float = 0.0


GENTLE = Troubles()
ROUGH = Troubles(crash=0.25, freeze=0.15, trainer=0.1, partition=0.06)
STEP_S = 4.0
ROUND_BOUND_S = 60.0
"""A round is committed within so much virtual time, whatever happens, when nobody is split off."""


async def churn(world: World, rounds: int, troubles: Troubles, *, founders: int = 5) -> None:
    """Begin with some peers; let others come, go, die and come back until `rounds` are committed; then let it calm."""
    for seat in world.seats[:founders]:
        world.start(seat)
    unborn, down = list(world.seats[founders:]), list[Seat]()
    last_round, since = 0, trio.current_time()
    while min(world.rounds(), default=0) < rounds - 3:
        await trio.sleep(STEP_S * (0.5 + world.random.random()))
        await _trouble(world, troubles, unborn, down)
        newest = max(world.rounds(), default=0)
        if newest > last_round:
            last_round, since = newest, trio.current_time()
        assert trio.current_time() - since < ROUND_BOUND_S, f"no round after {last_round} in {ROUND_BOUND_S:.0f} s"
    world.heal()
    for seat in world.up():
        world.thaw(seat)
    for seat in down:
        world.start(seat)
    await world.until_round(rounds, within_s=240)
    await world.until_equal(within_s=60)


async def _trouble(world: World, troubles: Troubles, unborn: list[Seat], down: list[Seat]) -> None:
    """At most one of each kind; a majority of those who were up stays up."""
    random, up = world.random, world.up()
    if unborn and random.random() < troubles.join:
        world.start(unborn.pop(0))
    if down and random.random() < troubles.restart:
        world.start(down.pop(random.randrange(len(down))))
    if len(up) > 3 and random.random() < troubles.crash:
        seat = random.choice(up)
        world.crash(seat)
        down.append(seat)
    up = world.up()
    if len(up) > 4 and random.random() < troubles.leave:
        seat = random.choice(up)
        world.leave(seat)
        await world.until("the goodbye", lambda: not seat.up, within_s=5)
        down.append(seat)
    up = world.up()
    if len(up) > 3 and random.random() < troubles.freeze:
        seat = random.choice(up)
        world.freeze(seat)
        await trio.sleep(random.choice([2.0, 8.0, 15.0]))
        world.thaw(seat)
    if up and random.random() < troubles.trainer:
        world.kill_trainer(random.choice(world.up()))
    if len(up) > 3 and random.random() < troubles.partition:
        few = random.sample(up, len(up) // 3)
        world.partition([seat for seat in up if seat not in few], few)
        await trio.sleep(random.choice([5.0, 20.0, 45.0]))
        world.heal()
