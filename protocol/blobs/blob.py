"""A blob: an immutable byte string, cut into chunks whose hashes are known and certified; and the messages about it.

Every large object is a blob: a checkpoint, the result of a round, a shard of a corpus.  Its name is a hash that a
certified record or a signed manifest contains.  Sets of chunks are integers, bit i for chunk i: set operations must be fast,
since a blob may have tens of thousands of chunks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Protocol

from pydantic import Field

from protocol.transport.interface import MAX_PUSH_HEADER_BYTES
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, HashField, PeerField, decode_body
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
    """Places of the chunks if `size` bytes are cut into chunks of `chunk_bytes`; the last chunk may be shorter."""

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
    """An immutable byte string in chunks.  leaves: the hash of each chunk.  sizes: the size of each chunk in bytes."""

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


# ------------------------------------------------------------------------------------------------------------------------
# Counts of the copies of each chunk, indexed so that the rarest of many thousands of chunks are found quickly.


class Copies:
    """Numbers of copies of each of `count` chunks; all numbers are 0 in the beginning."""

    def __init__(self, count: int) -> None:
        self._of = [0] * count
        self._with: dict[int, ChunkSet] = {0: (1 << count) - 1}
        """Chunks by their number of copies."""

    def add(self, chunks: ChunkSet, change: int = 1) -> None:
        """Add one copy of each of these chunks; a `change` of -1 removes one."""
        for chunk in chunks_in(chunks):
            before = self._of[chunk]
            self._of[chunk] = after = before + change
            assert after >= 0
            self._with[before] &= ~(1 << chunk)
            if not self._with[before]:
                del self._with[before]
            self._with[after] = self._with.get(after, 0) | 1 << chunk

    @property
    def none(self) -> ChunkSet:
        """Chunks of which there is no copy."""
        return self._with.get(0, 0)

    def rarest(self, among: ChunkSet) -> ChunkSet:
        """Return the chunks of a set that have the fewest copies; empty for the empty set."""
        return next((both for copies in sorted(self._with) if (both := self._with[copies] & among)), 0)


def any_of(chunks: ChunkSet, random_: random.Random) -> int:
    """Return a random member of a set that is not empty: the first at or above a random place."""
    above = chunks >> (start := random_.randrange(chunks.bit_length())) << start
    return (above & -above).bit_length() - 1


# ------------------------------------------------------------------------------------------------------------------------
# Messages between peers about a blob: the chunks that each has, and the chunks that each wants.
#
# Questions travel over a connection that has proven both peer IDs.  Nothing in them is trusted: chunks are checked against
# their hashes, and a false claim costs us only one vain request per chunk.


MAX_WANTED = 64
"""Most chunks in one request."""
MAX_NEIGHBOURS = 16
MAX_NEWS = 1024

ChunkIndex = Annotated[int, Field(ge=0, lt=MAX_BLOB_CHUNKS)]
Bitmap = Annotated[bytes, Field(max_length=MAX_BLOB_CHUNKS // 8)]


class BlobRequest(Body):
    """Question for a peer's chunks of a blob, and for notices of further ones.  chunks: the asker's chunks (a bitmap)."""

    blob: HashField
    chunks: Bitmap


class BlobReply(Body):
    """Answer to `BlobRequest`.

    chunks: the chunks that may be asked for (a bitmap).  more: True if further chunks may come.  apart: True if each asker
    is shown different chunks, which no other peer has yet.  neighbours: other peers that fetch the blob.
    """

    chunks: Bitmap
    more: bool
    apart: bool
    neighbours: Annotated[list[PeerField], Field(max_length=MAX_NEIGHBOURS)]


class ChunkNews(Body):
    """Notice that these chunks of a blob may now be requested as well."""

    blob: HashField
    chunks: Annotated[list[ChunkIndex], Field(min_length=1, max_length=MAX_NEWS)]


class ChunksRequest(Body):
    """Request for chunks of a blob, to be pushed in this order.  The answer names the chunks that will not come.

    spare: True if nobody waits for them, as for copies that the asker keeps for others; not written if False.
    """

    blob: HashField
    chunks: Annotated[list[ChunkIndex], Field(min_length=1, max_length=MAX_WANTED)]
    spare: Annotated[bool, Field(exclude_if=lambda spare: not spare)] = False


class ChunksReply(Body):
    """Chunks of a request that will not come.

    chunks: chunks that are not here.  busy: chunks that are here, but must be requested again later.
    """

    chunks: Annotated[list[ChunkIndex], Field(max_length=MAX_WANTED)]
    busy: Annotated[list[ChunkIndex], Field(max_length=MAX_WANTED)]


class LeavesRequest(Body):
    """Request for the hashes of the chunks of a blob."""

    blob: HashField


class ChunkHeader(Body):
    """Header of a push that carries this chunk of this blob."""

    blob: HashField
    chunk: ChunkIndex


@lru_cache(maxsize=256)
def read_chunk_header(raw: bytes) -> ChunkHeader | None:
    """Return the header of a push if it carries a chunk of a blob; cached, since it is called several times for one push."""
    try:
        return decode_body(ChunkHeader, raw, max_bytes=MAX_PUSH_HEADER_BYTES)
    except Malformed:
        return None
