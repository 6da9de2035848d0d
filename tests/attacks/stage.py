"""The place of an attack: a simulated world of honest peers and liars, before, during and after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import trio

from protocol.chain.electorate import tolerated
from protocol.events.events import Event, RoundCommitted
from protocol.node.node import Node
from protocol.run.manifest import CHUNK_STEP, Admission, SignedManifest
from protocol.transport.interface import NetworkError
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from tests.attacks.ghosts import Ghost
from tests.simulation.seat import Seat
from tests.simulation.world import World, changed, seat_identity, simulated_run

SEED = 1


def identity_of(number: int) -> Identity:
    """Of the seat with this number."""
    return seat_identity(SEED, number)


def stranger_key(number: int) -> Identity:
    """A key that is nobody's."""
    return Identity.from_seed(bytes([0x60 + number]) * 32)


@lru_cache(maxsize=16)
def founded_run(peers: int) -> SignedManifest:
    """An open run founded by the first `peers` seats: they are its electors from the first record on.

    Where the liars that they bear could own half of its chunks, it has more of them: real runs have hundreds.
    """
    founders = sorted(identity_of(number).peer_id for number in range(peers))
    signed = changed(simulated_run(), founders=founders)
    return changed(signed, chunk_parameters=CHUNK_STEP) if signed.manifest.chunks <= 2 * tolerated(peers) else signed


@lru_cache(maxsize=16)
def listed_run(peers: int) -> SignedManifest:
    """Founded by its seats, who are the only ones that it admits."""
    founders = sorted(identity_of(number).peer_id for number in range(peers))
    return changed(simulated_run(), founders=founders, admission=Admission.ALLOWLIST, allowlist=founders)


@lru_cache(maxsize=16)
def anybodys_run(peers: int) -> SignedManifest:
    """A run that anybody may begin: the last members vote until four are seasoned."""
    return simulated_run()


@lru_cache(maxsize=16)
def four_founders(peers: int) -> SignedManifest:
    """Open to anybody, founded by the last four seats."""
    return found_by(range(peers - 4, peers))


def found_by(seats: Iterable[int]) -> SignedManifest:
    """An open run founded by these seats."""
    founders = sorted(identity_of(number).peer_id for number in seats)
    return changed(simulated_run(), founders=founders)


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

    def counter(self, *words: str) -> Callable[[], int]:
        """How many things happen from now on that the trace tells in these words."""
        lines, begun = self.world.trace.lines, len(self.world.trace.lines)
        return lambda: sum(all(word in line for word in words) for line in lines[begun:])

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

    @property
    def liar_peers(self) -> list[PeerId]:
        return [seat.peer for seat in self.liars]

    def restart(self, seat: Seat) -> None:
        """Kill a running peer and start it again, as it has been changed."""
        self.world.faults.kill(seat)
        self.world.start(seat)

    def stranger(self, number: int = 0) -> Ghost:
        """A key that is nobody's, on the wire."""
        return Ghost(self.world, stranger_key(number))

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

    def expect_ejected(self) -> None:
        """Every honest peer has proof against every liar, and the newest record neither names nor misses one."""

        def go_on_without() -> bool:
            commits = [self.node(seat).commit_at(self.node(seat).rounds - 1) for seat in self.honest]
            names = {member.peer for commit in commits for member in commit.record.members}
            return names.isdisjoint(self.liar_peers) and not any(commit.certificate.absent for commit in commits)

        self.expect("everybody has ejected the liars", lambda: all(map(self.ejected, self.liar_peers)))
        self.expect("records go on without them", go_on_without)

    def expect_kept(self, rounds: int) -> None:
        """No honest peer gives up the records that it has now, of this many rounds."""
        kept = self.node().tip_at(rounds)
        self.expect("nobody gave up", lambda: all(self.node(seat).tip_at(rounds) == kept for seat in self.honest), 1.0)

    def in_records(self) -> set[str]:
        """Whom the records of the honest name."""
        node = self.node()
        return {member.peer for round in range(node.rounds) for member in node.commit_at(round).record.members}

    def ejected(self, peer: PeerId) -> bool:
        """Whether every honest peer has proof that this one lied."""
        return set(self.honest_peers) <= set(self.world.judge.ejections.get(peer, {}))


async def _deliver(network: Any, peer: PeerId, raw: bytes) -> None:
    try:
        await network.request(peer, "round", raw, timeout_s=5)
    except (NetworkError, Malformed):
        return
