"""What claims of more than we have cost honest peers, and what records are worth whose state nobody has."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.blobs.swarm import Swarm
from protocol.chain.replica import Replica, ReplicaShelf, Serving
from protocol.run.manifest import SignedManifest, sign
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from tests.protocol.answering import ABOUT_BLOBS, ask
from tests.protocol.chains import a_replica, grow
from tests.protocol.peers import TheseMembers
from tests.simulation.determinism import inline
from tests.simulation.liars import Ghost
from tests.simulation.runs import begin, holds, simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World, disk_space, simulated_run
from tests.tiers import first_fast

STRANGERS = [Identity.from_seed(bytes([number]) * 32) for number in range(100, 116)]


class Storyteller(Ghost):
    """A stranger that serves the chain of `replica`, and says in its heartbeats that it is there."""

    def __init__(self, world: World, seed: bytes, replica: Replica) -> None:
        super().__init__(world, seed)
        self.replica, self._serving = replica, Serving(replica, inline)
        session = Session(self.identity, world.signed.run, self.network, lambda event: None)
        self._swarm = Swarm(session, TheseMembers(), ReplicaShelf(replica).find, inline)
        world.spawn(self._beat)
        world.spawn(self._swarm.run)

    async def _beat(self) -> None:
        seq = 0
        while True:
            seq += 1
            await self.gossip(self.beat(seq, self.replica.history.length, self.replica.history.tip))
            await trio.sleep(2.0)

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind in ABOUT_BLOBS:
            self.asked.append((kind, data))
            return await ask(self._swarm, peer, kind, data)
        if kind in ("tips", "commits", "have"):
            self.asked.append((kind, data))
            return await ask(self._serving, peer, kind, data)
        return await super().on_request(peer, kind, data)


async def rounds_in(world: World, seconds: float) -> int:
    """Rounds that everybody makes in so much time."""
    before = min(world.rounds())
    await trio.sleep(seconds)
    return min(world.rounds()) - before


# -- strangers ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_crowd_that_claims_to_be_ahead_costs_less_than_a_tenth_of_the_rounds() -> None:
    async def scenario(world: World) -> None:
        await begin(world, within_s=200)
        calm = await rounds_in(world, 120)
        crowd = [Ghost(world, bytes([0x40 + number])) for number in range(24)]

        async def claim() -> None:
            seq = 0
            while True:
                seq += 1
                for number, ghost in enumerate(crowd):
                    tip = hashlib.sha256(f"{seq} {number}".encode()).digest()
                    await ghost.gossip(ghost.beat(seq, 10**6, tip))
                await trio.sleep(0.8)

        world.spawn(claim)
        assert await rounds_in(world, 120) >= 0.9 * calm

    run = holds(simulate(4, scenario))
    assert not any("RolledBack" in line for line in run.trace)


@pytest.mark.slow
@pytest.mark.parametrize("shares_a_result", [True, False])
def test_records_of_a_stranger_whose_results_nobody_has_leave_us_untouched(shares_a_result: bool) -> None:
    """In a young run that anybody may begin, where fork choice alone would prefer them."""
    with disk_space() as folder:
        signed = simulated_run()

        async def scenario(world: World) -> None:
            await begin(world, 6, within_s=200)
            calm = await rounds_in(world, 60)
            tips = [seat.node.tip_at(6) for seat in world.seats if seat.node]
            honest = world.seats[0].node
            assert honest is not None
            first = honest.commit_at(0)
            for number in range(1000):
                story = Path(folder / f"story{number}")
                replica = a_replica(signed, story)
                digest = Hash(first.record.state_digest)
                grow(replica, 1, STRANGERS, voters=STRANGERS, salt=number, with_results=shares_a_result, state_digest=digest)
                grow(replica, 2, STRANGERS, voters=STRANGERS, salt=number, with_results=False)
                if replica.history.tip_at(1) < honest.tip_at(1):
                    break
            assert replica.history.tip_at(1) < honest.tip_at(1)
            Storyteller(world, b"\x70", replica)
            assert await rounds_in(world, 60) >= 0.8 * calm
            assert [seat.node.tip_at(6) for seat in world.seats if seat.node] == tips
            await world.until_equal(within_s=30)
            replica.state.close()

        run = holds(simulate(3, scenario, seed=2, signed=signed))
    assert not any("RolledBack" in line for line in run.trace)


# -- records without state -----------------------------------------------------------------------------------------------


def founder_of(seed: int) -> PeerId:
    """Whoever takes the first seat in the world of this seed."""
    digest = hashlib.blake2b(f"{seed} 0".encode(), digest_size=32).digest()
    return Identity.from_seed(digest).peer_id


def with_founders(*founders: PeerId) -> SignedManifest:
    manifest = simulated_run().manifest.model_copy(update={"founders": list(founders)})
    return sign(Identity.from_seed(b"\x2a" * 32), manifest)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("steps", first_fast([6, 0, 12]))
def test_two_joiners_whose_only_source_died_go_on_from_the_state_that_they_have(steps: int, named: bool) -> None:
    """It dies when both have its records, and so many questions later.  When it comes back, all end on one chain."""

    async def scenario(world: World) -> None:
        founder, *joiners = world.seats
        world.start(founder)
        await world.until_round(14, within_s=300)
        for seat in joiners:
            world.start(seat)
        while any(len(list(seat.folder.glob("branches/*-*"))) < 14 for seat in joiners):
            await trio.sleep(0.001)
        await trio.sleep(steps * world.wire.weather.latency_s)
        world.faults.kill(founder)
        reached = min(world.rounds())
        assert reached < 14, "they have no state yet"
        await world.until_round(reached + 3, within_s=120)
        await world.until_equal(within_s=20)
        world.start(founder)
        assert founder.process is not None
        await world.until_equal(within_s=120)
        await world.until_round(max(world.rounds()) + 2, within_s=60)

    seed = 3
    holds(simulate(3, scenario, seed, signed=with_founders(founder_of(seed)) if named else None))


# -- states ---------------------------------------------------------------------------------------------------------------


def lies_about_its_state(seat: Seat) -> None:
    """From now on its READYs name another state."""
    assert seat.node is not None
    contributor: Any = seat.node._contributor
    commit = contributor.commit

    async def lie(base: Any, work: Any, contribution: Any, digest: Any) -> Any:
        return await commit(base, work, contribution, Hash(b"\x77" * 32))

    contributor.commit = lie


@pytest.mark.slow
def test_an_elector_that_names_another_state_every_round_makes_others_look_at_theirs_ever_less_often() -> None:
    async def scenario(world: World) -> None:
        await begin(world, 5, within_s=200)
        liar, *honest = world.seats
        world.judge.liars[liar.peer] = None
        lies_about_its_state(liar)
        reached = max(world.rounds())
        await world.until("rounds of the honest", lambda: sorted(world.rounds())[1] >= reached + 20, within_s=600)
        assert all(seat.node is not None for seat in honest)

    run = holds(simulate(3, scenario))
    looks = [line for line in run.trace if "Desynced" in line and "7777" in line]
    assert 1 <= len(looks) <= 2 * 2, looks
