"""Blocks of the run's corpora on this peer: fetched as its rows need them, and kept for others.

`Contributor` says which rows this peer reads in a round (`LeasedBlocks.lease`), and the trainer process reads the blocks
from the disk.  If it lacks one, for training or for the held-out loss, it says so, and the block is fetched first.

A block that no peer sends does not stop the training.  It counts as **lost** once no live peer shows it, or after the
trainer has waited for it in vain.  This peer then reads the steps of its column that need no lost block
(`LeasedBlocks.choose`); the others return to the pool, where they are leased first.  It waits only if it finds no such step.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.blobs.mirrors import Mirrors, RangeClient
from protocol.blobs.swarm import Swarm
from protocol.bounds import BoundedDict
from protocol.chain.leases import Ranges, Stretches, count_rows, rows_among
from protocol.corpora.copies import KeepRule
from protocol.corpora.fetcher import BlockFetcher, BlockOrigin, FetchPolicy
from protocol.corpora.manifest import SHARDS, Block, blocks_needed
from protocol.corpora.store import RunCorpora
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.node.copies import CopyCensus
from protocol.offload import Offload
from protocol.sync.fetchers import RunFiles
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import MAX_STRETCHES
from protocol.wire.presence import Phase, Role

MAX_ASKED = 64
"""Most blocks that the trainer has asked for, besides those of its leases, that stay in the cache."""
SHOW_S, AWAITED_S = 1.0, 5.0
"""Seconds between two sentences about a wait, and seconds without a question of the trainer after which a block is here."""
LOST_S, OWED_S = 30.0, 120.0
"""Seconds for which the trainer waits for a block that nobody was asked for, and for one that some peer should send."""
NOWHERE_S = 5.0
"""Seconds for which the trainer waits for a block that no live peer shows."""
LOST_FOR_S = 300.0
"""Seconds for which a block counts as lost after the trainer has waited for it in vain."""
LOOKED_AT = 64
"""Most slots of the column that are searched for readable steps, beginning at the place that was found last."""


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
        self._asked = BoundedDict[Block, None](MAX_ASKED)
        self._rows: tuple[Ranges, Ranges] = (), ()
        self._stalled = trio.Event()
        """Set while the trainer waits for a block of its lease."""
        self._awaited: tuple[Block, float, float] | None = None
        """The block for which the trainer waits, and when it first and last said so."""
        self._lost: dict[Block, float] = {}
        """Blocks for which the trainer waited in vain, with the time until which they count as lost."""
        self._found_at = 0
        """Place in the column at which readable steps were found last."""

    async def run(self) -> None:
        """Fetch blocks until cancelled.  Raises `CorpusFlawed` and `StoreFailed`."""
        await self._files.until_here()
        store = await self._offload(self._corpora.open)
        client = RangeClient(self._settings.mirror_networks, pay=self._session.network.receive_elsewhere)
        urls = [f"{url.rstrip('/')}/{SHARDS}" for url in self._manifest.data.mirrors]
        mirrors = Mirrors(urls, client, self._session.me, self._session.emit)
        keeps = KeepRule(self._settings.keep_share, self._census.others, mirrored=bool(self._manifest.data.mirrors))

        def is_seed(peer: PeerId) -> bool:
            known = self._membership.get(peer)
            return known is not None and known.heartbeat.role is Role.SEED

        def is_busy() -> bool:
            return self._activity.phase in (Phase.EXCHANGING, Phase.VOTING)

        policy = FetchPolicy(keeps, is_seed, self._membership.name, is_busy)
        fetcher = BlockFetcher(self._session, self._swarm, store, mirrors, self._offload, policy)
        self._fetcher = fetcher
        await self.lease(*self._rows)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetcher.run)
            nursery.start_soon(self._tell_of_waits)

    async def _tell_of_waits(self) -> None:
        while True:
            await self._stalled.wait()
            if sentence := await self.waiting_for():
                self._activity.stall(WhyIdle.FETCHING_DATA, sentence[:200])
            self._stalled = trio.Event()
            await trio.sleep(SHOW_S)

    # -- lost blocks --------------------------------------------------------------------------------------------------

    async def choose(self, column: Callable[[int], Ranges], wanted: int) -> Stretches:
        """Return the stretches of our column to read for `wanted` steps; none if no readable step was found.

        column: returns the rows of a slot of the column, by its place.
        """
        if self._fetcher is None:
            return ((0, wanted),)
        now, shown = trio.current_time(), self._census.shown()
        given_up = frozenset(block for block, until in self._lost.items() if until > now)

        def is_lost(block: Block) -> bool:
            store = self._corpora.store
            is_here = store is not None and store.here(block.shard) >> block.number & 1
            return not is_here and (block in given_up or shown.lacks(block))

        found: Stretches = await self._offload(self._choose, column, wanted, is_lost)
        return found

    def _choose(self, column: Callable[[int], Ranges], wanted: int, is_lost: Callable[[Block], bool]) -> Stretches:
        step_rows, steps = self._manifest.data.sequences_per_step, self._manifest.round_steps
        places = [0, *range(max(1, self._found_at), max(1, self._found_at) + LOOKED_AT)]
        chosen, left = list[tuple[int, int]](), wanted
        for place in places:
            rows = column(place)
            for start, end in self._readable(rows, step_rows, is_lost):
                end = min(end, start + left)
                first, last = place * steps + start, place * steps + end
                if chosen and chosen[-1][1] == first:
                    first = chosen.pop()[0]
                elif len(chosen) >= MAX_STRETCHES or not left:
                    break
                chosen.append((first, last))
                left -= end - start
            if left <= wanted // 2 or len(chosen) >= MAX_STRETCHES:
                break
            self._found_at = place
        else:
            self._found_at = 0  # begin again, because blocks may have arrived
        return tuple(chosen)

    def _readable(self, rows: Ranges, step_rows: int, is_lost: Callable[[Block], bool]) -> list[tuple[int, int]]:
        """Return the ranges of the steps of these rows that need no lost block.  Blocking."""
        steps = count_rows(rows) // step_rows
        if not any(map(is_lost, self._blocks(rows))):
            return [(0, steps)] if steps else []
        found = list[tuple[int, int]]()
        for step in range(steps):
            blocks = self._blocks(rows_among(rows, ((step * step_rows, (step + 1) * step_rows),)))
            if not any(map(is_lost, blocks)):
                found.append((found.pop()[0] if found and found[-1][1] == step else step, step + 1))
        return found

    async def until_lost(self) -> None:
        """Wait until the trainer has waited in vain for a block, which counts as lost from then on."""
        while True:
            if self._awaited is not None:
                block, since, last = self._awaited
                now, patience_s = trio.current_time(), LOST_S
                if self._census.shown().lacks(block):
                    patience_s = NOWHERE_S
                elif self._swarm.asked_for(block.shard, block.number):
                    patience_s = OWED_S
                if now - last > AWAITED_S:
                    self._awaited = None  # the block has arrived
                elif now - since >= patience_s:
                    self._lost[block], self._awaited = now + LOST_FOR_S, None
                    return
            await trio.sleep(SHOW_S)

    @property
    def counted(self) -> trio.Event:
        """Event that is set when the copies are counted again."""
        return self._census.counted

    def about_lost(self, rows: Ranges) -> str:
        """Return a sentence about the first block of these rows that is not here, and that no peer has."""
        store, blocks = self._corpora.store, self._blocks(rows)
        assert store is not None
        lost = next((block for block in blocks if not store.here(block.shard) >> block.number & 1), None)
        if lost is None:
            return "looking for rows whose blocks are here"
        called, holders = store.shards[lost.shard].name_of(lost.number), self._census.last_holders(lost)
        had = " and ".join(self._membership.name(peer) for peer in holders[:2])
        last = f"{had} had it last" if had else "ask the organiser to start a peer that has the corpus"
        return f"waiting for {called}: no peer has it now, or any other rows that this peer may read; {last}"

    # -- needs --------------------------------------------------------------------------------------------------------

    async def lease(self, rows: Ranges, following: Ranges = ()) -> None:
        """Fetch the blocks of these rows of the run, and then the blocks of the rows that this peer expects to read next."""
        self._rows = rows, following
        if self._fetcher is None:
            return
        self._leased = await self._offload(self._blocks, rows), await self._offload(self._blocks, following)
        shown = self._census.shown()
        self._leased[1][:] = [block for block in self._leased[1] if not shown.lacks(block)]
        self._tell()

    def ask(self, shard: Hash, number: int) -> None:
        """Fetch a block that the trainer waits for, before all others."""
        store = self._corpora.store
        if store is None or (known := store.shards.get(shard)) is None or not 0 <= number < len(known):
            return
        block = known.block(number)
        if self._fetcher is not None:
            self._fetcher.recheck(block)
        if block in self._leased[0]:
            now = trio.current_time()
            since = self._awaited[1] if self._awaited is not None and self._awaited[0] == block else now
            self._awaited = block, since, now
            self._stalled.set()
            return
        self._asked.renew(block, None)
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
        self._fetcher.need([*[*self._asked][::-1], *now], following)
