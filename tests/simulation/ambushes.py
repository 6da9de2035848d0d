"""Worlds in which one fault, and hardly another, can be met: for mutations that worlds drawn from seeds seldom show.

Each holds for the protocol as it is.
"""

from __future__ import annotations

import trio

from protocol.events.events import Event, RoundProposed
from tests.simulation.mutations import mutated
from tests.simulation.runs import FAIR, Finished, Scenario, begin, simulate
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import World

THIN_LINES = Weather(bytes_per_s=20e3, latency_s=0.05)
"""Lines on which the parts of an exchange take a second."""


async def quick_elector_with_the_last_name(world: World) -> None:
    """An elector is ready seconds before the others, and no later name is alive any more."""
    *others, last = sorted(world.seats, key=lambda seat: seat.peer)
    for seat in world.seats:
        seat.step_s = 1.0
    others[-1].step_s = 0.4
    await begin(world, 4)
    world.faults.kill(last)
    await world.until_round(8, within_s=120.0)


async def members_cut_off_in_the_exchange(world: World) -> None:
    """In each round a member is cut off a moment later than in the one before, and comes back after the record."""
    struck: set[int] = set()

    async def cut_off(seat: Seat, moment_s: float) -> None:
        await trio.sleep(moment_s)
        world.faults.partition([seat], [other for other in world.seats if other is not seat])
        await trio.sleep(5.0)
        world.faults.heal()

    def on_event(seat: Seat, event: Event) -> None:
        if isinstance(event, RoundProposed) and event.round >= 2 and event.round not in struck:
            struck.add(event.round)
            others = [other for other in world.seats if other is not seat]
            world.spawn(cut_off, others[event.round % len(others)], 0.02 + 0.03 * len(struck))

    for seat in world.seats:
        seat.step_s = 0.3
    world.listeners.append(on_event)
    await begin(world, 20, within_s=600.0)


AMBUSHES: dict[str, tuple[int, Scenario, Weather]] = {
    "ready-member-dropped": (5, quick_elector_with_the_last_name, FAIR),
    "own-average-kept": (4, members_cut_off_in_the_exchange, THIN_LINES),
}
"""Peers, scenario and weather in which a mutation is found, by its name."""
SEED = 2
"""A seed with which they are found; the draws of a world follow from the run's ID as well."""


def ambush(name: str, mutation: str | None) -> Finished:
    """Run the ambush for the mutation `name` with a build that is broken by `mutation`, or by none."""
    peers, scenario, weather = AMBUSHES[name]
    with mutated(mutation):
        return simulate(peers, scenario, weather=weather, seed=SEED)
