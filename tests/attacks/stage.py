"""The place of an attack: a simulated world of honest peers and liars, before, during and after it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import trio

from protocol.chain.electorate import tolerated
from protocol.events.events import Event, RoundCommitted
from protocol.node.node import Node
from protocol.run.manifest import CHUNK_STEP, Admission, SignedManifest, sign
from protocol.transport.interface import NetworkError
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from tests.simulation.liars import Ghost
from tests.simulation.network import MemoryNetwork
from tests.simulation.seat import Seat
from tests.simulation.world import World, simulated_run

ORGANISER = Identity.from_seed(b"\x2a" * 32)
SEED = 1


def identity_of(number: int, seed: int = SEED) -> Identity:
    """Of the seat with this number in a world of this seed."""
    return Identity.from_seed(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=32).digest())


@lru_cache(maxsize=16)
def founded_run(peers: int) -> SignedManifest:
    """An open run founded by the first `peers` seats: they are its electors from the first record on.

    Where the liars that they bear could own half of its chunks, it has more of them: real runs have hundreds.
    """
    founders = sorted(identity_of(number).peer_id for number in range(peers))
    manifest = simulated_run().manifest.model_copy(update={"founders": founders})
    if manifest.chunks <= 2 * tolerated(peers):
        manifest = manifest.model_copy(update={"chunk_parameters": CHUNK_STEP})
    return sign(ORGANISER, manifest)


@lru_cache(maxsize=16)
def soon_settled_run(peers: int) -> SignedManifest:
    """The same, where what two records stand on is settled after a minute."""
    manifest = founded_run(peers).manifest
    rounds = manifest.rounds.model_copy(update={"settle_rounds": 2, "settle_s": 60.0})
    return sign(ORGANISER, manifest.model_copy(update={"rounds": rounds}))


@lru_cache(maxsize=16)
def listed_run(peers: int) -> SignedManifest:
    """Founded by its seats, who are the only ones that it admits."""
    founders = sorted(identity_of(number).peer_id for number in range(peers))
    update = {"founders": founders, "admission": Admission.ALLOWLIST, "allowlist": founders}
    return sign(ORGANISER, simulated_run().manifest.model_copy(update=update))


@lru_cache(maxsize=16)
def anybodys_run(peers: int) -> SignedManifest:
    """A run that anybody may begin: the last members vote until four are seasoned."""
    return simulated_run()


class Impostor(Ghost):
    """An identity on the wire with no node behind it, which may be an elector's."""

    def __init__(self, world: World, identity: Identity) -> None:
        super().__init__(world, b"\x00")
        world.wire.crash(self.peer)
        self.identity = identity
        self.network = MemoryNetwork(world.wire, self.peer, self)
        world.wire.join(self.network)
        world.spawn(self.network.run)


class Stage:
    """seats: the first ones are the liars'.  `honest` and `liars` name them."""

    def __init__(self, world: World, liars: int) -> None:
        self.world = world
        self.liars, self.honest = world.seats[:liars], world.seats[liars:]
        self.run = world.signed.run
        self.commits: dict[PeerId, list[float]] = {seat.peer: [] for seat in world.seats}
        self._checks: list[tuple[str, Callable[[], bool], float]] = []
        world.listeners.append(self._listen)
        for seat in self.liars:
            world.judge.liars[seat.peer] = None

    def _listen(self, seat: Seat, event: Event) -> None:
        if isinstance(event, RoundCommitted):
            self.commits[seat.peer].append(self.world.now())

    # -- the course of things -----------------------------------------------------------------------------------------

    async def begin(self, round: int = 2) -> None:
        """Everybody is up and has this many records."""
        for seat in self.world.seats:
            if not seat.lives:
                self.world.start(seat)
        await self.world.until_round(round, within_s=60)

    def rounds(self) -> int:
        """What all honest peers have committed."""
        return min(seat.node.rounds if seat.node is not None else 0 for seat in self.honest)

    def received(self) -> int:
        """Bytes that arrived at an honest peer in its present life, on average."""
        ends = [self.world.wire.end(seat.peer) for seat in self.honest]
        return sum(end.down_bytes for end in ends if end is not None) // len(self.honest)

    def longest_pause(self, since: float) -> float:
        """The longest time (s) since then without a new record at some honest peer."""
        pauses = [0.0]
        for seat in self.honest:
            times = [since, *(at for at in self.commits[seat.peer] if at > since), self.world.now()]
            pauses.append(max(later - earlier for earlier, later in itertools.pairwise(times)))
        return max(pauses)

    def expect(self, what: str, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        """To be true after the attack, at the latest so many seconds later."""
        self._checks.append((what, condition, within_s))

    async def settle(self) -> None:
        """After the attack: honest peers become equal, and what is expected comes true; AssertionError otherwise."""
        await self.world.until("one tip and one state at honest peers", self._are_equal, within_s=60)
        for what, condition, within_s in self._checks:
            await self.world.until(what, condition, within_s)

    def _are_equal(self) -> bool:
        nodes = [seat.node for seat in self.honest]
        return len({(node.tip, node.state_mark) for node in nodes if node is not None}) == 1 and None not in nodes

    # -- the cast -----------------------------------------------------------------------------------------------------

    def node(self, seat: Seat | None = None) -> Node:
        """Of this seat, or of the honest peer with the most rounds."""
        if seat is None:
            nodes = [other.node for other in self.honest if other.node is not None]
            return max(nodes, key=lambda node: node.rounds)
        assert seat.node is not None
        return seat.node

    @property
    def honest_peers(self) -> list[PeerId]:
        return [seat.peer for seat in self.honest]

    def stranger(self, number: int = 0) -> Ghost:
        """A key that is nobody's, on the wire."""
        ghost = Ghost(self.world, bytes([0x60 + number]))
        self.world.judge.liars[ghost.peer] = None
        return ghost

    def take_over(self, seat: Seat) -> Impostor:
        """End the node of this seat; what speaks with its key from now on."""
        self.world.faults.kill(seat)
        return Impostor(self.world, seat.identity)

    async def tell(self, seat: Seat, peers: Sequence[PeerId], body: Body) -> None:
        """A liar with a running node says something more to these peers; it waits for no answer."""
        network = self.network(seat)
        raw = pack(seat.identity, self.run, body).raw
        for peer in peers:
            self.world.spawn(_deliver, network, peer, raw)
        await trio.lowlevel.checkpoint()

    async def gossip(self, seat: Seat, body: Body) -> None:
        """A liar with a running node gossips something more."""
        await self.network(seat).publish(pack(seat.identity, self.run, body).raw)

    def network(self, seat: Seat) -> Any:
        """What a running node speaks through."""
        return self.node(seat)._session.network

    def ejected(self, peer: PeerId) -> bool:
        """Whether every honest peer has proof that this one lied."""
        return set(self.honest_peers) <= set(self.world.judge.ejections.get(peer, {}))


async def _deliver(network: Any, peer: PeerId, raw: bytes) -> None:
    try:
        await network.request(peer, "round", raw, timeout_s=5)
    except (NetworkError, Malformed):
        return
