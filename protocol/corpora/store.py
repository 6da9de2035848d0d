"""Blocks on a peer's disk: in corpora that a person built, in the peer's own cache, and as the blobs that it serves.

    <cache>/<shard root>/<number>    a block, exactly its bytes
    <cache>/<shard root>/leaves      the hashes of the shard's blocks

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kernels.outside_files import open_outside, read_outside
from protocol.blobs.blob import ChunkSet
from protocol.blobs.store import SHORTAGES, Held, Holding, LeavesMemory
from protocol.corpora.manifest import (
    SHARDS,
    Block,
    MixedSplit,
    Shard,
    Shards,
    corpora_flaw,
    read_manifest,
    shards_of,
    splits_of,
)
from protocol.disk import Disk, size_of
from protocol.run.manifest import RunManifest
from protocol.run.sections import CORPORA
from protocol.run.settings import CorpusSettings
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, tree_root

REMEMBERED = 32
"""Most shards whose blocks' hashes are remembered; about 300 KiB each at most."""


def leaves_in(path: Path, below: Path, shard: Shard) -> list[Hash] | None:
    """Return the hashes of a shard's blocks from a `.leaves` file; None if it cannot be read, or they do not have its root.

    below: the folder in which its real path must lie.
    """
    try:
        raw = read_outside(path, HASH_BYTES * len(shard), below)
    except OSError:
        return None
    leaves = [Hash(raw[at : at + HASH_BYTES]) for at in range(0, len(raw), HASH_BYTES)]
    return leaves if len(raw) == HASH_BYTES * len(shard) and tree_root(leaves) == shard.root else None


def read_block(path: Path, below: Path, offset: int, size: int, leaf: Hash) -> bytes | None:
    """Return a block of a file; None if its bytes are wrong, or if the file must not be read.

    below: the folder in which its real path must lie.
    Raises `OSError` if this computer currently lacks memory or file descriptors, which says nothing about the block.
    """
    try:
        with open_outside(path, below) as file:
            file.seek(offset)
            data = file.read(size)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return None
    return data if len(data) == size and chunk_hash(data) == leaf else None


class CorpusShelf:
    """Whole shards in the folder of a corpus, read in place.  Nothing in the folder is ever changed.

    A block whose bytes are wrong is not read again until the next start, and so is fetched like a missing one.
    """

    def __init__(self, folder: Path, shards: Shards) -> None:
        self._named, self._folder, self._shards = folder, folder / SHARDS, shards
        self._damaged: dict[Hash, ChunkSet] = {}
        self._leaves = LeavesMemory(REMEMBERED)

    def _path(self, shard: Hash, ending: str) -> Path:
        return self._folder / f"{shard.hex()}.{ending}"

    def here(self, shard: Hash) -> ChunkSet:
        """Return the blocks as `BlockStore.here` describes."""
        known = self._shards.get(shard)
        if known is None or size_of(self._path(shard, "shard")) != known.spans.size:
            return 0
        if size_of(self._path(shard, "leaves")) != HASH_BYTES * len(known):
            return 0
        return ((1 << len(known)) - 1) & ~self._damaged.get(shard, 0)

    def read(self, block: Block) -> bytes | None:
        """Return a block as `BlockStore.read` describes."""
        known, leaves = self._shards.get(block.shard), self.leaves(block.shard)
        if known is None or not known.has(block):
            return None
        if leaves is None:
            self._damaged[block.shard] = (1 << len(known)) - 1
            return None
        try:
            start, leaf = known.spans[block.number].start, leaves[block.number]
            data = read_block(self._path(block.shard, "shard"), self._named, start, block.size, leaf)
        except OSError:
            return None
        if data is None:
            self._damaged[block.shard] = self._damaged.get(block.shard, 0) | 1 << block.number
        return data

    def leaves(self, shard: Hash) -> Sequence[Hash] | None:
        """Return the hashes as `BlockStore.leaves` describes."""
        known = self._shards.get(shard)
        if known is None:
            return None
        return self._leaves.get(shard, lambda: leaves_in(self._path(shard, "leaves"), self._named, known))


# ------------------------------------------------------------------------------------------------------------------------
# The cache.


LEAVES = "leaves"
FILE_UNIT_BYTES = 4096
"""Unit in which a file system allocates space; the cap counts whole units."""
_FOLDER = re.compile(r"[0-9a-f]{64}")
_OURS = re.compile(r"[0-9]{1,5}|leaves|\..*\.new")


