"""Messages between peers about a blob: the chunks that each has, and the chunks that each wants.

Questions travel over a connection that has proven both peer IDs.  Nothing in them is believed: chunks are checked against
their hashes, and a peer with false claims is asked in vain, once for each chunk.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from protocol.blobs.blob import MAX_BLOB_CHUNKS, ChunkSet, chunks_in
from protocol.transport.interface import MAX_PUSH_HEADER_BYTES
from protocol.wire.body import Body, HashField, PeerField, decode_body
from protocol.wire.canonical import Malformed

# ------------------------------------------------------------------------------------------------------------------------
# Counts of the copies of each chunk: they find the rarest of many thousands at once.


class Copies:
    """Numbers of copies of each of `count` chunks, all of them 0 in the beginning."""

    def __init__(self, count: int) -> None:
        self._of = [0] * count
        self._with: dict[int, ChunkSet] = {0: (1 << count) - 1}
        """Chunks by their number of copies."""

    def add(self, chunks: ChunkSet, change: int = 1) -> None:
        """Add one copy of each of these chunks; remove one with a `change` of -1."""
        for chunk in chunks_in(chunks):
            before = self._of[chunk]
            self._of[chunk] = after = before + change
            assert after >= 0
            self._move(1 << chunk, before, after)

    def _move(self, bit: ChunkSet, before: int, after: int) -> None:
        left = self._with[before] & ~bit
        if left:
            self._with[before] = left
        else:
            del self._with[before]
        self._with[after] = self._with.get(after, 0) | bit

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


MAX_WANTED = 64
"""Chunks in one request."""
MAX_NEIGHBOURS = 16
MAX_NEWS = 1024

ChunkIndex = Annotated[int, Field(ge=0, lt=MAX_BLOB_CHUNKS)]
Bitmap = Annotated[bytes, Field(max_length=MAX_BLOB_CHUNKS // 8)]


class BlobRequest(Body):
    """Question for the chunks of a blob that a peer has, and for news of further ones.  chunks: the asker's (a bitmap)."""

    blob: HashField
    chunks: Bitmap


class BlobReply(Body):
    """Answer to `BlobRequest`.

    chunks: may be asked for (a bitmap).  more: True if further ones may come.  apart: True if each asker is shown other
    chunks, which nobody else has yet.  neighbours: other peers that fetch the blob.
    """

    chunks: Bitmap
    more: bool
    apart: bool
    neighbours: Annotated[list[PeerField], Field(max_length=MAX_NEIGHBOURS)]


class ChunkNews(Body):
    """News that these chunks of a blob may now be asked for as well."""

    blob: HashField
    chunks: Annotated[list[ChunkIndex], Field(min_length=1, max_length=MAX_NEWS)]


class ChunksRequest(Body):
    """Request for chunks of a blob, to be pushed in this order.  The answer names the chunks that will not come."""

    blob: HashField
    chunks: Annotated[list[ChunkIndex], Field(min_length=1, max_length=MAX_WANTED)]


class ChunksReply(Body):
    """Chunks of a request that will not come.  chunks: not here.  busy: here, but to be asked for another time."""

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
    """Return the header of a push if it carries a chunk of a blob; cached, since one push asks several times."""
    try:
        return decode_body(ChunkHeader, raw, max_bytes=MAX_PUSH_HEADER_BYTES)
    except Malformed:
        return None
