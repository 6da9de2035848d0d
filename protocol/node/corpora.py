"""Corpora of the run on this peer: opened once their manifests are here, and fetched block by block as the rows need them.

`Contributor` says which rows this peer reads in a round (`LeasedBlocks.lease`), and the trainer process reads the blocks
from the disk.  If it lacks one, for training or for the held-out loss, it says so, and the block is fetched first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from protocol.blobs.store import BlobStore, Held, Holding
from protocol.blobs.swarm import Swarm
from protocol.chain.leases import Ranges
from protocol.corpora.cache import BlockCache, BlockStore
from protocol.corpora.fetcher import BlockFetcher, BlockOrigin, FetchPolicy
from protocol.corpora.fitting import corpora_flaw, source_in
from protocol.corpora.leased import MixedSplit, blocks_needed
from protocol.corpora.manifest import Block, CorpusManifest, read_manifest
from protocol.corpora.mirrors import Mirrors
from protocol.corpora.ranges import AddressPolicy, RangeClient
from protocol.corpora.shards import CorpusShelf, shards_of
from protocol.disk import Disk
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.offload import Offload
from protocol.run.manifest import RunManifest
from protocol.run.sections import CORPORA
from protocol.run.settings import CorpusSettings
from protocol.sync.supplies import RunFiles, paths_of
from protocol.transport.interface import Session
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role

MAX_ASKED = 64
"""Most blocks that the trainer has asked for, besides those of its leases, that stay in the cache."""
SHOW_S = 1.0


class CorpusFlawed(Exception):
    """Error for corpora that do not fit the run; the text is one sentence with the remedy."""


class RunCorpora:
    """The run's corpora on disk: a `protocol.blobs.store.ListedShelf`, empty until `open`.

    disk: where the run's other files lie as well, under the same limit.  store, splits: blocks, and training splits of the
    run's sources; None and empty until `open`.
    """

    def __init__(self, manifest: RunManifest, files: BlobStore, disk: Disk, settings: CorpusSettings) -> None:
        self.manifest, self._files, self._disk, self.settings = manifest, files, disk, settings
        self.store: BlockStore | None = None
        self.splits: list[MixedSplit] = []

    def open(self) -> BlockStore:
        """Read the manifests of the corpora, which must be here, and the blocks on disk.  Blocking.

        Raises `CorpusFlawed` and `StoreFailed`.
        """
        assert self.settings.blocks is not None, "a peer of a run with corpora has a folder for their blocks"
        corpora = [self._read(path) for name, path in paths_of(self.manifest, self._files).items() if self._is_ours(name)]
        if flaw := corpora_flaw(self.manifest, corpora):
            raise CorpusFlawed(f"the run's data cannot be read: {flaw}; ask the organiser for a new run")
        shards = shards_of(corpora)
        cache = BlockCache(self._disk, self.settings.blocks, shards, self.settings.cache_bytes)
        cache.load()
        self.splits = splits_of(self.manifest, corpora)
        self.store = BlockStore(cache, [CorpusShelf(folder, shards) for folder in self.settings.folders], shards)
        return self.store

    @staticmethod
    def _is_ours(name: str) -> bool:
        return name.startswith(CORPORA)

    def _read(self, path: Path) -> CorpusManifest:
        try:
            return read_manifest(path.read_bytes())
        except Malformed as error:
            raise CorpusFlawed(f"the run's data cannot be read: {error}; ask the organiser for a new run") from error

    def find(self, name: Hash) -> Held | None:
        """Return the blocks of a shard as `Shelf.find` describes."""
        return self.store.find(name) if self.store is not None else None

    def holdings(self) -> list[Holding]:
        """Return the whole shards as `ListedShelf.holdings` describes."""
        return self.store.holdings() if self.store is not None else []


class LeasedBlocks:
    """Fetching of the blocks of this peer's rows.  Call `run` once."""

    def __init__(
        self,
        session: Session,
        corpora: RunCorpora,
        files: RunFiles,
        swarm: Swarm,
        membership: Membership,
        activity: Activity,
        offload: Offload,
    ) -> None:
        self._session, self._corpora, self._files = session, corpora, files
        self._swarm, self._membership, self._activity, self._offload = swarm, membership, activity, offload
        self._manifest, self._settings = corpora.manifest, corpora.settings
        self._mixture = corpora.manifest.mixture
        self._fetcher: BlockFetcher | None = None
        self._leased: tuple[list[Block], list[Block]] = [], []
        self._asked: dict[Block, None] = {}
        self._rows: tuple[Ranges, Ranges] = (), ()
        self._stalled = trio.Event()
        """Set while the trainer waits for a block of its lease."""

    async def run(self) -> None:
        """Fetch blocks until cancelled.  Raises `CorpusFlawed` and `StoreFailed`."""
        await self._files.until_here()
        store = await self._offload(self._corpora.open)
        client = RangeClient(AddressPolicy(self._settings.mirror_networks), pay=self._session.network.receive_elsewhere)
        mirrors = Mirrors(self._manifest.data.mirrors, client, self._session.me, self._session.emit)
        policy = FetchPolicy(self._settings.keep_share, self._is_seed, self._membership.name)
        fetcher = BlockFetcher(self._session, self._swarm, store, mirrors, self._offload, policy)
        self._fetcher = fetcher
        await self.lease(*self._rows)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetcher.run)
            nursery.start_soon(self._tell_of_waits)

    def _is_seed(self, peer: PeerId) -> bool:
        known = self._membership.get(peer)
        return known is not None and known.heartbeat.role is Role.SEED

    async def _tell_of_waits(self) -> None:
        while True:
            await self._stalled.wait()
            if sentence := await self.waiting_for():
                self._activity.stall(WhyIdle.FETCHING_DATA, sentence[:200])
            self._stalled = trio.Event()
            await trio.sleep(SHOW_S)

    async def lease(self, rows: Ranges, following: Ranges = ()) -> None:
        """Fetch the blocks of these rows of the run, and then those of the rows that this peer expects to read next."""
        self._rows = rows, following
        if self._fetcher is None:
            return
        self._leased = await self._offload(self._blocks, rows), await self._offload(self._blocks, following)
        self._tell()

    def ask(self, shard: Hash, number: int) -> None:
        """Fetch a block that the trainer waits for, before all others."""
        store = self._corpora.store
        if store is None or (known := store.shards.get(shard)) is None or not 0 <= number < len(known):
            return
        block = known.block(number)
        if block in self._leased[0]:
            if self._fetcher is not None:
                self._fetcher.recheck(block)
            self._stalled.set()
            return
        self._asked.pop(block, None)
        self._asked[block] = None
        while len(self._asked) > MAX_ASKED:
            del self._asked[next(iter(self._asked))]
        self._tell()

    async def waiting_for(self) -> str:
        """Return a sentence about the first block that is needed and not here; empty if there is none."""
        if self._fetcher is None:
            return "waiting for the descriptions of the run's corpora"
        return await self._fetcher.waiting_for()

    def tally(self) -> dict[str, int]:
        """Return the bytes of needed blocks since the start, by their origin."""
        counted = self._fetcher.tally if self._fetcher is not None else {}
        return {origin.value: counted.get(origin, 0) for origin in BlockOrigin}

    def _blocks(self, rows: Ranges) -> list[Block]:
        return blocks_needed(self._corpora.splits, self._mixture, rows, self._manifest.data.sequence_length)

    def _tell(self) -> None:
        assert self._fetcher is not None
        now, following = self._leased
        self._fetcher.need([*reversed(self._asked), *now], following)


def splits_of(run: RunManifest, corpora: Sequence[CorpusManifest]) -> list[MixedSplit]:
    """Return the training splits of the run's sources, in their order.  The corpora must fit the run."""
    found = [(corpora[source.corpus], source_in(corpora, source)) for source in run.data.sources]
    return [MixedSplit(corpus, source.train) for corpus, source in found if source is not None]
