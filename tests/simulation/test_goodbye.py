"""A graceful leave as both sides tell it: nobody takes it for silence, not even when gossip is lost with the connections."""

from __future__ import annotations

import pytest

from protocol.events.events import Event, PeerGone, PeerSuspected, RoundCommitted
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World


def test_a_goodbye_arrives_although_gossip_on_its_way_is_lost() -> None:
    async def scenario(world: World) -> None:
        said: list[tuple[Seat, Event]] = []
        await begin(world)
        leaver, *others = world.seats
        node = leaver.node
        assert node is not None
        world.listeners.append(lambda seat, event: said.append((seat, event)))
        world.wire.weather.gossip_loss = 1.0
        world.leave(leaver)
        await world.until("the goodbye", lambda: not leaver.up, within_s=5)
        world.wire.weather.gossip_loss = 0.0
        await world.until_round(4, within_s=60)
        assert node.goodbye_heard_by == len(others)
        assert {seat.number for seat, event in said if event == PeerGone(leaver.peer, True)} == {1, 2}
        assert not [event for _, event in said if isinstance(event, PeerSuspected) and event.peer == leaver.peer]

    holds(simulate(3, scenario))


def test_who_leaves_says_nothing_about_those_whose_connections_it_closes() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        leaver, *others = world.seats
        node, said = leaver.node, list[Event]()
        assert node is not None
        world.listeners.append(lambda seat, event: said.append(event) if seat is leaver else None)
        world.leave(leaver)
        await world.until("the goodbye", lambda: not leaver.up, within_s=5)
        for other in others:
            node.router.on_peer_disconnected(other.peer)
        assert not [event for event in said if isinstance(event, PeerSuspected)]

    holds(simulate(3, scenario))


@pytest.mark.slow
def test_who_leaves_with_the_only_certificate_leaves_it_with_the_others() -> None:
    """The proposer leaves in the moment in which it commits, and four electors become three: nobody has to decide again."""

    async def scenario(world: World) -> None:
        await begin(world, 3)
        committed: list[tuple[Seat, RoundCommitted]] = []

        def leave(seat: Seat, event: Event) -> None:
            if isinstance(event, RoundCommitted):
                committed.append((seat, event))
                if len(committed) == 1:
                    world.leave(seat)

        world.listeners.append(leave)
        await world.until("a certificate that one peer has", lambda: bool(committed), within_s=60)
        leaver, decided = committed[0]
        await world.until("the others have it", lambda: len({seat.number for seat, _ in committed}) == 4, within_s=1)
        assert {event.tip for _, event in committed} == {decided.tip}
        await world.until("the goodbye", lambda: not leaver.up, within_s=5)

    holds(simulate(4, scenario))
