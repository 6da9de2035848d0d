"""Blocks of the run's corpora on this peer: fetched as its rows need them, and kept for others.

`Contributor` says which rows this peer reads in a round (`LeasedBlocks.lease`), and the trainer process reads the blocks
from the disk.  If it lacks one, for training or for the held-out loss, it says so, and the block is fetched first.
"""

from __future__ import annotations

import trio

from protocol.blobs.swarm import Swarm
from protocol.chain.leases import Ranges
from protocol.corpora.copies import KeepRule
from protocol.corpora.fetcher import BlockFetcher, BlockOrigin, FetchPolicy
from protocol.corpora.leased import blocks_needed
from protocol.corpora.manifest import Block
from protocol.corpora.mirrors import Mirrors
from protocol.corpora.ranges import AddressPolicy, RangeClient
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.node.copies import CopyCensus
from protocol.node.run_corpora import RunCorpora
from protocol.offload import Offload
from protocol.sync.supplies import RunFiles
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Phase, Role

MAX_ASKED = 64
"""Most blocks that the trainer has asked for, besides those of its leases, that stay in the cache."""
SHOW_S = 1.0


class LeasedBlocks:
    """Fetching of the blocks of this peer's rows.  Call `run` once."""

    def __init__(
        self,
        session: Session,
        corpora: RunCorpora,
        files: RunFiles,
        swarm: Swarm,
        census: CopyCensus,
        activity: Activity,
        offload: Offload,
    ) -> None:
        self._session, self._corpora, self._files = session, corpora, files
        self._swarm, self._census, self._activity, self._offload = swarm, census, activity, offload
        self._membership = census.membership
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
        keeps = KeepRule(self._settings.keep_share, self._census.others, mirrored=bool(self._manifest.data.mirrors))
        policy = FetchPolicy(keeps, self._is_seed, self._membership.name, self._is_in_exchange)
        fetcher = BlockFetcher(self._session, self._swarm, store, mirrors, self._offload, policy)
        self._fetcher = fetcher
        await self.lease(*self._rows)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetcher.run)
            nursery.start_soon(self._tell_of_waits)

    def _is_in_exchange(self) -> bool:
        return self._activity.phase in (Phase.EXCHANGING, Phase.VOTING)

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
