"""The whole protocol under virtual time: the real node, exchange, chain and store on a simulated network.

The invariants (agreement, parity, mass, no loss, order) are judged at every event by `tests.simulation.judge`; progress,
healing and the return from crashes by the bounds of the scenarios.
"""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import trio
import trio.lowlevel

from protocol.allreduce.runner import ExchangeRunner
from protocol.events.events import Event, ExchangeFinished
from protocol.run.manifest import Outer, OuterSection, SignedManifest
from protocol.trainer_link import Contribution
from tests.simulation.arithmetic_trainer import ArithmeticTrainer
from tests.simulation.runs import begin, holds, rough, setting_of, simulate
from tests.simulation.scenarios import GENTLE, churn
from tests.simulation.seat import Seat
from tests.simulation.world import World, changed, simulated_run
from tests.tiers import first_fast


@pytest.mark.slow
def test_twenty_peers_make_thirty_rounds_with_joins_leaves_and_crashes() -> None:
    async def scenario(world: World) -> None:
        await churn(world, 30, GENTLE, founders=8)
        assert sum(seat.lives for seat in world.seats) > 20, "nobody ever came back"

    assert holds(simulate(20, scenario, seed=9)).commits >= 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", [21, 44, 57, 141])
def test_rough_weather(seed: int) -> None:
    """Six peers and every trouble there is; seeds that once failed among them."""
    assert holds(rough(seed, 6, 12)).commits >= 12


@pytest.mark.parametrize("seed", first_fast([13, 40, 90, 174]))
def test_the_world_of_a_seed(seed: int) -> None:
    """As many peers, such weather and such troubles as the seed says; 40 is a large one, the others once failed."""
    assert holds(rough(seed)).commits >= setting_of(seed).rounds


@pytest.mark.slow
def test_a_seed_replays_exactly() -> None:
    assert rough(90, 3, 3).trace_hash == rough(90, 3, 3).trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("outer", ["auto", OuterSection()])
def test_a_joiner_contributes_within_two_rounds_and_has_the_same_state(outer: Outer) -> None:
    """Also where the outer step follows from each round's members, whose number changes here."""

    async def scenario(world: World) -> None:
        *founders, joiner = world.seats
        for seat in founders:
            world.start(seat)
        await world.until_round(3, within_s=60)
        joined_at = max(world.rounds())
        world.start(joiner)
        await world.until_round(joined_at + 4, within_s=60)
        await world.until_equal(within_s=20)
        members = [
            [m.peer for m in founders[0].node.commit_at(r).record.members]  # type: ignore[union-attr]
            for r in range(joined_at, joined_at + 4)
        ]
        assert any(joiner.peer in names for names in members[:3])

    holds(simulate(4, scenario, signed=changed(simulated_run(), outer=outer)))


@pytest.mark.slow
def test_the_founder_leaves_for_good_and_the_run_goes_on() -> None:
    async def scenario(world: World) -> None:
        founder, *others = world.seats
        world.start(founder)
        await world.until_round(2, within_s=60)
        for seat in others:
            world.start(seat)
        await world.until_round(4, within_s=90)
        world.leave(founder)
        await world.until("the goodbye", lambda: not founder.up, within_s=5)
        await world.until_round(8, within_s=90)
        await world.until_equal(within_s=20)

    holds(simulate(3, scenario))


def test_a_lone_founder_that_dies_is_succeeded_by_the_joiner() -> None:
    """The only elector is gone, with a result that nobody else has: after the eviction time those who are left decide.
    When it comes back, one of the two chains wins everywhere."""

    async def scenario(world: World) -> None:
        founder, joiner = world.seats
        world.start(founder)
        await world.until_round(2, within_s=60)
        world.start(joiner)
        await world.until("the joiner at the tip", lambda: min(world.rounds()) >= 2, within_s=60)
        world.faults.kill(founder)
        await world.until_round(5, within_s=180)
        world.start(founder)
        await world.until_equal(within_s=60)

    holds(simulate(2, scenario))


@pytest.mark.slow
def test_everybody_crashes_and_comes_back_on_the_same_tip() -> None:
    async def scenario(world: World) -> None:
        await begin(world, 5)
        for seat in world.up():
            world.faults.kill(seat)
        world.start_all()
        await world.until("everybody at the old tip", lambda: min(world.rounds(), default=0) >= 5, within_s=30)
        await world.until_round(8, within_s=90)
        await world.until_equal(within_s=20)

    holds(simulate(4, scenario))


@pytest.mark.slow
def test_a_partition_heals_to_the_majoritys_chain() -> None:
    async def scenario(world: World) -> None:
        await begin(world, 3)
        many, few = world.seats[:3], world.seats[3:]
        world.faults.partition(many, few)
        await trio.sleep(90)
        many_tip = many[0].node.tip_at(6)  # type: ignore[union-attr]
        world.faults.heal()
        await world.until_equal(within_s=90)
        assert all(seat.node.tip_at(6) == many_tip for seat in world.seats if seat.node)

    run = holds(simulate(5, scenario))
    assert any("RolledBack" in line for line in run.trace), "the minority went on by itself and came back"


