"""Fetcher of the blocks that a peer reads, from peers and mirrors onto the disk.

The user of a fetcher says which blocks are needed now and which are needed next (`BlockFetcher.need`).  Policy:

* **Order.**  Blocks needed now come first, in reading order.  Blocks needed next are requested once these are here or late.
  Blocks to keep for others (`protocol.corpora.copies`) are fetched only while no peer could send a needed block, and
  never during an exchange.
* **Batches.**  A few blocks of one shard are fetched together through the swarm (`protocol.blobs.swarm`), from all peers
  that have some and from a mirror.
* **Retries.**  A block that no peer sends is requested again after a pause, which doubles each time.
* **Bounds.**  At most `BATCHES` are under way, of `BATCH_BYTES` each.
* **Full disks.**  If a block does not fit on the disk, blocks needed next may leave it.  Then blocks are fetched after
  pauses only, until one fits or other blocks are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import inf
from random import Random

import trio

from protocol.blobs.blob import Blob, ChunkSet, set_of
from protocol.blobs.fetcher import fetch_leaves
from protocol.blobs.mirrors import Mirrors, host_of
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import ChunkPlaces, Purpose
from protocol.bounds import Backoff
from protocol.corpora.copies import BlocksToKeep, KeepRule, missing_of
from protocol.corpora.manifest import Block, Shard
from protocol.corpora.store import BlockStore, space_of
from protocol.disk import StoreFull
from protocol.events.events import Notice
from protocol.offload import Offload
from protocol.short_id import short_id
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

BATCHES = 4
BATCH_BYTES, BATCH_BLOCKS = 8 << 20, 64
TICK_S = 1.0
OWED_S = 4.0
"""Seconds for which blocks needed now are under way before blocks needed next are fetched beside them."""
LEAVES_S = 15.0
"""Seconds for asking peers for the hashes of a shard's blocks, before mirrors are asked."""
FIRST_PAUSE_S, MOST_PAUSE_S = 2.0, 60.0
FIRST_FULL_S, MOST_FULL_S = 10.0, 600.0
"""Pause after a block that did not fit on the disk; twice as long each time, up to the second number."""
TELL_AGAIN_S = 3600.0
KEEP_BATCHES = 2
KEEP_BATCH_BYTES = 2 << 20
"""Batches of blocks to keep for others that are under way at a time, and their size: small, so that they end soon."""


@dataclass(frozen=True)
class FetchPolicy:
    """Choices of a fetcher's user.

    keeps: the rule for the blocks that this peer fetches ahead of need, to keep them for others.  is_seed: returns True for
    peers that train nothing.  name: returns a peer's name for people.  is_busy: returns True while the line should be left
    to a round.
    """

    keeps: KeepRule = KeepRule()
    is_seed: Callable[[PeerId], bool] = lambda peer: False
    name: Callable[[PeerId], str] = short_id
    is_busy: Callable[[], bool] = lambda: False


class BlockOrigin(StrEnum):
    """Origin of blocks.  DISK: blocks that were here when they became needed.  COPY: blocks fetched to keep for others."""

    PEER = "peer"
    SEED = "seed"
    MIRROR = "mirror"
    DISK = "disk"
    COPY = "copy"


