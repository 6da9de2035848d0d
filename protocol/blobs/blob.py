"""A blob: an immutable byte string, cut into chunks whose hashes are known and vouched for.

Every large thing is one: a checkpoint, the result of a round, a version of the weights.  Its name is a hash that a certified
record or a signed manifest contains.  Sets of chunks are integers, bit i for chunk i: the operations on them are the
processor's, for a blob may have tens of thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.questions import MAX_LEAVES

MAX_BLOB_CHUNKS = MAX_LEAVES
ChunkSet = int
"""Chunks of one blob: bit i is set when chunk i is in it."""


@dataclass(frozen=True)
class Blob:
    """leaves: the hash of each chunk.  sizes: of each chunk in bytes."""

    name: Hash
    leaves: tuple[Hash, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        assert 0 < len(self.leaves) == len(self.sizes) <= MAX_BLOB_CHUNKS

    @classmethod
    def even(cls, name: Hash, leaves: Sequence[Hash], size: int, chunk_bytes: int) -> Blob:
        """Of `size` bytes in chunks of `chunk_bytes`; the last one is what is left."""
        return cls(name, tuple(leaves), tuple(min(chunk_bytes, size - at) for at in range(0, size, chunk_bytes)))

    def __len__(self) -> int:
        """How many chunks it has."""
        return len(self.leaves)

    @property
    def all(self) -> ChunkSet:
        """All of its chunks."""
        return (1 << len(self)) - 1

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each chunk begins."""
        offsets, at = [], 0
        for size in self.sizes:
            offsets.append(at)
            at += size
        return tuple(offsets)

    def span(self, chunk: int) -> slice:
        """Where a chunk lies in the blob."""
        return slice(self.offsets[chunk], self.offsets[chunk] + self.sizes[chunk])


def chunks_in(chunks: ChunkSet) -> Iterator[int]:
    """The members of a set, ascending."""
    while chunks:
        lowest = chunks & -chunks
        yield lowest.bit_length() - 1
        chunks ^= lowest


def set_of(chunks: Sequence[int]) -> ChunkSet:
    """The set of these chunks."""
    return sum(1 << chunk for chunk in set(chunks))


def to_bitmap(chunks: ChunkSet, count: int) -> bytes:
    """A set of chunks of a blob that has `count`: bit i of byte i // 8."""
    return chunks.to_bytes((count + 7) // 8, "little")


def from_bitmap(bitmap: bytes, count: int) -> ChunkSet:
    """The set in a bitmap; an empty bitmap is the empty set.  Raises `Malformed` where it does not fit `count` chunks."""
    chunks = int.from_bytes(bitmap, "little")
    if len(bitmap) not in (0, (count + 7) // 8) or chunks >> count:
        raise Malformed("a bitmap that does not fit the blob")
    return chunks
