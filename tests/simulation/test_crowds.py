"""Keys are free: what a crowd of them says by gossip costs the members of a run no places, and what it recorded is no life.

All keys speak through one connection, as one program that makes up identities does.  That they cost no rounds is in
tests/attacks/crowds.py.
"""

from __future__ import annotations

import pytest
import trio

from protocol.membership.liveness import BEAT_S, MAX_STRANGERS, Liveness
from tests.attacks.ghosts import Strangers
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.world import World

pytestmark = pytest.mark.slow


def test_more_keys_than_there_are_places_displace_no_member() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        await Strangers(world, MAX_STRANGERS + 90).beat(1, b"\1" * 32)
        await trio.sleep(1.0)
        for seat in world.seats:
            assert seat.node is not None
            membership, others = seat.node._membership, {other.peer for other in world.seats} - {seat.peer}
            assert len(list(membership)) <= MAX_STRANGERS + len(world.seats)
            assert others <= set(membership.live_peers())
            assert membership.beat_s == BEAT_S
            assert len(seat.node.status().swarm) == len(others), "nobody reads the names of a crowd"

    holds(simulate(3, scenario))


def test_a_recording_of_the_dead_keeps_nobody_alive_for_a_peer_that_has_just_started() -> None:
    async def scenario(world: World) -> None:
        survivor, dead, other = world.seats
        recording: list[bytes] = []
        world.wire.on_gossip = lambda receiver, data: recording.append(data)
        await begin(world, 3)
        recorded = list(recording)
        for seat in world.seats:
            world.faults.kill(seat)
        player = Strangers(world, 0).speaker
        world.start(survivor)
        await trio.sleep(1.0)
        for data in recorded:
            await player.network.publish(data)
        await trio.sleep(1.0)
        assert survivor.node is not None
        membership = survivor.node._membership
        heard = [membership.get(seat.peer) for seat in (dead, other)]
        assert all(known is not None and known.liveness is Liveness.UNPROVEN for known in heard)
        assert not {dead.peer, other.peer} & set(membership.live_peers())

    holds(simulate(3, scenario))
