"""Peers that read a corpus, on the simulated network and with mirrors in memory, in virtual time."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_network
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import trio
import trio.testing

from protocol.blobs.blob import read_chunk_header
from protocol.blobs.mirrors import Mirrors, RangeClient
from protocol.blobs.swarm import Swarm
from protocol.corpora.fetcher import BlockFetcher, FetchPolicy
from protocol.corpora.manifest import SHARDS, Block
from protocol.corpora.store import BlockCache, BlockStore, CorpusShelf
from protocol.disk import Disk
from protocol.events.events import Event, Notice
from protocol.transport.interface import Acceptance, Landing, Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from tests.protocol.answering import ask
from tests.protocol.corpora.corpora import Corpus, a_corpus
from tests.protocol.corpora.web import Web
from tests.protocol.virtual_time import Check, given_first
from tests.simulation.determinism import deterministic_trio, inline
from tests.simulation.network import MemoryNetwork
from tests.simulation.wire import MemoryWire, Weather

RUN = Hash(bytes(32))
RATE = 1 << 20


class SmallDisk(Disk):
    """A disk for so many bytes, in the files of `folder`; further ones do not fit."""

    def __init__(self, folder: Path, room_bytes: int) -> None:
        super().__init__(durable=False)
        self.folder, self.room_bytes = folder, room_bytes

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        used = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        if used + len(data) > self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(file, data)


class Reader:
    """One peer with a swarm, a cache and a fetcher.  arrived: bytes of blocks that came to it in pushes."""

    def __init__(
        self, table: BlockTable, number: int, cap_bytes: int, policy: FetchPolicy, disk: Disk, *, built: bool
    ) -> None:
        self.table, self.number = table, number
        self.identity = Identity.from_seed(hashlib.blake2b(f"{number}".encode(), digest_size=32).digest())
        self.id, self.events, self.arrived = self.identity.peer_id, list[Event](), 0
        shards = table.corpus.shards
        self.cache = BlockCache(disk, table.folder / str(number), shards, cap_bytes)
        self.cache.load()
        shelves = [CorpusShelf(table.folder / "built", shards)] if built else []
        self.store = BlockStore(self.cache, shelves, shards)
        self.network = MemoryNetwork(table.wire, self.id, self)
        session = Session(self.identity, RUN, self.network, self.events.append)
        self.swarm = Swarm(session, table, self.store.find, inline)
        client = RangeClient([ip_network("127.0.0.1/32")], dialer=table.web)
        mirrors = Mirrors([f"{url}/{SHARDS}" for url in table.urls], client, self.id, self.events.append)
        self.mirrors = mirrors
        self.fetcher = BlockFetcher(session, self.swarm, self.store, mirrors, inline, policy)
        self._scope = trio.CancelScope()
        table.wire.join(self.network)
        table.nursery.start_soon(self._live)

    async def _live(self) -> None:
        with self._scope:
            async with trio.open_nursery() as self.nursery:
                for part in (self.network, self.swarm, self.fetcher):
                    self.nursery.start_soon(part.run)

    def crash(self) -> None:
        self.table.wire.crash(self.id)
        self._scope.cancel()

    async def read(self, blocks: Sequence[Block], within_s: float = 600.0) -> float:
        """Need these blocks and wait for them; returns the seconds that it took."""
        start = trio.current_time()
        self.fetcher.need(blocks)
        with trio.fail_after(within_s):
            await self.fetcher.until_here(blocks)
        assert all(self.store.read(block) == self.table.corpus.bytes_of(block) for block in blocks)
        return trio.current_time() - start

    def warnings(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice) and event.level == "warning"]

    # -- handlers -----------------------------------------------------------------------------------------------------

    def has_member(self, peer: PeerId) -> bool:
        return True

    def has_allowance(self, peer: PeerId) -> bool:
        return True

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
        self.arrived += len(landing.buffer) if landing is not None else 0
        await self.swarm.finish_push(peer, chunk, landing)

    def on_peer_connected(self, peer: PeerId) -> None:
        pass

    def on_peer_disconnected(self, peer: PeerId) -> None:
        self.swarm.gone(peer)


class BlockTable:
    """Peers on equal lines, a corpus, and a web with its mirrors.  urls: of the mirrors."""

    def __init__(self, nursery: trio.Nursery, folder: Path, corpus: Corpus) -> None:
        self.nursery, self.folder, self.corpus = nursery, folder, corpus
        corpus.write(folder / "built")
        self.random = Random(2)
        self.wire = MemoryWire(nursery, Random(1), Weather(latency_s=0.02, jitter_s=0.02, bytes_per_s=RATE))
        self.web, self.urls = Web(nursery), list[str]()
        self.readers: list[Reader] = []

    def has_member(self, peer: PeerId) -> bool:
        return True

    def add(
        self,
        kind: Callable[..., Reader] = Reader,
        *,
        cap_bytes: int = 1 << 30,
        policy: FetchPolicy | None = None,
        disk: Disk | None = None,
        built: bool = False,
    ) -> Reader:
        """Another peer.  built: it has the whole corpus, as a person built it."""
        disk = disk or Disk(durable=False)
        reader = kind(self, len(self.readers), cap_bytes, policy or FetchPolicy(), disk, built=built)
        self.readers.append(reader)
        return reader


def on_block_table(corpus: Corpus, check: Callable[[BlockTable], Awaitable[None]]) -> None:
    """Run `check` in virtual time."""

    async def main(folder: Path) -> None:
        async with trio.open_nursery() as nursery:
            await check(BlockTable(nursery, folder, corpus))
            nursery.cancel_scope.cancel()

    with TemporaryDirectory() as folder, deterministic_trio(1):
        trio.run(main, Path(folder), clock=trio.testing.MockClock(autojump_threshold=0))


def block_table(corpus: Corpus | None = None, **made: Any) -> Callable[[Check], Callable[..., None]]:
    """Make a test of a block table one that pytest runs.  made: what `a_corpus` makes the corpus from, if none is given."""

    def provide(check: Check) -> None:
        on_block_table(corpus or a_corpus(**made), check)

    return lambda test: given_first(test, provide)