@pytest.mark.slow
def test_the_chain_changes_only_where_it_is_read() -> None:
    """Never in another thread, beside whoever reads it."""

    async def scenario(world: World) -> None:
        for seat in world.seats:
            seat.offload = partial(changing_nothing, seat)
        await begin(world, 1)
        world.faults.partition(world.seats[:2], world.seats[2:])
        await trio.sleep(60)
        world.faults.heal()
        await world.until_equal(within_s=90)

    run = holds(simulate(3, scenario))
    assert any("RolledBack" in line for line in run.trace)


async def changing_nothing(seat: Seat, function: Any, *arguments: Any) -> Any:
    """As a worker thread."""
    await trio.lowlevel.checkpoint()
    before = seat.node.tip if seat.node is not None else None
    answer = function(*arguments)
    assert seat.node is None or seat.node.tip == before
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("fragments", [1, 2])
def test_two_founders_merge(fragments: int) -> None:
    """Streamed, the one that goes back to the beginning has its trainer write the initial parameters."""

    async def scenario(world: World) -> None:
        one, other = world.seats
        world.faults.partition([one], [other])
        world.start(one)
        world.start(other)
        await world.until_round(3, within_s=60)
        world.faults.heal()
        await world.until_equal(within_s=60)
        await world.until_round(max(world.rounds()) + 2, within_s=60)
        await world.until_equal(within_s=20)

    signed = simulated_run(fragments=fragments, delay=5) if fragments > 1 else None
    run = holds(simulate(2, scenario, signed=signed))
    assert any("RolledBack" in line for line in run.trace)


@pytest.mark.slow
def test_a_frozen_member_costs_one_round_its_wait_and_catches_up() -> None:
    async def scenario(world: World) -> None:
        await begin(world, 3)
        frozen = world.seats[0]
        world.faults.freeze(frozen)
        await world.until("rounds without it", lambda: sorted(world.rounds())[1] >= 5, within_s=90)
        world.faults.thaw(frozen)
        await world.until_round(max(world.rounds()) + 2, within_s=60)
        await world.until_equal(within_s=20)

    holds(simulate(4, scenario))


@pytest.mark.slow
def test_a_killed_trainer_costs_its_peer_nothing_but_the_round() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        victim = world.seats[1]
        world.faults.kill_trainer(victim)
        before = max(world.rounds())
        await world.until_round(before + 3, within_s=60)
        last = victim.node.commit_at(before + 2).record  # type: ignore[union-attr]
        assert victim.peer in [member.peer for member in last.members]

    holds(simulate(3, scenario))


def with_large_chunks(peers: int) -> SignedManifest:
    """A run of chunks beside which the headers of their messages are small, for exactly so many peers."""
    model = simulated_run(peers).manifest.model.model_copy(update={"dim": 128, "ffn": 256})
    return changed(simulated_run(peers), model=model, chunk_parameters=32_768)


@pytest.mark.slow
@pytest.mark.parametrize("peers", [2, 3, 4])
def test_a_member_sends_twice_what_others_own_of_each_contribution(peers: int) -> None:
    """On good lines: its part of each chunk to the owner, and the averages of its own chunks to everybody."""
    signed, sent = with_large_chunks(peers), dict[int, list[int]]()

    def listen(seat: Seat, event: Event) -> None:
        if isinstance(event, ExchangeFinished):
            sent.setdefault(event.round, []).append(event.up_bytes)

    async def scenario(world: World) -> None:
        world.listeners.append(listen)
        await begin(world, 3)

    holds(simulate(peers, scenario, signed=signed))
    payload = signed.manifest.layouts.contribution.payload_bytes
    for round in range(3):
        assert len(sent[round]) == peers
        assert 1 <= sum(sent[round]) / (2 * (peers - 1) * payload) < 1.05


@pytest.mark.slow
def test_a_peer_whose_training_fails_says_so_and_lives_on() -> None:
    """A loss that no READY can say ended the peer."""

    async def scenario(world: World) -> None:
        await begin(world)
        *_, failing = world.seats
        compute = ArithmeticTrainer.compute

        async def failed(trainer: ArithmeticTrainer, *arguments: Any) -> Contribution:
            contribution = await compute(trainer, *arguments)
            return replace(contribution, loss=math.inf) if trainer is failing.trainer else contribution

        with patch.object(ArithmeticTrainer, "compute", failed):
            await world.until_round(max(world.rounds()) + 4, within_s=120)
        assert failing.up
        await world.until_equal(within_s=60)

    run = holds(simulate(3, scenario))
    assert any("training failed (loss inf)" in line for line in run.trace)


def test_nothing_of_an_exchange_waits_for_the_garbage_collector() -> None:
    """A result's file keeps its place on the disk, and its descriptor, as long as anything refers to its mapping."""
    left: list[int] = []

    async def scenario(world: World) -> None:
        await begin(world, 2)
        gc.collect()
        gc.disable()
        try:
            await world.until_round(8, within_s=120.0)
            left.append(sum(type(each) is ExchangeRunner for each in gc.get_objects()))  # others may claim a class
        finally:
            gc.enable()

    holds(simulate(3, scenario, weather=None))
    assert left[0] <= 3, "those of the running round, one of each peer"
