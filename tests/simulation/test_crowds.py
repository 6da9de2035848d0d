"""Keys are free: what a crowd of them says by gossip costs the members of a run neither rounds nor each other.

All keys speak through one connection, as one program that makes up identities does.
"""

from __future__ import annotations

import hashlib

import pytest
import trio

from protocol.membership.liveness import BEAT_S, MAX_STRANGERS, Liveness
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from tests.simulation.liars import Ghost
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.world import World

CALM_S = 30.0


class Crowd:
    """So many identities behind one connection."""

    def __init__(self, world: World, count: int) -> None:
        self._world, self._ghost, self._seq = world, Ghost(world, b"\x6e"), 0
        self._keys = [Identity.from_seed(hashlib.sha256(b"%d" % number).digest()) for number in range(count)]

    async def beat(self, round: int, tip: bytes) -> None:
        """Each key says that it computes on this tip."""
        self._seq += 1
        body = self._ghost.beat(self._seq, round, tip)
        for key in self._keys:
            await self._ghost.network.publish(pack(key, self._world.signed.run, body).raw)


def rounds_to_expect(world: World, before: int) -> int:
    """0.8 of the rounds that were made in as much time before the crowd came."""
    return int(0.8 * (min(world.rounds()) - before))


def others(world: World, peer: PeerId) -> list[PeerId]:
    return [seat.peer for seat in world.seats if seat.peer != peer]


def test_more_keys_than_there_are_places_displace_no_member() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        crowd = Crowd(world, MAX_STRANGERS + 90)
        await crowd.beat(1, b"\1" * 32)
        await trio.sleep(1.0)
        for seat in world.seats:
            assert seat.node is not None
            membership = seat.node._membership
            assert len(list(membership)) <= MAX_STRANGERS + len(world.seats)
            assert set(others(world, seat.peer)) <= set(membership.live_peers())
            assert membership.beat_s == BEAT_S
            assert len(seat.node.status().swarm) == len(world.seats) - 1, "nobody reads the names of a crowd"

    holds(simulate(3, scenario))


@pytest.mark.slow
def test_keys_that_say_that_they_train_or_are_ahead_are_not_waited_for() -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        before = min(world.rounds())
        await trio.sleep(CALM_S)
        expected = rounds_to_expect(world, before)
        crowd = Crowd(world, len(world.seats) + 1)
        for ahead in (0, 10**6):
            before = min(world.rounds())
            with trio.move_on_after(CALM_S):
                while True:
                    node = world.seats[0].node
                    assert node is not None
                    await crowd.beat(node.rounds + ahead, b"\1" * 32 if ahead else node.tip)
                    await trio.sleep(1.0)
            assert min(world.rounds()) - before >= expected

    holds(simulate(4, scenario))


def test_a_recording_of_the_dead_keeps_nobody_alive_for_a_peer_that_has_just_started() -> None:
    async def scenario(world: World) -> None:
        survivor, dead, other = world.seats
        recording: list[bytes] = []
        world.wire.on_gossip = lambda receiver, data: recording.append(data)
        await begin(world, 3)
        recorded = list(recording)
        for seat in world.seats:
            world.faults.kill(seat)
        player = Ghost(world, b"\x6f")
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
