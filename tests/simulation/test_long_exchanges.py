"""Exchanges of a minute among honest members: lines that differ, a nap, and chunks that are large for the lines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import trio

from protocol.events.events import Event, MemberLost, RoundCommitted
from protocol.run.manifest import SignedManifest
from protocol.wire.messages import members_in
from tests.attacks.exchange_liars import Besieging, exchanging
from tests.attacks.stage import identity_of
from tests.simulation.kill_times import EXCHANGE_S, narrow_run
from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.wire import Weather
from tests.simulation.world import World, changed

STEP_S = 6.0
"""Ten of them are as long as an exchange."""


@dataclass
class Seen:
    """lost: in which round who was given up.  whole: rounds whose averages have all members' parts."""

    lost: list[tuple[int, str]] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)


def rounds(
    peers: int,
    count: int,
    signed: SignedManifest,
    meanwhile: Callable[[World], Awaitable[None]],
    within_s: float = 2000,
) -> Seen:
    """What happens in so many rounds; they have to come."""
    seen, committed = Seen(), set[int]()

    async def scenario(world: World) -> None:
        def on_event(seat: Seat, event: Event) -> None:
            if isinstance(event, MemberLost):
                seen.lost.append((event.round, event.peer))
            elif isinstance(event, RoundCommitted) and event.round not in committed and seat.node is not None:
                committed.add(event.round)  # whoever is first; others may get the record from it
                commit = seat.node.commit_at(event.round)
                masks = [members_in(entry.mask, len(commit.record.members)) for entry in commit.index]
                if all(len(mask) == peers for mask in masks):
                    seen.whole.append(event.round)

        world.listeners.append(on_event)
        for seat in world.seats:
            seat.step_s = STEP_S
            world.start(seat)
        await trio.sleep(0.5)
        await meanwhile(world)
        await world.until_round(count, within_s)

    rate = (peers - 1) / peers * signed.manifest.layouts.exchanged_bytes / EXCHANGE_S
    run = simulate(peers, scenario, 1, Weather(latency_s=0.02, jitter_s=0.005, bytes_per_s=rate), signed)
    assert run.failure is None, run.failure
    return seen


async def nothing(world: World) -> None:
    pass


@pytest.mark.slow
def test_a_line_that_is_a_quarter_slower_is_nobodys_fault() -> None:
    async def slow_line(world: World) -> None:
        end = world.wire.end(world.seats[1].peer)
        assert end is not None
        for pipe in (end.access.up, end.access.down):
            pipe.bytes_per_s *= 0.8

    seen = rounds(4, 4, narrow_run(), slow_line)
    assert seen.lost == [] and seen.whole == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_nap_in_an_exchange_costs_that_round_only() -> None:
    async def nap(world: World) -> None:
        await trio.sleep(10 * STEP_S + 33)
        world.faults.freeze(world.seats[1])
        await trio.sleep(20)
        world.faults.thaw(world.seats[1])

    seen = rounds(4, 4, narrow_run(), nap)
    assert {round for round, _ in seen.lost} <= {0} and {1, 2, 3} <= {*seen.whole}


@pytest.mark.slow
def test_chunks_that_are_large_for_the_lines_make_exchanges_long_and_not_impossible() -> None:
    """A member sends to seven others at a time: its first chunks are there after 14 s, and `stall_s` is 10."""
    rounds(8, 2, changed(narrow_run(), chunk_parameters=49152), nothing)


@pytest.mark.slow
def test_who_is_kept_waiting_by_one_member_is_given_up_by_nobody() -> None:
    """A member keeps all parts from another one, which can then average nothing until it has waited for them enough."""
    liar, victim = (identity_of(number).peer_id for number in (3, 0))

    class Besieger(Besieging):
        pass

    Besieger.victim = victim
    with exchanging(Besieger, [liar]):
        seen = rounds(4, 1, changed(narrow_run(), chunk_parameters=6144), nothing)
    assert {lost for _, lost in seen.lost} <= {liar}
