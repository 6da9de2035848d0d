"""Rounds of fragments beside which members train: the whole protocol under virtual time, with every invariant.

`make test-streamed` runs more of the simulations so.
"""

from __future__ import annotations

import pytest

from protocol.run.manifest import SignedManifest
from tests.simulation.runs import begin, holds, rough, simulate
from tests.simulation.world import World, simulated_run
from tests.tiers import first_fast

ROUNDS = 12


def duration_of(signed: SignedManifest) -> float:
    """Virtual seconds until everybody has committed some rounds."""
    times: list[float] = []

    async def scenario(world: World) -> None:
        await begin(world, 4)
        started = world.now()
        await world.until_round(4 + ROUNDS, within_s=120.0)
        times.append(world.now() - started)

    holds(simulate(4, scenario, weather=None, signed=signed))
    return times[0]


@pytest.mark.slow
def test_exchange_and_agreement_take_no_time_from_members_that_train_meanwhile() -> None:
    """Rounds are as long as the steps of the slowest member, and plain ones longer."""
    slowest: list[float] = []

    async def scenario(world: World) -> None:
        slowest.append(max(seat.step_s for seat in world.seats))

    holds(simulate(4, scenario))
    steps = simulated_run(fragments=4, delay=10).manifest.round_steps
    streamed, plain = (duration_of(simulated_run(fragments=4, delay=delay)) for delay in (10, 0))
    assert streamed < 1.02 * ROUNDS * steps * slowest[0] < plain


@pytest.mark.slow
@pytest.mark.parametrize(("fragments", "delay"), [(4, 5), (1, 10), (3, 0)])
def test_members_that_join_die_and_return_keep_one_state_and_read_each_row_once(fragments: int, delay: int) -> None:
    run = holds(rough(39, 5, 8, signed=simulated_run(fragments=fragments, delay=delay)))
    assert run.commits >= 8


@pytest.mark.parametrize("seed", first_fast([13, 3, 21, 37, 41, 76, 141]))
def test_the_world_of_a_seed(seed: int) -> None:
    assert holds(rough(seed, signed=simulated_run(fragments=4, delay=5))).commits > 0
