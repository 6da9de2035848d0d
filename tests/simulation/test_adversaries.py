"""Hostile contributions under the default rule: honest peers stay equal, rounds go on, and the run gets where it is going.

The trainers pull towards a common target, from a mean squared distance of 2; what is asserted is how near they come.
Agreement, parity and mass (each chunk is what the rule makes of its mask) are judged at every event.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kernels.aggregate import Rule
from protocol.run.manifest import SignedManifest
from protocol.wire.messages import members_in
from tests.attacks.contributions import (
    ATTACKS,
    REFUSED,
    Copying,
    adapter_run,
    averages_nothing,
    claiming,
    distance,
    give_base,
    run_with,
    turn,
)
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import FRAGMENTS, World, simulated_run

pytestmark = pytest.mark.slow

ROUNDS = 11 * FRAGMENTS
START, NEAR = 2.0, 0.25
WHOLE, ADAPTER = "whole model", "adapter"
RUNS: dict[str, Callable[[], SignedManifest]] = {WHOLE: simulated_run, ADAPTER: adapter_run}
CASES = [("huge", WHOLE), ("huge", ADAPTER), *((name, WHOLE) for name in ATTACKS if name != "huge")]


async def reaches(world: World, rounds: int) -> None:
    """Everybody, hostile or not, at this round and equal."""
    await world.until_round(rounds, within_s=30 * rounds)
    await world.until_equal(within_s=30)


def members_of(world: World, seat: Seat, round: int) -> list[str]:
    assert seat.node is not None
    return [member.peer for member in seat.node.commit_at(round).record.members]


@pytest.mark.parametrize(("name", "trains"), CASES)
def test_one_hostile_contribution_of_six_keeps_nobody_from_the_target(name: str, trains: str) -> None:
    async def scenario(world: World) -> None:
        assert world.signed.manifest.aggregation == "clip"
        if trains == ADAPTER:
            give_base(world.seats[1])
        turn(world.seats[0], ATTACKS[name])
        await begin(world)
        await reaches(world, ROUNDS)
        assert distance(world) < NEAR
        assert world.seats[0].peer in members_of(world, world.seats[1], ROUNDS - 1), "nobody may judge what is sane"

    holds(simulate(6, scenario, signed=RUNS[trains]()))


def test_a_copied_contribution_keeps_nobody_from_the_target() -> None:
    async def scenario(world: World) -> None:
        thief, victim = world.seats[:2]
        thief.make_trainer = partial(Copying, victim)
        await begin(world)
        await reaches(world, ROUNDS)
        assert distance(world) < NEAR
        assert isinstance(thief.trainer, Copying) and thief.trainer.copies >= ROUNDS // 2

    holds(simulate(6, scenario))


@pytest.mark.parametrize("rule", ["trimmed", "centered_clip"])
def test_two_of_seven_keep_nobody_from_the_target_under_the_rules_for_more(rule: Rule) -> None:
    """In the world of this seed no two newcomers draw the same lease, so the first record has seven members, too."""

    async def scenario(world: World) -> None:
        for seat in world.seats[:2]:
            turn(seat, ATTACKS["sign flip x -1000"])
        await begin(world)
        await reaches(world, ROUNDS)
        assert distance(world) < NEAR

    holds(simulate(7, scenario, seed=3, signed=run_with(rule)))


@pytest.mark.parametrize("rule, hostile", [("mean", 1), ("clip", 4)])
def test_one_leads_a_mean_astray_and_a_majority_any_rule(rule: Rule, hostile: int) -> None:
    """What the tests above assert can fail."""

    async def scenario(world: World) -> None:
        for seat in world.seats[:hostile]:
            turn(seat, ATTACKS["sign flip x -1000"])
        await begin(world, 2 * FRAGMENTS)
        assert distance(world) > 100 * START

    holds(simulate(6, scenario, signed=run_with(rule)))


@pytest.mark.parametrize(("name", "trains"), [*((name, WHOLE) for name in REFUSED), ("not a number", ADAPTER)])
def test_a_contribution_that_is_no_number_is_in_no_average(name: str, trains: str) -> None:
    async def scenario(world: World) -> None:
        hostile, honest, *_ = world.seats
        if trains == ADAPTER:
            give_base(honest)
        turn(hostile, REFUSED[name])
        hostile.offload = averages_nothing
        world.start_all()
        await reaches(world, ROUNDS)
        assert distance(world) < NEAR
        assert honest.node is not None
        for round in range(ROUNDS):
            commit = honest.node.commit_at(round)
            peers = [member.peer for member in commit.record.members]
            for entry in commit.index:
                averaged = [peers[index] for index in members_in(entry.mask, len(peers))]
                assert hostile.peer not in averaged or averaged == [hostile.peer]

    holds(simulate(6, scenario, signed=RUNS[trains]()))


@pytest.mark.parametrize("tokens", [81, 2**40])
def test_who_claims_tokens_that_no_round_has_is_left_out(tokens: int) -> None:
    async def scenario(world: World) -> None:
        liar, honest, *_ = world.seats
        turn(liar, claiming(tokens))
        await begin(world)
        await reaches(world, ROUNDS)
        assert distance(world) < NEAR
        assert not any(liar.peer in members_of(world, honest, round) for round in range(ROUNDS))

    holds(simulate(6, scenario))
