"""Shards of corpora as blobs, and whole shards in a folder that a person built.

The folder of a corpus is laid out so that any static web server over it is a mirror (`protocol.blobs.mirrors`):

    corpus.msgpack          the manifest
    shards/<root>.shard     the blocks of a shard, one after the other
    shards/<root>.leaves    the hashes of its blocks, 32 bytes each
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernels.outside_files import open_outside, read_outside
from protocol.blobs.blob import ChunkSet, EvenSpans
from protocol.blobs.store import SHORTAGES, LeavesMemory
from protocol.corpora.manifest import Block, CorpusManifest
from protocol.disk import size_of
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, tree_root

SHARDS = "shards"
"""Name of the folder of the shards in the folder of a corpus."""


@dataclass(frozen=True)
class Shard:
    """A shard: a blob whose chunks are blocks.

    number: its position in the corpus.  source: name of its source.  first: the number of its first block in its split.
    spans: places of its blocks.
    """

    root: Hash
    number: int
    source: str
    is_held_out: bool
    first: int
    spans: EvenSpans

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.spans)

    def block(self, number: int) -> Block:
        """Return the place of a block of this shard."""
        span = self.spans[number]
        return Block(self.root, number, span.stop - span.start)

    def has(self, block: Block) -> bool:
        """Return True if there is such a block."""
        return 0 <= block.number < len(self) and self.block(block.number) == block

    def name_of(self, number: int) -> str:
        """Return a block's name for people."""
        return f"block {self.first + number} of {self.source}{', held out' if self.is_held_out else ''}"


Shards = Mapping[Hash, Shard]
"""Shards of all corpora of a run, by their roots."""


def shards_of(manifests: Iterable[CorpusManifest]) -> dict[Hash, Shard]:
    """Return the shards of these corpora.  Raises `Malformed` if two of them have one root and different blocks."""
    shards: dict[Hash, Shard] = {}
    for manifest in manifests:
        block_bytes, number = manifest.block_tokens * manifest.bytes_per_token, 0
        for source in manifest.sources:
            for split, is_held_out in ((source.train, False), (source.held_out, True)):
                left = split.tokens * manifest.bytes_per_token
                for at, root in enumerate(map(Hash, split.shards)):
                    size = min(left, manifest.shard_blocks * block_bytes)
                    spans, first = EvenSpans(size, block_bytes), at * manifest.shard_blocks
                    known = shards.setdefault(root, Shard(root, number, source.name, is_held_out, first, spans))
                    if (known.spans.size, known.spans.chunk_bytes) != (size, block_bytes):
                        raise Malformed(
                            f"a shard of {known.source} and one of {source.name} have one root and different blocks"
                        )
                    left, number = left - size, number + 1
    return shards


class BlockReader(Protocol):
    """Blocks on this computer.  Blocking; thread-safe."""

    def here(self, shard: Hash) -> ChunkSet:
        """Return the blocks of a shard that can be read, as far as we know."""
        ...

    def read(self, block: Block) -> bytes | None:
        """Return the bytes of a block, checked against its hash; None if it is not here, or damaged."""
        ...

    def leaves(self, shard: Hash) -> Sequence[Hash] | None:
        """Return the hashes of a shard's blocks, checked against its root; None if they are not here."""
        ...


@dataclass(frozen=True)
class HeldShard:
    """The blocks of a shard that are here, for others to fetch: a `protocol.blobs.store.Held`."""

    reader: BlockReader
    shard: Shard

    @property
    def count(self) -> int:
        """Number of blocks of the whole shard."""
        return len(self.shard)

    @property
    def here(self) -> ChunkSet:
        """Blocks that can be read."""
        return self.reader.here(self.shard.root)

    @property
    def is_urgent(self) -> bool:
        """False: blocks are fetched ahead of need."""
        return False

    def leaves(self) -> Sequence[Hash] | None:
        """Return the hashes as `Held.leaves` describes."""
        return self.reader.leaves(self.shard.root)

    def read(self, chunk: int) -> bytes | None:
        """Return a block as `Held.read` describes."""
        return self.reader.read(self.shard.block(chunk))


REMEMBERED = 32
"""Most shards whose blocks' hashes are remembered; about 300 KiB each at most."""


def checked_leaves(shard: Shard, raw: bytes) -> list[Hash] | None:
    """Return the hashes of a shard's blocks from a `.leaves` file; None if they do not have its root."""
    if len(raw) != HASH_BYTES * len(shard):
        return None
    leaves = [Hash(raw[at : at + HASH_BYTES]) for at in range(0, len(raw), HASH_BYTES)]
    return leaves if tree_root(leaves) == shard.root else None


def leaves_in(path: Path, below: Path, shard: Shard) -> list[Hash] | None:
    """Return the hashes in a `.leaves` file; None if it cannot be read, or has others.

    below: the folder in which its real path must lie.
    """
    try:
        return checked_leaves(shard, read_outside(path, HASH_BYTES * len(shard), below))
    except OSError:
        return None


def read_block(path: Path, below: Path, offset: int, size: int, leaf: Hash) -> bytes | None:
    """Return a block of a file; None if its bytes are wrong, or if the file is none to read.

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
    """Whole shards in the folder of a corpus, read in place: a `BlockReader`.  Nothing in the folder is ever changed.

    A block whose bytes are wrong is not read again until the next start, and so is fetched like a missing one.
    """

    def __init__(self, folder: Path, shards: Shards) -> None:
        self._named, self._folder, self._shards = folder, folder / SHARDS, shards
        self._damaged: dict[Hash, ChunkSet] = {}
        self._leaves = LeavesMemory(REMEMBERED)

    def path(self, shard: Hash) -> Path:
        """Return the path of a shard's file."""
        return self._folder / f"{shard.hex()}.shard"

    def _leaves_path(self, shard: Hash) -> Path:
        return self._folder / f"{shard.hex()}.leaves"

    def here(self, shard: Hash) -> ChunkSet:
        """Return the blocks as `BlockReader.here` describes."""
        known = self._shards.get(shard)
        if known is None or size_of(self.path(shard)) != known.spans.size:
            return 0
        if size_of(self._leaves_path(shard)) != HASH_BYTES * len(known):
            return 0
        return ((1 << len(known)) - 1) & ~self._damaged.get(shard, 0)

    def read(self, block: Block) -> bytes | None:
        """Return a block as `BlockReader.read` describes."""
        known, leaves = self._shards.get(block.shard), self.leaves(block.shard)
        if known is None or not known.has(block):
            return None
        if leaves is None:
            self._damaged[block.shard] = (1 << len(known)) - 1
            return None
        try:
            start, leaf = known.spans[block.number].start, leaves[block.number]
            data = read_block(self.path(block.shard), self._named, start, block.size, leaf)
        except OSError:
            return None
        if data is None:
            self._damaged[block.shard] = self._damaged.get(block.shard, 0) | 1 << block.number
        return data

    def leaves(self, shard: Hash) -> Sequence[Hash] | None:
        """Return the hashes as `BlockReader.leaves` describes."""
        known = self._shards.get(shard)
        if known is None:
            return None
        return self._leaves.get(shard, lambda: leaves_in(self._leaves_path(shard), self._named, known))
