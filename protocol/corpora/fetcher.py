"""Fetcher of the blocks that a peer reads, from peers and mirrors onto the disk.

The user of a fetcher says which blocks are needed now and which are needed next (`BlockFetcher.need`).  Policy:

* **Order.**  Blocks needed now come first, in reading order.  Those needed next are asked for once these are here or late.
  Blocks to keep for others (`protocol.corpora.copies`) are fetched while nothing is needed that somebody could send, and not
  while a round is exchanged.
* **Batches.**  A few blocks of one shard are fetched together: through the swarm (`protocol.blobs.swarm`) from all peers
  that have some, or in one range from one mirror.  Peers and mirrors work at the same time on different blocks.  Once all
  needed blocks are under way, mirrors are also asked for blocks that peers have owed us for a while, and vice versa.
* **Retries.**  A block that no peer gives is asked of peers again after a pause, twice as long each time.
* **Bounds.**  At most `PEER_BATCHES` and `MIRROR_BATCHES` are under way, of `BATCH_BYTES` each.
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
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose, Transfer
from protocol.bounds import Backoff
from protocol.corpora.cache import BlockStore, space_of
from protocol.corpora.copies import BlocksToKeep, KeepRule, missing_of
from protocol.corpora.manifest import Block
from protocol.corpora.mirrors import Mirrors
from protocol.corpora.shards import Shard
from protocol.disk import StoreFull
from protocol.events.events import Notice
from protocol.offload import Offload
from protocol.short_id import short_id
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

PEER_BATCHES, MIRROR_BATCHES = 4, 2
BATCH_BYTES, BATCH_BLOCKS = 8 << 20, 64
TICK_S = 1.0
OWED_S = 4.0
"""Seconds for which peers owe us a block before a mirror is asked for it as well, and vice versa."""
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

    keeps: the rule of what this peer fetches ahead of need, to keep it for others.  is_seed: returns True for peers that
    train nothing.  name: returns a peer's name for people.  is_busy: returns True while the line should be left to a round.
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

    blocks: those that have not come yet.  since: trio time.  mirror: name of the mirror that is asked; "" while none is;
    None if peers are asked.  is_kept: True for blocks that nobody here needs, to be kept for others.
    """

    shard: Shard
    blocks: list[Block]
    since: float
    mirror: str | None
    is_kept: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(frozen=True)
