"""The whole protocol under virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

from tests.simulation.determinism import deterministic_trio
from tests.simulation.scenarios import GENTLE, ROUGH, churn
from tests.simulation.world import World, disk_space


def simulate(peers: int, scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> World:
    """Run `scenario` in a world of `peers` seats; give the world back for looking at its trace."""
    with disk_space() as folder, deterministic_trio(seed):
        async def main() -> World:
            async with trio.open_nursery() as nursery:
                world = World(nursery, folder, seed, peers)
                await scenario(world)
                nursery.cancel_scope.cancel()
            return world
        return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_three_peers_commit_rounds_together() -> None:
    async def scenario(world: World) -> None:
        for seat in world.seats:
            world.start(seat)
        await world.until_round(6, within_s=120)
        await world.until_equal(within_s=20)

    world = simulate(3, scenario)
    assert world.judge.commits_checked >= 6


def test_twenty_peers_thirty_rounds_with_joins_leaves_and_crashes() -> None:
    """Agreement, parity, mass and order are judged at every event; progress by the scenario's bounds."""
    async def scenario(world: World) -> None:
        await churn(world, 30, GENTLE, founders=8)

    world = simulate(20, scenario, seed=7)
    assert world.judge.commits_checked >= 30
    assert sum(seat.lives for seat in world.seats) > 20, "nobody ever came back"
