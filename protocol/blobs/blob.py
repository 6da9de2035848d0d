"""A blob: an immutable byte string, cut into chunks whose hashes are known and vouched for.

Every large object is one: a checkpoint, the result of a round, a version of the weights.  Its name is a hash that a
certified record or a signed manifest contains.  Sets of chunks are integers, bit i for chunk i: set operations are the
processor's own, since a blob may have tens of thousands of chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.questions import MAX_LEAVES

MAX_BLOB_CHUNKS = MAX_LEAVES
ChunkSet = int
"""Chunks of one blob: bit i is set when chunk i is in it."""


class Spans(Protocol):
    """Places of the chunks of a blob, one after the other, in its bytes."""

    def __len__(self) -> int:
        """Return the number of chunks."""
        ...

    def __getitem__(self, chunk: int, /) -> slice:
        """Return the place of a chunk."""
        ...


@dataclass(frozen=True)
class EvenSpans:
    """Places of the chunks of `size` bytes that are cut into chunks of `chunk_bytes`; the last chunk may be shorter."""

    size: int
    chunk_bytes: int

    def __len__(self) -> int:
        """Return the number of chunks."""
        return -(-self.size // self.chunk_bytes)

    def __getitem__(self, chunk: int, /) -> slice:
        """Return the place of a chunk."""
        at = chunk * self.chunk_bytes
        return slice(at, min(at + self.chunk_bytes, self.size))


@dataclass(frozen=True)
class Blob:
    """An immutable byte string in chunks.  leaves: the hash of each chunk.  sizes: of each chunk in bytes."""

    name: Hash
    leaves: tuple[Hash, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        assert 0 < len(self.leaves) == len(self.sizes) <= MAX_BLOB_CHUNKS

    @classmethod
    def cut(cls, name: Hash, leaves: Sequence[Hash], spans: Spans) -> Blob:
        """Return a blob with its chunks in these places."""
        places = [spans[chunk] for chunk in range(len(spans))]
        return cls(name, tuple(leaves), tuple(place.stop - place.start for place in places))

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self.leaves)

    @property
    def all(self) -> ChunkSet:
        """Set of all chunks."""
        return (1 << len(self)) - 1

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Offset of each chunk in bytes."""
        offsets, at = [], 0
        for size in self.sizes:
            offsets.append(at)
            at += size
        return tuple(offsets)

    def span(self, chunk: int) -> slice:
        """Return the place of a chunk in the blob."""
        return slice(self.offsets[chunk], self.offsets[chunk] + self.sizes[chunk])


def chunks_in(chunks: ChunkSet) -> Iterator[int]:
    """Yield the members of a set, ascending."""
    while chunks:
        lowest = chunks & -chunks
        yield lowest.bit_length() - 1
        chunks ^= lowest


def set_of(chunks: Sequence[int]) -> ChunkSet:
    """Return the set of these chunks."""
    return sum(1 << chunk for chunk in set(chunks))


def to_bitmap(chunks: ChunkSet, count: int) -> bytes:
    """Return the bitmap of a set of chunks, in a blob of `count`: bit i of byte i // 8, lowest bit first."""
    return chunks.to_bytes((count + 7) // 8, "little")


def from_bitmap(bitmap: bytes, count: int) -> ChunkSet:
    """Return the set in a bitmap; an empty bitmap is the empty set.

    Raises `Malformed` if the bitmap does not fit `count` chunks.
    """
    chunks = int.from_bytes(bitmap, "little")
    if len(bitmap) not in (0, (count + 7) // 8) or chunks >> count:
        raise Malformed("a bitmap that does not fit the blob")
    return chunks