@dataclass(eq=False)
class _BlockBatch:
    """Blocks of one shard under way together.

    blocks: the blocks that have not come yet.  since: trio time.  is_kept: True for blocks that nobody here needs, to be
    kept for others.
    """

    shard: Shard
    blocks: list[Block]
    since: float
    is_kept: bool
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class BlockFetcher:
    """Fetcher into the cache of `store`.  Call `run` once; all other methods only wait.

    tally: bytes of blocks since the start, by their origin.
    """

    def __init__(
        self, session: Session, swarm: Swarm, store: BlockStore, mirrors: Mirrors, offload: Offload, policy: FetchPolicy
    ) -> None:
        self._session, self._swarm, self._mirrors, self._offload = session, swarm, mirrors, offload
        self.store, self._policy = store, policy
        self._now: list[Block] = []
        self._next: list[Block] = []
        self._new: set[Block] = set()
        """Needed blocks that were not looked for on the disk yet."""
        self._refused: set[Block] = set()
        """Blocks that the trainer did not find, or found damaged."""
        self._is_told_of_space = self._is_told_of_damage = False
        self._full = ""
        """The sentence of the disk on which the last block did not fit."""
        self._full_backoff = Backoff(FIRST_FULL_S, MOST_FULL_S)
        self._tell_of_full_at = -inf
        self._batches: list[_BlockBatch] = []
        self._pauses: dict[Block, Backoff] = {}
        """Pauses before a block that nobody gave is asked for again."""
        self._ahead = BlocksToKeep(store, policy.keeps, session.me)
        self._leaves_locks: dict[Hash, trio.Lock] = {}
        self._random = Random(session.me)
        self._came, self._wake = trio.Event(), trio.Event()
        self.tally: Counter[BlockOrigin] = Counter()

    # -- needs --------------------------------------------------------------------------------------------------------

    def need(self, now: Sequence[Block], following: Sequence[Block] = ()) -> None:
        """Set the blocks that are needed, both in reading order; they stay in the cache until the next call.

        following: fetched ahead as far as they fit under the cache's cap.
        """
        before, current = {*self._now, *self._next}, set(now)
        self._now, self._next = list(dict.fromkeys(now)), []
        space, cap = sum(map(space_of, self._now)), self.store.cache.cap_bytes
        if space > cap and not self._is_told_of_space:
            self._is_told_of_space = True
            text = f"the blocks of one round take {space >> 20} MiB, more than the {cap >> 20} MiB that blocks may take"
            self._session.emit(Notice("warning", f"{text}; raise the limit on blocks, or let this peer do fewer steps"))
        for block in dict.fromkeys(following):
            if block not in current:
                space += space_of(block)
                if space > cap:
                    break
                self._next.append(block)
        needed = {*self._now, *self._next}
        self.store.cache.pin([*self._next, *self._now])
        self._new |= needed - before
        self._pauses = {block: pause for block, pause in self._pauses.items() if block in needed}
        if needed != before:
            self._full_backoff.reset()  # other blocks may leave the disk now
        for batch in self._batches:
            if needed.isdisjoint(batch.blocks) and not batch.is_kept:
                batch.scope.cancel()
        self._wake.set()

    def recheck(self, block: Block) -> None:
        """Check a block on the disk, because the trainer found no undamaged copy; a damaged block is fetched again."""
        self._refused.add(block)
        self._wake.set()

    async def until_here(self, blocks: Sequence[Block]) -> None:
        """Wait until these blocks, which are needed, are on this computer."""
        came = self._came
        while await self._offload(missing_of, self.store, blocks):
            with trio.move_on_after(TICK_S):
                await came.wait()
            came = self._came

    # -- reports ------------------------------------------------------------------------------------------------------

    async def waiting_for(self) -> str:
        """Return a sentence about the first block that is needed now and not here; "" if all are here."""
        current = self._now
        missing: list[Block] = await self._offload(missing_of, self.store, current)
        if not missing:
            return ""
        whole, left = sum(block.size for block in current), sum(block.size for block in missing)
        share = f"{100 * (whole - left) // whole} % of this round's blocks are here"
        if self._full:
            return f"waiting for disk space for blocks ({share}): {self._full}"
        first, name = missing[0], self._policy.name
        called = self.store.shards[first.shard].name_of(first.number)
        if asked := self._swarm.asked_for(first.shard, first.number):
            owing = [f"the mirror {host}" if (host := host_of(each)) else name(PeerId(each)) for each in asked]
            return f"waiting for {called}, from {' and '.join(owing[:2])} ({share})"
        return (
            f"waiting for {called}, which no peer and no mirror has given yet ({share}): "
            "ask the organiser to start a peer that has the corpus"
        )

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch needed blocks until cancelled.  Raises `StoreFailed`."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = wake = trio.Event()
                needed, refused = [*self._now, *self._next], self._refused
                new, self._new, self._refused = self._new & {*needed}, set(), set()
                await self._offload(self.store.cache.check, new)
                await self._drop_damaged(refused)
                missing: list[Block] = await self._offload(missing_of, self.store, needed)
                self.tally[BlockOrigin.DISK] += sum(block.size for block in new - set(missing))
                await self._offload(self._ahead.look, trio.current_time())
                missing = [block for block in missing if not self.store.cache.has(block)]  # some may have come meanwhile
                for batch in self._batches:
                    self._swarm.add_sources(batch.shard.root, sorted(self._session.network.connected()))
                for batch in self._plan(missing):
                    nursery.start_soon(self._fetch, batch)
                with trio.move_on_after(TICK_S):
                    await wake.wait()

    async def _drop_damaged(self, blocks: Collection[Block]) -> None:
        """Read these blocks, so that damaged ones count as missing, and name the first one."""
        for block in blocks:
            here: ChunkSet = await self._offload(self.store.here, block.shard)
            if here >> block.number & 1 and await self._offload(self.store.read, block) is None:
                called = self.store.shards[block.shard].name_of(block.number)
                text = f"{called} is damaged on this computer, and is fetched again"
                remedy = "`peer data verify FOLDER` checks a corpus in a folder"
                if not self._is_told_of_damage:
                    self._session.emit(Notice("warning", f"{text}; {remedy}"))
                self._is_told_of_damage = True

    def _plan(self, missing: Sequence[Block]) -> Iterator[_BlockBatch]:
        """Yield the batches to begin now.  missing: needed blocks, in order."""
        now = trio.current_time()
        if now < self._full_backoff.until:
            return
        while sum(not batch.is_kept for batch in self._batches) < BATCHES and (free := self._free(missing, now)):
            yield self._begin(free, is_kept=False)
        while all(batch.is_kept for batch in self._batches) and len(self._batches) < KEEP_BATCHES:
            under_way = [block for batch in self._batches for block in batch.blocks]
            free = self._askable(self._ahead.fitting([*missing, *under_way]), now) if not self._policy.is_busy() else []
            if not free:
                return
            yield self._begin(free, is_kept=True)

    def _free(self, missing: Sequence[Block], now: float) -> list[Block]:
        """Return the needed blocks to ask for now; blocks needed next wait until blocks needed now are here or late."""
        batches, current = [batch for batch in self._batches if not batch.is_kept], set(self._now)
        under_way = {block for batch in batches for block in batch.blocks}
        free = self._askable([block for block in missing if block not in under_way], now)
        if urgent := [block for block in free if block in current]:
            return urgent
        return free if all(current.isdisjoint(batch.blocks) for batch in batches if batch.since > now - OWED_S) else []

    def _askable(self, blocks: Sequence[Block], now: float) -> list[Block]:
        """Return the blocks that peers or mirrors may be asked for now."""
        has_peers = bool(self._session.network.connected())
        shards = {root for root in {block.shard for block in blocks} if has_peers or self._mirrors.ready(root)}
        waits = {block for block, pause in self._pauses.items() if pause.until > now}
        return [block for block in blocks if block.shard in shards and block not in waits]

    def _begin(self, blocks: Sequence[Block], *, is_kept: bool) -> _BlockBatch:
        """Begin a batch: the first of these blocks, and as many others of its shard as fit."""
        most_bytes, chosen, size = KEEP_BATCH_BYTES if is_kept else BATCH_BYTES, list[Block](), 0
        for block in blocks:
            if block.shard == blocks[0].shard:
                size += block.size
                if chosen and (size > most_bytes or len(chosen) >= BATCH_BLOCKS):
                    break
                chosen.append(block)
        batch = _BlockBatch(self.store.shards[chosen[0].shard], chosen, trio.current_time(), is_kept)
        self._batches.append(batch)
        self._ahead.take(chosen)
        return batch

    async def _fetch(self, batch: _BlockBatch) -> None:
        shard = batch.shard

        async def keep(number: int, data: memoryview, source: str) -> None:
            await self._keep(source, shard.block(number), data)

        def read(number: int) -> bytes | None:
            return self.store.read(shard.block(number))

        try:
            with batch.scope:
                leaves = await self._leaves_of(shard)
                if leaves is not None and batch.blocks:
                    here: ChunkSet = await self._offload(self.store.here, shard.root)
                    places = ChunkPlaces(set_of([block.number for block in batch.blocks]), keep, read)
                    blob, purpose = Blob.cut(shard.root, leaves, shard.spans), Purpose("blocks", shard.number, batch.is_kept)
                    await self._swarm.fetch(blob, places, self._peers(), purpose, here=here, mirrors=self._mirrors)
        except StoreFull as error:
            self._on_full(str(error))
        finally:
            self._batches.remove(batch)
            for block in batch.blocks:
                self._pauses.setdefault(block, Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)).failed(trio.current_time())
            self._wake.set()

    def _on_full(self, sentence: str) -> None:
        """Pause, because a block did not fit on the disk, and let the blocks that are needed next leave."""
        if trio.current_time() >= self._tell_of_full_at:
            self._tell_of_full_at = trio.current_time() + TELL_AGAIN_S
            text = f"blocks of the run's corpora do not fit on the disk; training continues with those here: {sentence}"
            self._session.emit(Notice("warning", text))
        self._full, self._next = sentence, []
        self.store.cache.pin(self._now)
        self._full_backoff.failed(trio.current_time())
        for batch in self._batches:
            batch.scope.cancel()

    def _peers(self) -> list[PeerId]:
        """Return the connected peers, the most reliable first, equals in random order."""
        peers = sorted(self._session.network.connected())
        self._random.shuffle(peers)
        return self._swarm.reliability.in_order(peers)

    async def _leaves_of(self, shard: Shard) -> Sequence[Hash] | None:
        """Return the hashes of a shard's blocks, from the disk, from peers, or from a mirror; keep them in the cache."""
        lock = self._leaves_locks.setdefault(shard.root, trio.Lock())
        try:
            async with lock:
                return await self._find_leaves(shard)
        finally:
            if not lock.locked():
                self._leaves_locks.pop(shard.root, None)

    async def _find_leaves(self, shard: Shard) -> Sequence[Hash] | None:
        kept: Sequence[Hash] | None = await self._offload(self.store.cache.leaves, shard.root)
        if kept is not None:
            return kept
        found: Sequence[Hash] | None = await self._offload(self.store.leaves, shard.root)
        peers = self._peers()
        if found is None and peers:
            with trio.move_on_after(LEAVES_S):
                found = await fetch_leaves(self._session, self._swarm.reliability, shard.root, len(shard), peers, "corpus")
        if found is None:
            found = await self._mirrors.read_leaves(shard.root, len(shard))
        if found is not None:
            await self._offload(self.store.cache.write_leaves, shard.root, found)
        return found

    # -- arrivals -----------------------------------------------------------------------------------------------------

    async def _keep(self, source: str, block: Block, data: memoryview) -> None:
        """Keep a block that a source sent, and whose bytes are right.  Raises `StoreFailed`."""
        if await self._offload(partial(self.store.cache.put, block, data, kept=self._ahead.keeps)):
            self._full = ""
            self._full_backoff.reset()
            origin = BlockOrigin.SEED if self._policy.is_seed(PeerId(source)) else BlockOrigin.PEER
            if block not in self._now and block not in self._next:
                origin = BlockOrigin.COPY
            elif host_of(source):
                origin = BlockOrigin.MIRROR
            self.tally[origin] += block.size
        for batch in self._batches:
            if block in batch.blocks:
                batch.blocks.remove(block)
        self._pauses.pop(block, None)
        self._came.set()
        self._came = trio.Event()
