"""The end of a run: all peers agree on the final record, stay there, and go on when the organiser extends the run."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import trio

from protocol.chain.progress import RunProgress
from protocol.events.events import Event, Notice, NoticeCode, RolloutsGenerated
from protocol.events.status import WhyIdle
from protocol.node.node import Node
from protocol.run.manifest import SignedManifest
from protocol.run.sections import Unit
from protocol.wire.presence import Role
from tests.simulation.rollouts import RolloutJudge, Seats, played, rl_run
from tests.simulation.runs import Finished, begin, holds, is_notice, simulate
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import ORGANISER, World, changed, simulated_run

ROUGH_WEATHER = Weather(gossip_loss=0.1, gossip_copies=0.1, gossip_late=0.1, request_loss=0.004)
TOTAL = 4
A_ROUND = 10 * 8
"""Tokens of a member in a round."""


@lru_cache(maxsize=8)
def short_run(**total: int) -> SignedManifest:
    """A run that ends soon."""
    changes: dict[str, Any] = {"total_tokens": None, **(total or {"total_rounds": TOTAL})}
    return changed(simulated_run(), **changes)


def node_of(seat: Seat) -> Node:
    assert seat.node is not None
    return seat.node


def has_ended(seat: Seat) -> bool:
    return seat.node is not None and seat.node.status().why_idle == WhyIdle.RUN_ENDED.value


async def until_ended(world: World, rounds: int | None = TOTAL, within_s: float = 240.0) -> None:
    """Every peer that runs says that the run has ended, on one tip."""
    await world.until("the end of the run at every peer", lambda: all(map(has_ended, world.up())), within_s)
    await world.until_equal(within_s=30)
    if rounds is not None:
        assert {*world.rounds()} == {rounds}


def ended_in(seed: int, **total: int) -> Finished:
    """A run to its end in the weather and with the crashes of a seed."""

    async def scenario(world: World) -> None:
        random = Random(f"end {seed}")
        ends: dict[str, set[str]] = {}
        world.listeners.append(lambda seat, event: _note_end(ends, seat, event))
        await begin(world, 1, within_s=120)
        for _ in range(random.randint(0, 2)):
            await trio.sleep(random.uniform(1, 12))
            victim = random.choice(world.up())
            world.faults.kill(victim)
            await trio.sleep(random.uniform(0, 8))
            world.start(victim)
        await until_ended(world, None if total else TOTAL)
        rounds = world.rounds()
        await trio.sleep(60)
        assert world.rounds() == rounds, "nobody goes on after the end"
        tips = {node_of(seat).tip.hex() for seat in world.seats}
        assert {tip for told in ends.values() for tip in told} >= tips and len(tips) == 1

    return simulate(4 + seed % 2, scenario, seed, ROUGH_WEATHER if seed % 2 else None, short_run(**total))


def _note_end(ends: dict[str, set[str]], seat: Seat, event: Event) -> None:
    if isinstance(event, Notice) and event.code == NoticeCode.RUN_ENDED:
        ends.setdefault(seat.peer, set()).add(event.details["tip"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 1, 3, 4, 5])
def test_all_peers_agree_on_the_final_record(seed: int) -> None:
    holds(ended_in(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_that_counts_tokens_ends_at_the_same_record_everywhere(seed: int) -> None:
    holds(ended_in(seed, total_tokens=13 * A_ROUND))


@pytest.mark.slow
def test_records_after_the_final_one_are_noticed() -> None:
    with patch.object(RunProgress, "is_over", False):
        failure = ended_in(2).failure
    assert failure is not None and "end:" in failure


def test_a_peer_that_dies_at_the_final_record_knows_the_end_in_its_next_life() -> None:
    async def scenario(world: World) -> None:
        victim: list[Seat] = []

        def kill(seat: Seat) -> None:
            if node_of(seat).rounds < TOTAL:
                world.ambush = "RoundCommitted", kill
                return
            victim.append(seat)
            world.faults.kill(seat)

        world.ambush = "RoundCommitted", kill
        await begin(world, 1)
        await world.until("the death of a peer at the final record", lambda: bool(victim), within_s=120)
        await trio.sleep(5)
        world.start(victim[0])
        await until_ended(world)

    holds(simulate(3, scenario, signed=short_run()))


def test_everybody_dies_at_the_end_one_more_joins_and_nobody_goes_on() -> None:
    async def scenario(world: World) -> None:
        *founders, joiner = world.seats
        ends: dict[str, set[str]] = {}
        world.listeners.append(lambda seat, event: _note_end(ends, seat, event))
        world.start_all(but=[joiner])
        await world.until_round(TOTAL, within_s=120)
        await until_ended(world)
        for seat in founders:
            world.faults.kill(seat)
        world.start_all()
        await until_ended(world, within_s=60)
        assert node_of(joiner).state_mark == node_of(founders[0]).state_mark and joiner.peer in ends
        for seat in world.seats:
            assert seat.trainer is not None
            assert not any(said.startswith("compute") for said in seat.trainer.said)

    holds(simulate(3, scenario, signed=short_run()))


def test_a_peer_that_stays_until_the_end_leaves_then() -> None:
    async def scenario(world: World) -> None:
        *others, leaver = world.seats
        leaver.until_end = True
        await begin(world, 1)
        await world.until("its departure", lambda: not leaver.up, within_s=240)
        await until_ended(world)
        assert all(seat.up for seat in others)

    holds(simulate(3, scenario, signed=short_run()))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True])
def test_an_ended_run_goes_on_when_its_organiser_extends_it(kills: bool) -> None:
    async def scenario(world: World) -> None:
        organiser = world.seats[0]
        organiser.identity = ORGANISER
        extended: list[Seat] = []
        world.listeners.append(
            lambda seat, event: extended.append(seat) if is_notice(event, NoticeCode.RUN_EXTENDED) else None
        )
        await begin(world, 1)
        await until_ended(world)
        await node_of(organiser).extensions.extend(Unit.ROUNDS, TOTAL + 3)
        if kills:
            for seat in world.seats:
                world.faults.kill(seat)
            world.start_all()
        await world.until_round(TOTAL + 1, within_s=180)
        await until_ended(world, TOTAL + 3)
        assert {seat.peer for seat in extended} == {seat.peer for seat in world.seats}
        amended = [node_of(organiser).commit_at(round).record.amendment for round in range(TOTAL + 3)]
        assert [round for round, amendment in enumerate(amended) if amendment] == [TOTAL]

    holds(simulate(3, scenario, signed=short_run()))


@pytest.mark.slow
def test_an_extension_before_the_end_is_carried_by_the_next_record() -> None:
    async def scenario(world: World) -> None:
        world.seats[0].identity = ORGANISER
        await begin(world, 1)
        await node_of(world.seats[0]).extensions.extend(Unit.ROUNDS, TOTAL + 2)
        await until_ended(world, TOTAL + 2)

    holds(simulate(3, scenario, signed=short_run()))


@pytest.mark.slow
def test_a_run_with_rollouts_ends_for_all_roles_and_nobody_generates_any_more() -> None:
    few = {Role.TRAINER: 2, Role.ROLLOUT: 1, Role.VALIDATOR: 1}

    async def scenario(world: World, judge: RolloutJudge, seats: Seats) -> None:
        made: list[Seat] = []
        world.start_all()
        await until_ended(world, 3)
        await trio.sleep(30)
        world.listeners.append(lambda seat, event: made.append(seat) if isinstance(event, RolloutsGenerated) else None)
        await trio.sleep(60)
        assert not made and all(map(has_ended, world.seats))

    played(scenario, few, signed=changed(rl_run(), total_tokens=None, total_rounds=3))
