"""The cache of blocks on a peer's disk, and everything that the peer can read or serve of its run's corpora.

    <folder>/<shard root>/<number>    a block, exactly its bytes
    <folder>/<shard root>/leaves      the hashes of the shard's blocks

A block is written to a temporary name, flushed and renamed, so that a file with a number for a name is whole.  Sizes are
checked at the start, and hashes whenever a block is served; the trainer checks the hash of a block at its first use.  The
cache has a cap: the blocks that were not needed for the longest time leave first.  **Pinned** blocks never leave: those
of the leases of this round and the next.  **Kept** blocks, which this peer keeps for others, leave when no other block
can.  Blocks also leave when some other file of the peer does not fit on the disk (`Disk.add_relief`).
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from kernels.outside_files import open_outside
from protocol.blobs.blob import ChunkSet
from protocol.blobs.store import SHORTAGES, Held, Holding, LeavesMemory
from protocol.corpora.manifest import Block
from protocol.corpora.shards import REMEMBERED, BlockReader, CorpusShelf, HeldShard, Shards, leaves_in, read_block
from protocol.disk import Disk, size_of
from protocol.wire.hashes import HASH_BYTES, Hash

LEAVES = "leaves"
FILE_UNIT_BYTES = 4096
"""Unit in which a file system allocates space; the cap counts whole units."""
_FOLDER = re.compile(r"[0-9a-f]{64}")
_OURS = re.compile(r"[0-9]{1,5}|leaves|\..*\.new")


def space_of(block: Block) -> int:
    """Return the bytes of disk space that a block takes."""
    return -(-block.size // FILE_UNIT_BYTES) * FILE_UNIT_BYTES


class BlockCache:
    """Blocks as files in a folder: a `BlockReader`.  Blocking; thread-safe.  Call `load` before anything else.

    cap_bytes: disk space that the blocks take at most, unless the pinned ones alone take more.
    """

    def __init__(self, disk: Disk, folder: Path, shards: Shards, cap_bytes: int) -> None:
        self._disk, self._folder, self._shards, self.cap_bytes = disk, folder, shards, cap_bytes
        self._blocks: OrderedDict[Block, None] = OrderedDict()
        """Blocks that are here, the one that was not needed for the longest time first."""
        self._here: dict[Hash, ChunkSet] = {}
        self._pinned: dict[Block, None] = {}
        self._kept: set[Block] = set()
        self._used_bytes = self._kept_bytes = 0
        self._leaves = LeavesMemory(REMEMBERED)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held while a file is written, so that no two threads write to one temporary name."""
        disk.add_relief(self.give_way)

    def load(self) -> None:
        """Find the blocks left before a restart; remove incomplete files, and blocks that cannot be checked."""
        self._disk.make_folder(self._folder)
        found = [
            entry
            for folder in self._folder.iterdir()
            if _FOLDER.fullmatch(folder.name) and folder.is_dir()
            for entry in self._scan(folder)
        ]
        with self._lock:
            for _, block in sorted(found):
                self._add(block)
        self._make_room(0)

    def _scan(self, folder: Path) -> Iterator[tuple[float, Block]]:
        """Yield the blocks of one shard with the times at which they were written."""
        shard = self._shards.get(Hash(bytes.fromhex(folder.name)))
        if shard is not None and size_of(folder / LEAVES) != HASH_BYTES * len(shard):
            shard = None  # its blocks could not be checked
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                continue  # nobody but a person makes a folder here
            number = int(path.name) if re.fullmatch(r"0|[1-9][0-9]{0,4}", path.name) else -1
            if shard is not None and 0 <= number < len(shard) and size_of(path) == shard.block(number).size:
                yield path.stat().st_mtime, shard.block(number)
            elif _OURS.fullmatch(path.name) and (shard is None or path.name != LEAVES):
                self._disk.remove(path)
        if shard is None:
            with suppress(OSError):
                folder.rmdir()

    # -- reading ------------------------------------------------------------------------------------------------------

    def path(self, block: Block) -> Path:
        """Return the path of a block."""
        return self._folder / block.shard.hex() / str(block.number)

    def has(self, block: Block) -> bool:
        """Return True if a block is here, as far as we know."""
        return block in self._blocks

    def here(self, shard: Hash) -> ChunkSet:
        """Return the blocks as `BlockReader.here` describes."""
        return self._here.get(shard, 0)

    def read(self, block: Block) -> bytes | None:
        """Return a block as `BlockReader.read` describes; a damaged one is removed."""
        if not self.has(block):
            return None
        leaves = self.leaves(block.shard)
        if leaves is None:
            if not self._lacks_descriptors(block.shard):
                self._remove(block)  # it can be checked no more; the hashes are fetched again with it
            return None
        try:
            data = read_block(self.path(block), self._folder, 0, block.size, leaves[block.number])
        except OSError:
            return None
        if data is None or size_of(self.path(block)) != block.size:
            self._remove(block)
            return None
        return data

    def leaves(self, shard: Hash) -> Sequence[Hash] | None:
        """Return the hashes as `BlockReader.leaves` describes."""
        known = self._shards.get(shard)
        if known is None:
            return None
        return self._leaves.get(shard, lambda: leaves_in(self._folder / shard.hex() / LEAVES, self._folder, known))

    def _lacks_descriptors(self, shard: Hash) -> bool:
        """Return True if this computer currently lacks memory or file descriptors, which says nothing about the hashes."""
        try:
            open_outside(self._folder / shard.hex() / LEAVES, self._folder).close()
        except OSError as error:
            return error.errno in SHORTAGES
        return False

    @property
    def used_bytes(self) -> int:
        """Disk space that the blocks take."""
        return self._used_bytes

    @property
    def lasting_bytes(self) -> int:
        """Disk space of the blocks that do not leave for a block to keep: pinned and kept ones."""
        with self._lock:
            pinned = sum(space_of(block) for block in self._pinned if block in self._blocks and block not in self._kept)
            return self._kept_bytes + pinned

    def blocks(self) -> list[Block]:
        """Return the blocks that are here, the one that was not needed for the longest time first."""
        with self._lock:
            return [*self._blocks]

    # -- changes ------------------------------------------------------------------------------------------------------

    def put(self, block: Block, data: bytes | memoryview, *, kept: Callable[[Block], bool] = lambda block: False) -> bool:
        """Keep a block, whose bytes the caller has checked; durable on return.  Return False if it was here already.

        kept: returns True if the block leaves only when no other can.  On a full disk, a block that is not pinned drives no
        other out.  Raises `StoreFailed`.
        """
        assert len(data) == block.size
        with self._writing:
            if self.has(block):
                return False
            self._make_room(space_of(block))
            self._disk.make_folder(self.path(block).parent)
            self._disk.write_file(self.path(block), data, relieved=block in self._pinned)
            with self._lock:
                self._add(block)
            if kept(block):
                self.keep(block)
        return True

    def keep(self, block: Block) -> None:
        """Have a block leave only when no other can."""
        with self._lock:
            if block in self._blocks and block not in self._kept:
                self._kept.add(block)
                self._kept_bytes += space_of(block)

    def write_leaves(self, shard: Hash, leaves: Sequence[Hash]) -> None:
        """Keep the hashes of a shard's blocks.  Raises `StoreFailed`."""
        with self._writing:
            self._disk.make_folder(self._folder / shard.hex())
            self._disk.write_file(self._folder / shard.hex() / LEAVES, b"".join(leaves))

    def pin(self, blocks: Collection[Block]) -> None:
        """Protect these blocks and no others from leaving, whether they are here already or not."""
        with self._lock:
            before, self._pinned = self._pinned, dict.fromkeys(blocks)
            for block in [*before, *self._pinned]:
                if block in self._blocks:
                    self._blocks.move_to_end(block)

    def check(self, blocks: Iterable[Block]) -> None:
        """Forget blocks whose files are gone or have changed in size, so that they are fetched again."""
        for block in blocks:
            if self.has(block) and size_of(self.path(block)) != block.size:
                self._remove(block)

    def give_way(self, size: int) -> bool:
        """Remove `size` bytes of the blocks that were not needed for the longest time; return False if none can leave."""
        return self._free(size) > 0

    def _make_room(self, size: int) -> None:
        """Remove the blocks that were not needed for the longest time, until `size` more bytes are under the cap."""
        self._free(self._used_bytes + size - self.cap_bytes)

    def _free(self, size: int) -> int:
        """Remove blocks that are not pinned until `size` bytes are free; return the bytes that they took."""
        with self._lock:
            leaving, freed = [], 0
            free = [block for block in self._blocks if block not in self._pinned] if size > 0 else []
            for block in sorted(free, key=lambda block: block in self._kept):
                if freed >= size:
                    break
                leaving.append(block)
                freed += space_of(block)
        for block in leaving:
            self._remove(block)
        return freed

    def _remove(self, block: Block) -> None:
        with self._lock:
            if block in self._blocks:
                del self._blocks[block]
                self._here[block.shard] &= ~(1 << block.number)
                self._used_bytes -= space_of(block)
                if block in self._kept:
                    self._kept.remove(block)
                    self._kept_bytes -= space_of(block)
        with suppress(OSError):
            self._disk.remove(self.path(block))

    def _add(self, block: Block) -> None:
        self._blocks[block] = None
        self._here[block.shard] = self._here.get(block.shard, 0) | 1 << block.number
        self._used_bytes += space_of(block)


