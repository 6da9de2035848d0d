"""A run whose data ends: every row is read, by whoever is there, and the run is over with the last one."""

from __future__ import annotations

from unittest.mock import PropertyMock, patch

import pytest
import trio

from protocol.run.manifest import RunManifest
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.world import World, simulated_run
from tests.tiers import first_fast

ROWS = 333


@pytest.mark.parametrize(
    ("fragments", "delay", "dies"), first_fast([(1, 0, True), (2, 5, False), (1, 0, False), (2, 5, True)], 2)
)
def test_limited_data_is_read_to_its_last_row_and_ends_the_run(fragments: int, delay: int, dies: bool) -> None:
    signed = simulated_run(fragments=fragments, delay=delay)

    async def scenario(world: World) -> None:
        """A peer whose lease is empty contributes nothing."""
        for seat in world.seats:
            world.judge.on_contribution(seat.peer, memoryview(signed.manifest.layouts.contribution.zeros()), None)
        await begin(world, 4)
        if dies:
            world.faults.kill(world.seats[1])

        def is_over() -> bool:
            return all(seat.node is not None and seat.node._history.base.progress.is_over for seat in world.up())

        await world.until("the data is read", is_over, within_s=600.0)
        rounds = world.rounds()
        await trio.sleep(30.0)
        assert world.rounds() == rounds, "no record follows"
        leases = world.up()[0].node._history.base.leases  # type: ignore[union-attr]
        pool = leases.pool
        assert not any(rows for _, rows in leases.early)
        assert (pool.cursor, pool.returned, pool.skipped) == (ROWS, (), 0)

    with patch.object(RunManifest, "data_rows", PropertyMock(return_value=ROWS)):
        holds(simulate(3, scenario, signed=signed))
