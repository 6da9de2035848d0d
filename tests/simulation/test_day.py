"""Peers at home in a part of a day, and what counting all that a peer holds finds."""

from __future__ import annotations

import pytest
import trio

from tests.simulation.census import Census, census
from tests.simulation.day import DESKTOP, LAPTOP, Pace, live
from tests.simulation.processes import PROCESS
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.world import World

pytestmark = pytest.mark.slow

A_MOMENT = 8
"""So many more may be there by chance: two of each peer's statements, say."""
BRISK = Pace(gap_s=(60.0, 120.0), sleeps_s=(120.0,), full_s=(200.0,))


def test_peers_at_home_come_back_by_themselves_and_hold_no_more_than_the_others() -> None:
    day = live(0.4, seed=7, pace=BRISK)
    assert day.failure is None, day.failure
    assert {*day.disturbed} == {LAPTOP, DESKTOP} and day.lives[DESKTOP] > 1
    for counts in day.counts:
        calm = counts[0] | counts[1]
        for seat in (LAPTOP, DESKTOP):
            held = counts[seat]
            assert {name: held[name] for name in held if _is_more(name, held, calm)} == {}


def _is_more(name: str, held: Census, calm: Census) -> bool:
    return not name.startswith("bytes ") and held[name] > calm[name] + A_MOMENT


def test_the_census_finds_a_table_that_grew_an_object_a_task_and_a_file() -> None:
    counted: list[Census] = []

    async def scenario(world: World) -> None:
        await begin(world)
        seat = world.seats[0]
        counted.append(census(seat))
        node, process = seat.node, seat.process
        assert node is not None and process is not None
        node._leak = {number: (process, [node.tip]) for number in range(100)}  # type: ignore[attr-defined]

        async def stuck() -> None:
            PROCESS.set(process)
            forgotten = type(node._pace)(1)
            await trio.sleep_forever()
            del forgotten

        world.spawn(stuck)
        (seat.folder / "left-over").write_bytes(b"12345")
        await trio.testing.wait_all_tasks_blocked()
        counted.append(census(seat))

    holds(simulate(1, scenario))
    before, after = counted
    more = after - before
    assert more["entry Node._leak"] == 200 and more["object Pace"] == 1 and more["tasks"] == 1
    assert more["file left-over"] == 1 and more["bytes left-over"] == 5