class BlockStore:
    """All blocks on this computer, in corpora that a person built and in the cache: a `BlockReader` and a `ListedShelf`."""

    def __init__(self, cache: BlockCache, shelves: Sequence[CorpusShelf], shards: Shards) -> None:
        self.cache, self.shards = cache, shards
        self._readers: tuple[BlockReader, ...] = (*shelves, cache)

    def here(self, shard: Hash) -> ChunkSet:
        """Return the blocks as `BlockReader.here` describes."""
        here = 0
        for reader in self._readers:
            here |= reader.here(shard)
        return here

    def read(self, block: Block) -> bytes | None:
        """Return a block as `BlockReader.read` describes."""
        return next((data for reader in self._readers if (data := reader.read(block)) is not None), None)

    def leaves(self, shard: Hash) -> Sequence[Hash] | None:
        """Return the hashes as `BlockReader.leaves` describes."""
        return next((leaves for reader in self._readers if (leaves := reader.leaves(shard)) is not None), None)

    def find(self, name: Hash) -> Held | None:
        """Return the blocks of a shard as `Shelf.find` describes."""
        shard = self.shards.get(name)
        return HeldShard(self, shard) if shard is not None and self.here(name) else None

    def holdings(self) -> list[Holding]:
        """Return the whole shards that are here, as `ListedShelf.holdings` describes."""
        whole = [shard for root, shard in self.shards.items() if self.here(root) == (1 << len(shard)) - 1]
        return [Holding("blocks", shard.number, shard.root.hex(), shard.spans.size) for shard in whole]
