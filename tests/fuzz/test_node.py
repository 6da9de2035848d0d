"""A whole node under fire: random, changed, forged and replayed statements at its handlers while its swarm trains.

A stranger in an open run says everything that can be said.  No handler may raise, nothing the stranger says may change
what a peer thinks of the others, and the swarm keeps its rounds with all invariants judged.
"""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.membership.liveness import Liveness
from protocol.transport.interface import Acceptance, Handlers, Refused
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import open_envelope, seal
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import STATEMENTS
from tests.fuzz.examples import BODIES, HEADER, QUESTIONS
from tests.fuzz.mutations import mutated
from tests.fuzz.statements import tap
from tests.protocol.answering import QUESTIONS as QUESTION_KINDS
from tests.simulation.runs import simulate
from tests.simulation.seat import Seat
from tests.simulation.world import World

ROUNDS = 3
SHOTS = 12
"""Against each peer, in each virtual second."""
STRANGERS = [Identity.from_seed(bytes([0x66, number]) * 16) for number in range(30)]
"""One that contradicts itself is ejected, and another takes its place."""
KINDS = (*QUESTION_KINDS, "", "nothing")


class Stranger:
    """Fires at the nodes of a world with what it heard, and with what it makes up."""

    def __init__(self, world: World, random: Random) -> None:
        self._world, self._random, self._run = world, random, world.signed.run
        self.heard: list[bytes] = []
        self.let_in = 0
        self._identity = STRANGERS[0]
        world.judge.liars.update({stranger.peer_id: None for stranger in STRANGERS})

    def _ammunition(self) -> bytes:
        """Honest bytes replayed or changed, or a statement of our own with a body that somebody may have said."""
        random = self._random
        source = random.choice(self.heard[-200:]) if self.heard and random.random() < 0.8 else self._made_up()
        way = random.random()
        if way < 0.2:
            return source
        if way < 0.4:
            return mutated(source, random)
        try:
            envelope = open_envelope(source, self._run)
            kind, body = envelope.kind, envelope.body
        except Malformed:
            kind, body = random.choice(sorted(STATEMENTS)), source
        return seal(self._identity, self._run, kind, body if way < 0.6 else mutated(body, random)).raw

    def _made_up(self) -> bytes:
        random = self._random
        return random.choice(
            [random.randbytes(random.randint(0, 90)), HEADER.encode(), random.choice([*BODIES, *QUESTIONS]).encode()]
        )

    async def fire(self, seat: Seat) -> None:
        assert seat.node is not None
        handlers, random = seat.node.router, self._random
        for _ in range(SHOTS):
            self._identity = random.choice(STRANGERS)
            me = self._identity.peer_id
            self._gossip(seat, handlers)
            try:
                await handlers.on_request(me, random.choice(KINDS), self._ammunition())
                self.let_in += 1
            except Refused:
                pass
            header = self._ammunition()
            with trio.move_on_after(random.choice([0.1, 9.0])):
                size = random.choice([0, 1, 1040, 4160, 1 << 16])
                landing = await handlers.open_push(me, header, size)
                if landing is not None:
                    landing.complete()
                    await handlers.finish_push(me, header, random.choice([None, landing]))

    def _gossip(self, seat: Seat, handlers: Handlers) -> None:
        data = self._ammunition()
        before = self._others(seat)
        acceptance = handlers.on_gossip(self._identity.peer_id, data)
        assert isinstance(acceptance, Acceptance)
        self.let_in += acceptance is Acceptance.ACCEPT
        if data not in self.heard:
            assert self._others(seat) == before, f"{data!r} changed what a peer thinks of others"

    def _others(self, seat: Seat) -> dict[PeerId, tuple[int, int, Hash, Liveness]]:
        assert seat.node is not None
        return {
            peer: (known.heartbeat.incarnation, known.heartbeat.seq, Hash(known.heartbeat.tip), known.liveness)
            for peer, known in seat.node._membership
            if peer not in self._world.judge.liars
        }


async def _fire_for_ever(stranger: Stranger, seat: Seat) -> None:
    while True:
        await trio.sleep(1.0)
        if seat.up:
            await stranger.fire(seat)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_a_stranger_who_says_everything_changes_nothing(seed: int) -> None:
    async def scenario(world: World) -> None:
        stranger = Stranger(world, Random(seed))
        async with trio.open_nursery() as nursery:
            for seat in world.seats:
                world.start(seat)
            await trio.testing.wait_all_tasks_blocked()
            for seat in world.seats:
                tap(world, seat, stranger.heard.append)
                for _ in range(2):
                    nursery.start_soon(_fire_for_ever, stranger, seat)
            await world.until_round(ROUNDS, within_s=300)
            nursery.cancel_scope.cancel()
        assert stranger.let_in > 0
        await world.until_equal(within_s=60)

    run = simulate(3, scenario, seed % 1000)
    assert run.failure is None, f"seed {seed}: {run.failure}\n" + "\n".join(run.trace[-20:])