def space_of(block: Block) -> int:
    """Return the bytes of disk space that a block takes."""
    return -(-block.size // FILE_UNIT_BYTES) * FILE_UNIT_BYTES


class BlockCache:
    """Blocks as files in a folder (a part of `BlockStore`).  Blocking; thread-safe.  Call `load` before anything else.

    cap_bytes: disk space that the blocks take at most, unless the pinned ones alone take more.  used_bytes: disk space that
    they take.
    """

    def __init__(self, disk: Disk, folder: Path, shards: Shards, cap_bytes: int) -> None:
        self._disk, self._folder, self._shards, self.cap_bytes = disk, folder, shards, cap_bytes
        self._blocks: OrderedDict[Block, None] = OrderedDict()
        """Blocks that are here, the block that was not needed for the longest time first."""
        self._here: dict[Hash, ChunkSet] = {}
        self._pinned: dict[Block, None] = {}
        self._kept: set[Block] = set()
        self.used_bytes = self._kept_bytes = 0
        self._leaves = LeavesMemory(REMEMBERED)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held while a file is written, so that no two threads write to one temporary name."""
        disk.add_relief(lambda size: self._free(size) > 0)

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
        self._free(self.used_bytes - self.cap_bytes)

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
        """Return the blocks as `BlockStore.here` describes."""
        return self._here.get(shard, 0)

    def read(self, block: Block) -> bytes | None:
        """Return a block as `BlockStore.read` describes; a damaged one is removed."""
        if not self.has(block):
            return None
        leaves = self.leaves(block.shard)
        if leaves is None:
            if not self._lacks_descriptors(block.shard):
                self._remove(block)  # it can no longer be checked; the hashes are fetched again with it
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
        """Return the hashes as `BlockStore.leaves` describes."""
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
    def lasting_bytes(self) -> int:
        """Disk space of the blocks that do not leave for a block to keep: pinned and kept ones."""
        with self._lock:
            pinned = sum(space_of(block) for block in self._pinned if block in self._blocks and block not in self._kept)
            return self._kept_bytes + pinned

    def blocks(self) -> list[Block]:
        """Return the blocks that are here, the block that was not needed for the longest time first."""
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
            self._free(self.used_bytes + space_of(block) - self.cap_bytes)
            self._disk.make_folder(self.path(block).parent)
            self._disk.write_file(self.path(block), data, relieved=block in self._pinned)
            with self._lock:
                self._add(block)
            if kept(block):
                self.keep(block)
        return True

    def keep(self, block: Block) -> None:
        """Let a block leave only when no other block can."""
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

    def _free(self, size: int) -> int:
        """Remove the blocks that were not needed for the longest time until `size` bytes are free; return the bytes freed.

        Pinned blocks stay, and kept ones leave last.
        """
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
                self.used_bytes -= space_of(block)
                if block in self._kept:
                    self._kept.remove(block)
                    self._kept_bytes -= space_of(block)
        with suppress(OSError):
            self._disk.remove(self.path(block))

    def _add(self, block: Block) -> None:
        self._blocks[block] = None
        self._here[block.shard] = self._here.get(block.shard, 0) | 1 << block.number
        self.used_bytes += space_of(block)


# ------------------------------------------------------------------------------------------------------------------------
# All blocks of a run on this computer.


class BlockStore:
    """Blocks in corpora that a person built, and in the cache."""

    def __init__(self, cache: BlockCache, shelves: Sequence[CorpusShelf], shards: Shards) -> None:
        self.cache, self.shards = cache, shards
        self._places: tuple[CorpusShelf | BlockCache, ...] = (*shelves, cache)

    def here(self, shard: Hash) -> ChunkSet:
        """Return the blocks of a shard that can be read, as far as we know."""
        here = 0
        for place in self._places:
            here |= place.here(shard)
        return here

    def read(self, block: Block) -> bytes | None:
        """Return the bytes of a block, checked against its hash; None if it is not here, or damaged."""
        return next((data for place in self._places if (data := place.read(block)) is not None), None)

    def leaves(self, shard: Hash) -> Sequence[Hash] | None:
        """Return the hashes of a shard's blocks, checked against its root; None if they are not here."""
        return next((leaves for place in self._places if (leaves := place.leaves(shard)) is not None), None)

    def find(self, name: Hash) -> Held | None:
        """Return the blocks of a shard as `Shelf.find` describes."""
        shard = self.shards.get(name)
        here = self.here(name) if shard is not None else 0
        if shard is None or not here:
            return None
        return Held(len(shard), here, lambda chunk: self.read(shard.block(chunk)), lambda: self.leaves(name))


class CorpusFlawed(Exception):
    """Error for corpora that do not fit the run; the text is one sentence with the remedy."""


class RunCorpora:
    """The run's corpora on disk: a `protocol.blobs.store.Shelf`, empty until `open`.

    paths: paths of the run's files, by name.  disk: the disk on which these files lie as well, under the same limit.  store,
    splits: the blocks, and the training splits of the run's sources; None and empty until `open`.
    """

    def __init__(self, manifest: RunManifest, paths: Mapping[str, Path], disk: Disk, settings: CorpusSettings) -> None:
        self.manifest, self._paths, self._disk, self.settings = manifest, paths, disk, settings
        self.store: BlockStore | None = None
        self.splits: list[MixedSplit] = []

    def open(self) -> BlockStore:
        """Read the manifests of the corpora, which must be here, and the blocks on disk.  Blocking.

        Raises `CorpusFlawed` and `StoreFailed`.
        """
        assert self.settings.blocks is not None, "a peer of a run with corpora has a folder for their blocks"
        paths = [path for name, path in self._paths.items() if name.startswith(CORPORA)]
        try:
            corpora = [read_manifest(path.read_bytes()) for path in paths]
        except Malformed as error:
            raise CorpusFlawed(f"the run's data cannot be read: {error}; ask the organiser for a new run") from error
        if flaw := corpora_flaw(self.manifest, corpora):
            raise CorpusFlawed(f"the run's data cannot be read: {flaw}; ask the organiser for a new run")
        shards = shards_of(corpora)
        cache = BlockCache(self._disk, self.settings.blocks, shards, self.settings.cache_bytes)
        cache.load()
        self.splits = splits_of(self.manifest, corpora)
        self.store = BlockStore(cache, [CorpusShelf(folder, shards) for folder in self.settings.folders], shards)
        return self.store

    def find(self, name: Hash) -> Held | None:
        """Return the blocks of a shard as `Shelf.find` describes."""
        return self.store.find(name) if self.store is not None else None

    def holdings(self) -> list[Holding]:
        """Return the whole shards as `Shelf.holdings` describes."""
        if self.store is None:
            return []
        whole = [shard for root, shard in self.store.shards.items() if self.store.here(root) == (1 << len(shard)) - 1]
        return [Holding("blocks", shard.number, shard.root.hex(), shard.spans.size) for shard in whole]
