"""Swarms on the simulated network, without nodes: an origin, receivers with equal lines, and liars between them.

Time is virtual and the scheduler seeded, so that a run is the same each time: what took how long may be asserted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from protocol.blobs.blob import Blob, ChunkSet, EvenSpans, chunks_in, read_chunk_header
from protocol.blobs.store import Held
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose
from protocol.events.events import Event
from protocol.transport.interface import Acceptance, Landing, Session
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from protocol.wire.identity import Identity, PeerId
from tests.protocol.answering import ask
from tests.protocol.peers import at_once
from tests.simulation.determinism import deterministic_trio
from tests.simulation.network import MemoryNetwork
from tests.simulation.wire import MemoryWire, Weather

RUN = Hash(bytes(32))
CHUNK_BYTES = 16 << 10
CHUNK_S = 0.25
"""How long a line needs for a chunk."""


def a_blob(chunks: int, chunk_bytes: int = CHUNK_BYTES) -> tuple[Blob, bytes]:
    """A blob of chunks that all differ, the last of them shorter, and its bytes."""
    data = Random(chunks).randbytes(chunks * chunk_bytes - chunk_bytes // 3)
    leaves = [chunk_hash(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    return Blob.cut(tree_root(leaves), leaves, EvenSpans(len(data), chunk_bytes)), data


def in_memory(blob: Blob, data: bytes) -> Held:
    """A whole blob in memory."""
    return Held(len(blob), blob.all, lambda chunk: data[blob.span(chunk)], lambda: blob.leaves)


class Peer:
    """One peer's swarm, and the handlers that give it what arrives.

    into: where it fetches to; it outlives a crash.  came: how many times each chunk arrived.  done_at: when all was here.
    """

    def __init__(self, table: SwarmTable, number: int) -> None:
        self.identity = Identity.from_seed(hashlib.blake2b(f"{number}".encode(), digest_size=32).digest())
        self.table, self.number, self.id = table, number, self.identity.peer_id
        self.into = bytearray(len(table.data))
        self.came: Counter[int] = Counter()
        self.events: list[Event] = []
        self.done_at: float | None = None
        self.outcome: bool | None = None
        self.withheld: set[Hash] = set()
        """Blobs that it gives to nobody."""
        self._scope = trio.CancelScope()

    def start(self) -> None:
        """A new life with an empty memory."""
        self.shelf: dict[Hash, Held] = {}
        self.network = MemoryNetwork(self.table.wire, self.id, self)
        session = Session(self.identity, RUN, self.network, self.events.append)
        self.swarm = Swarm(session, self.table, self.shelf.get, at_once, withheld=self.withheld)
        self._scope = trio.CancelScope()
        self.table.wire.join(self.network)
        self.table.nursery.start_soon(self._live, self._scope)

    async def _live(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as self.nursery:
                self.nursery.start_soon(self.network.run)
                self.nursery.start_soon(self.swarm.run)

    def crash(self) -> None:
        """It is gone from one moment to the next."""
        self.table.wire.crash(self.id)
        self._scope.cancel()

    def fetch(self, sources: Sequence[Peer], here: ChunkSet = 0) -> None:
        """Begin to fetch the blob."""
        self.nursery.start_soon(self._fetch, [source.id for source in sources], here)

    async def _fetch(self, sources: Sequence[PeerId], here: ChunkSet) -> None:
        blob = self.table.blob
        self.outcome = None
        self.outcome = await self.swarm.fetch(blob, memoryview(self.into), sources, Purpose("checkpoint", 1), here=here)
        if self.outcome:
            self.done_at = trio.current_time()
            assert bytes(self.into) == self.table.data
            self.shelf[blob.name] = in_memory(blob, bytes(self.into))

    def originate(self) -> None:
        """It alone has the blob."""
        self.hold()
        self.swarm.originate(self.table.blob.name, len(self.table.blob))

    def hold(self) -> None:
        """It has the blob on its disk."""
        self.shelf[self.table.blob.name] = in_memory(self.table.blob, self.table.data)

    def here(self) -> ChunkSet:
        """Which chunks of `into` are right: what a restarted peer finds."""
        blob = self.table.blob
        return sum(1 << chunk for chunk in range(len(blob)) if chunk_hash(self.into[blob.span(chunk)]) == blob.leaves[chunk])

    # -- handlers -----------------------------------------------------------------------------------------------------

    def has_member(self, peer: PeerId) -> bool:
        return self.table.has_member(peer)

    def has_allowance(self, peer: PeerId) -> bool:
        return self.has_member(peer)

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        return Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        return await ask(self.swarm, peer, kind, data)

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        chunk = read_chunk_header(header)
        return await self.swarm.open_push(peer, chunk, size) if chunk is not None else None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        chunk = read_chunk_header(header)
        assert chunk is not None
        self.came[chunk.chunk] += landing is not None
        await self.swarm.finish_push(peer, chunk, landing)

    def on_peer_connected(self, peer: PeerId) -> None:
        pass

    def on_peer_disconnected(self, peer: PeerId) -> None:
        self.swarm.gone(peer)


class SwarmTable:
    """Peers on lines of one chunk in `chunk_s`.  strangers: peers that are no members."""

    def __init__(self, nursery: trio.Nursery, seed: int, chunks: int, chunk_s: float, latency_s: float) -> None:
        self.nursery, self.random = nursery, Random(seed)
        self.blob, self.data = a_blob(chunks)
        self.rate = CHUNK_BYTES / chunk_s
        self.least_s = len(self.data) / self.rate
        """What a line needs for the blob."""
        weather = Weather(latency_s=latency_s, jitter_s=latency_s, bytes_per_s=self.rate)
        self.wire = MemoryWire(nursery, Random(seed + 1), weather)
        self.peers: list[Peer] = []
        self.strangers: set[PeerId] = set()

    def has_member(self, peer: PeerId) -> bool:
        return peer not in self.strangers

    def add(self, kind: Callable[[SwarmTable, int], Peer] = Peer, count: int = 1) -> list[Peer]:
        """More peers, started."""
        added = [kind(self, len(self.peers) + number) for number in range(count)]
        self.peers += added
        for peer in added:
            peer.start()
        return added

    def separate(self, degree: int) -> dict[Peer, list[Peer]]:
        """Connect each peer to `degree` others at least, at random, and to no more; who is connected to whom."""
        linked: dict[Peer, dict[Peer, None]] = {peer: {} for peer in self.peers}
        for peer in self.peers:
            for other in self.random.sample(self.peers, min(degree // 2 + 1, len(self.peers))):
                if other is not peer:
                    linked[peer][other] = linked[other][peer] = None
        for at, peer in enumerate(self.peers):
            for other in self.peers[:at]:
                if other not in linked[peer]:
                    self.wire.forget(peer.id, other.id)
        return {peer: [*others] for peer, others in linked.items()}

    async def until_all(self, receivers: Sequence[Peer], within_s: float) -> float:
        """All of these have the blob; returns the seconds since now that it took the last one."""
        start = trio.current_time()
        await self.until(lambda: all(peer.done_at is not None for peer in receivers), within_s)
        return max(peer.done_at or 0.0 for peer in receivers) - start

    async def until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Let virtual time pass until it holds; AssertionError when it does not within `within_s`."""
        with trio.move_on_after(within_s):
            while not condition():
                await trio.sleep(0.05)
            return
        raise AssertionError(f"not within {within_s:.0f} s: {[peer.here().bit_count() for peer in self.peers]}")

    def twice(self, receivers: Sequence[Peer]) -> int:
        """Chunks that arrived at a peer once more than was needed."""
        return sum(count - 1 for peer in receivers for count in peer.came.values())

    def copies_from(self, origin: Peer) -> float:
        """How many blobs' worth of chunks has left a peer."""
        return origin.swarm.up_bytes / len(self.data)


@asynccontextmanager
async def a_swarm_table(
    seed: int = 1, chunks: int = 64, chunk_s: float = CHUNK_S, latency_s: float = 0.02
) -> AsyncIterator[SwarmTable]:
    """An open table, in virtual time."""
    async with trio.open_nursery() as nursery:
        yield SwarmTable(nursery, seed, chunks, chunk_s, latency_s)
        nursery.cancel_scope.cancel()


def set_up(**how: Any) -> pytest.MarkDecorator:
    """Have a test set up its table in another way."""
    return pytest.mark.parametrize("how", [how], ids=[""])


def on_swarm_table(check: Callable[[SwarmTable], Awaitable[None]], **how: Any) -> None:
    """Run `check` in virtual time, at a table that `a_swarm_table` opens."""

    async def main() -> None:
        async with a_swarm_table(**how) as table:
            await check(table)

    with deterministic_trio(how.get("seed", 1)):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def members_of(chunks: ChunkSet) -> list[int]:
    """The chunks of a set as a list."""
    return [*chunks_in(chunks)]
