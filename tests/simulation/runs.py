"""One simulated run from a seed, and its outcome."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import trio
from trio.testing import MockClock

from protocol.memory_network import Weather
from tests.simulation.determinism import deterministic_trio
from tests.simulation.processes import Overseer
from tests.simulation.scenarios import ROUGH, Troubles, churn
from tests.simulation.world import World, disk_space

Scenario = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Finished:
    """What a run left.  failure: the invariant that did not hold, as a sentence; None when all did."""

    seed: int
    failure: str | None
    trace: list[str]
    trace_hash: str
    commits: int
    virtual_s: float
    messages: int


def simulate(peers: int, scenario: Scenario, seed: int = 1, weather: Weather | None = None) -> Finished:
    """Run `scenario` in a world of `peers` seats under virtual time.  Never raises for what the peers do."""
    worlds: list[World] = []

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            worlds.append(World(nursery, folder, seed, peers, weather))
            try:
                await scenario(worlds[0])
            finally:
                worlds[0].close()
            nursery.cancel_scope.cancel()
        return trio.current_time()

    failure, virtual_s = None, 0.0
    with disk_space() as folder, deterministic_trio(seed):
        try:
            virtual_s = trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[Overseer()])
        except BaseExceptionGroup as group:
            failure = _cause(group)
        except Exception as error:  # noqa: BLE001 - whatever a peer dies of is this run's result
            failure = _cause(error)
    world = worlds[0]
    return Finished(seed, failure, world.trace, world.trace_hash(), world.judge.commits_checked, virtual_s,
                    world.wire.messages)


def rough(peers: int, rounds: int, seed: int, troubles: Troubles = ROUGH) -> Finished:
    """Joins, deaths, freezes, partitions, lost and doubled gossip."""
    async def scenario(world: World) -> None:
        await churn(world, rounds, troubles, founders=min(peers, 4))

    weather = Weather(gossip_loss=0.1, gossip_copies=0.1, gossip_late=0.1, request_loss=0.02)
    return simulate(peers, scenario, seed, weather)


def rough_job(job: tuple[int, int, int]) -> Finished:
    """(peers, rounds, seed): for a pool of processes."""
    return rough(*job)


def _cause(error: BaseException) -> str:
    """The first single exception, and where it was raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno} in {frame.name})"