class _Places:
    """Places of the blocks of a shard in the store: a `protocol.blobs.transfer.ChunkPlaces`."""

    fetcher: BlockFetcher
    shard: Shard
    wanted: ChunkSet

    async def write(self, chunk: int, data: memoryview, peer: PeerId) -> None:
        """Write a block as `ChunkPlaces.write` describes."""
        await self.fetcher.keep_from(peer, self.shard.block(chunk), data)

    def read(self, chunk: int) -> bytes | None:
        """Return a block as `ChunkPlaces.read` describes."""
        return self.fetcher.store.read(self.shard.block(chunk))


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
        self._uncounted: set[Block] = set()
        """Needed blocks that were not looked for on the disk yet."""
        self._suspect: set[Block] = set()
        """Blocks that may have left the disk without our doing."""
        self._refused: set[Block] = set()
        """Blocks that the trainer did not find, or found damaged."""
        self._is_told_of_space = self._is_told_of_damage = False
        self._full = ""
        """The sentence of the disk on which the last block did not fit."""
        self._full_backoff = Backoff(FIRST_FULL_S, MOST_FULL_S)
        self._tell_of_full_at = -inf
        self._batches: list[_BlockBatch] = []
        self._pauses: dict[Block, Backoff] = {}
        """Pauses before peers are asked for a block again."""
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
        space = sum(map(space_of, self._now))
        self._tell_of_space(space)
        for block in dict.fromkeys(following):
            if block not in current:
                space += space_of(block)
                if space > self.store.cache.cap_bytes:
                    break
                self._next.append(block)
        needed = {*self._now, *self._next}
        self.store.cache.pin([*self._next, *self._now])
        self._uncounted = (self._uncounted | needed - before) & needed
        self._suspect |= needed - before
        self._pauses = {block: pause for block, pause in self._pauses.items() if block in needed}
        if needed != before:
            self._full_backoff.reset()  # other blocks may leave the disk now
        for batch in self._batches:
            if needed.isdisjoint(batch.blocks) and not batch.is_kept:
                batch.scope.cancel()
        self._wake.set()

    def _tell_of_space(self, space: int) -> None:
        cap = self.store.cache.cap_bytes
        if space > cap and not self._is_told_of_space:
            self._is_told_of_space = True
            text = f"the blocks of one round take {space >> 20} MiB, more than the {cap >> 20} MiB that blocks may take"
            self._session.emit(Notice("warning", f"{text}: allow more, or let this peer do fewer steps"))

    def recheck(self, block: Block) -> None:
        """Check a block on the disk, because the trainer found none that is right; a damaged one is fetched again."""
        self._refused.add(block)
        self._wake.set()

    async def until_here(self, blocks: Sequence[Block]) -> None:
        """Wait until these blocks, which are needed, are on this computer."""
        came = self._came
        while await self._offload(self._missing_of, blocks):
            with trio.move_on_after(TICK_S):
                await came.wait()
            came = self._came

    def _missing_of(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks that are not here, in their order.  Blocking."""
        return missing_of(self.store, blocks)

    # -- reports ------------------------------------------------------------------------------------------------------

    async def waiting_for(self) -> str:
        """Return a sentence about the first block that is needed now and not here; "" if all are here."""
        current = self._now
        missing: list[Block] = await self._offload(self._missing_of, current)
        if not missing:
            return ""
        whole, left = sum(block.size for block in current), sum(block.size for block in missing)
        share = f"{100 * (whole - left) // whole} % of this round's blocks are here"
        if self._full:
            return f"waiting for disk space for blocks ({share}): {self._full}"
        called, owing = self.store.shards[missing[0].shard].name_of(missing[0].number), self._expected_from(missing[0])
        if owing:
            return f"waiting for {called}, from {owing} ({share})"
        return (
            f"waiting for {called}, which no peer and no mirror has given yet ({share}): "
            "ask the organiser to start a peer that has the corpus"
        )

    def _expected_from(self, block: Block) -> str:
        """Return the names of the first two that should send a block; "" if nobody should."""
        peers = [self._policy.name(peer) for peer in self._swarm.asked_for(block.shard, block.number)]
        mirrors = [f"the mirror {batch.mirror}" for batch in self._batches if batch.mirror and block in batch.blocks]
        return " and ".join([*peers, *mirrors][:2])

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch needed blocks until cancelled.  Raises `StoreFailed`."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = wake = trio.Event()
                needed, uncounted, suspect = [*self._now, *self._next], self._uncounted, self._suspect
                refused = self._refused
                self._uncounted, self._suspect, self._refused = set(), set(), set()
                await self._offload(self.store.cache.check, suspect)
                await self._drop_damaged(refused)
                missing: list[Block] = await self._offload(self._missing_of, needed)
                self.tally[BlockOrigin.DISK] += sum(block.size for block in uncounted - set(missing))
                await self._offload(self._ahead.look, trio.current_time())
                missing = [block for block in missing if not self.store.cache.has(block)]  # some may have come meanwhile
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
        """Yield the batches to begin now, in turns for peers and mirrors.  missing: needed blocks, in order."""
        now, peers = trio.current_time(), bool(self._session.network.connected())
        while now >= self._full_backoff.until:
            found = len(self._batches)
            if peers and sum(batch.mirror is None for batch in self._batches) < PEER_BATCHES:
                yield from self._begin(self._for_peers(missing, now), None)
            mirrored = sum(batch.mirror is not None for batch in self._batches)
            if mirrored < MIRROR_BATCHES:
                yield from self._begin(self._for_mirrors(missing, now), "")
            if len(self._batches) == found:
                break
        if now >= self._full_backoff.until and not self._policy.is_busy():
            yield from self._plan_copies(missing, now, peers=peers)

    def _plan_copies(self, missing: Sequence[Block], now: float, *, peers: bool) -> Iterator[_BlockBatch]:
        """Yield the batches of blocks to keep for others, unless a block is under way that is needed here."""
        while all(batch.is_kept for batch in self._batches) and len(self._batches) < KEEP_BATCHES:
            under_way = {block for batch in self._batches for block in batch.blocks}
            free = self._ahead.fitting([*missing, *under_way])
            found = len(self._batches)
            if peers:
                yield from self._begin([block for block in free if self._may_ask_peers(block, now)], None, is_kept=True)
            ready = {shard for shard in {block.shard for block in free} if self._mirrors.are_ready(shard, now)}
            taken = {block for batch in self._batches[found:] for block in batch.blocks}
            left = [block for block in free if block.shard in ready and block not in taken]
            yield from self._begin(left, "", is_kept=True)
            if len(self._batches) == found:
                return

    def _begin(self, blocks: Sequence[Block], mirror: str | None, *, is_kept: bool = False) -> Iterator[_BlockBatch]:
        """Begin a batch of the first of these blocks, unless there is none."""
        if blocks:
            shard, most = self.store.shards[blocks[0].shard], KEEP_BATCH_BYTES if is_kept else BATCH_BYTES
            chosen = (_first_of_one_shard if mirror is None else _first_range)(blocks, most)
            batch = _BlockBatch(shard, chosen, trio.current_time(), mirror, is_kept)
            self._batches.append(batch)
            self._ahead.take(chosen)
            yield batch

    def _may_ask_peers(self, block: Block, now: float) -> bool:
        pause = self._pauses.get(block)
        return pause is None or pause.until <= now

    def _for_peers(self, missing: Sequence[Block], now: float) -> list[Block]:
        pauses = {block for block, pause in self._pauses.items() if pause.until > now}
        return self._free([block for block in missing if block not in pauses], now, mirrored=False)

    def _for_mirrors(self, missing: Sequence[Block], now: float) -> list[Block]:
        shards = {block.shard for block in missing}
        ready = {shard for shard in shards if self._mirrors.are_ready(shard, now)}
        return self._free([block for block in missing if block.shard in ready], now, mirrored=True)

    def _free(self, due: Sequence[Block], now: float, *, mirrored: bool) -> list[Block]:
        """Return the blocks to ask peers for, or mirrors if `mirrored`: those first that nobody was asked for.

        due: the blocks that may be asked for.
        """
        batches = [batch for batch in self._batches if not batch.is_kept]
        under_way = {block for batch in batches for block in batch.blocks}
        free = [block for block in due if block not in under_way]
        recent = [batch for batch in batches if batch.since > now - OWED_S]
        if free:
            current = set(self._now)
            if urgent := [block for block in free if block in current]:
                return urgent
            return free if all(current.isdisjoint(batch.blocks) for batch in recent) else []
        asked = [batch for batch in batches if (batch.mirror is not None) == mirrored]
        not_late = {block for batch in [*asked, *recent] for block in batch.blocks}
        return [block for block in due if block not in not_late]

    async def _fetch(self, batch: _BlockBatch) -> None:
        try:
            with batch.scope:
                leaves = await self._leaves_of(batch.shard)
                if leaves is not None and batch.blocks:
                    blob = Blob.cut(batch.shard.root, leaves, batch.shard.spans)
                    await (self._fetch_from_peers if batch.mirror is None else self._fetch_from_mirrors)(batch, blob)
        except StoreFull as error:
            self._on_full(str(error))
        finally:
            self._batches.remove(batch)
            for block in batch.blocks if batch.mirror is None else ():
                self._pauses.setdefault(block, Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)).failed(trio.current_time())
            self._wake.set()

    def _on_full(self, sentence: str) -> None:
        """Pause, because a block did not fit on the disk, and let the blocks that are needed next leave."""
        if trio.current_time() >= self._tell_of_full_at:
            self._tell_of_full_at = trio.current_time() + TELL_AGAIN_S
            text = f"blocks of the run's corpora do not fit on the disk, and training goes on with those here: {sentence}"
            self._session.emit(Notice("warning", text))
        self._full, self._next = sentence, []
        self.store.cache.pin(self._now)
        self._full_backoff.failed(trio.current_time())
        for batch in self._batches:
            batch.scope.cancel()

    async def _fetch_from_peers(self, batch: _BlockBatch, blob: Blob) -> None:
        here: ChunkSet = await self._offload(self.store.here, batch.shard.root)
        places = _Places(self, batch.shard, set_of([block.number for block in batch.blocks]))
        purpose = Purpose("blocks", batch.shard.number, spare=batch.is_kept)
        await self._swarm.fetch(blob, places, self._peers(), purpose, here=here)

    async def _fetch_from_mirrors(self, batch: _BlockBatch, blob: Blob) -> None:
        here: ChunkSet = await self._offload(self.store.here, batch.shard.root)
        numbers = range(batch.blocks[0].number, batch.blocks[-1].number + 1)
        wanted, emit = set_of(numbers), self._session.emit
        purpose = Purpose("blocks", batch.shard.number)
        transfer = Transfer(purpose, blob, here & ~wanted, trio.current_time(), emit, wanted)

        async def keep(number: int, data: bytes) -> None:
            await self._keep(BlockOrigin.MIRROR, batch.shard.block(number), data, batch)
            self._swarm.note(blob.name, number)
            transfer.update(transfer.here | 1 << number, 0, trio.current_time())

        def on_mirror(name: str) -> None:
            batch.mirror = name

        def are_here() -> bool:
            return not batch.blocks

        try:
            await self._mirrors.read_blocks(batch.shard, blob.leaves, numbers, keep, on_mirror, are_here)
        finally:
            transfer.end(trio.current_time())

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
            found = await self._mirrors.read_leaves(shard)
        if found is not None:
            await self._offload(self.store.cache.write_leaves, shard.root, found)
        return found

    # -- arrivals -----------------------------------------------------------------------------------------------------

    async def keep_from(self, peer: PeerId, block: Block, data: memoryview) -> None:
        """Keep a block that a peer sent, and whose bytes are right.  Raises `StoreFailed`."""
        await self._keep(BlockOrigin.SEED if self._policy.is_seed(peer) else BlockOrigin.PEER, block, data)

    async def _keep(
        self, origin: BlockOrigin, block: Block, data: bytes | memoryview, by: _BlockBatch | None = None
    ) -> None:
        """Keep a block.  by: the batch that brought it from a mirror."""
        if await self._offload(partial(self._put, block, data)):
            self._full = ""
            self._full_backoff.reset()
            is_needed = block in self._now or block in self._next
            self.tally[origin if is_needed else BlockOrigin.COPY] += block.size
        for batch in self._batches:
            if block in batch.blocks:
                batch.blocks.remove(block)
                if not batch.blocks and batch.mirror is not None and batch is not by:
                    batch.scope.cancel()  # all its blocks came faster in another way
        self._pauses.pop(block, None)
        self._came.set()
        self._came = trio.Event()

    def _put(self, block: Block, data: bytes | memoryview) -> bool:
        """Put a block into the cache.  Blocking."""
        return self.store.cache.put(block, data, kept=self._ahead.keeps(block))


def _first_of_one_shard(blocks: Sequence[Block], most_bytes: int) -> list[Block]:
    """Return the first block, and as many others of its shard as fit in a batch."""
    chosen, size = list[Block](), 0
    for block in blocks:
        if block.shard == blocks[0].shard:
            size += block.size
            if chosen and (size > most_bytes or len(chosen) >= BATCH_BLOCKS):
                break
            chosen.append(block)
    return chosen


def _first_range(blocks: Sequence[Block], most_bytes: int) -> list[Block]:
    """Return the first block, and those that follow it in its shard without a gap, as many as fit in a batch."""
    chosen, free = [blocks[0]], {(block.shard, block.number): block for block in blocks}
    size = blocks[0].size
    while (block := free.get((chosen[0].shard, chosen[-1].number + 1))) is not None:
        size += block.size
        if size > most_bytes:
            break
        chosen.append(block)
    return chosen
