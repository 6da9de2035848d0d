"""What peers say to each other about a blob: who has which chunks, and who wants which.

Questions travel over a connection that has proven both peer IDs.  Nothing in them is believed: chunks are checked against
their hashes, and a peer that claims what it has not is asked in vain, once for each chunk.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import Field

from protocol.content.blob import MAX_BLOB_CHUNKS
from protocol.network.interface import MAX_PUSH_HEADER_BYTES
from protocol.wire.body import Body, HashField, PeerField, decode_body
from protocol.wire.canonical import Malformed

MAX_WANTED = 64
"""Chunks in one request."""
MAX_NEIGHBOURS = 16
MAX_NEWS = 1024

ChunkIndex = Annotated[int, Field(ge=0, lt=MAX_BLOB_CHUNKS)]
Bitmap = Annotated[bytes, Field(max_length=MAX_BLOB_CHUNKS // 8)]


class BlobRequest(Body):
    """Asks which chunks of a blob a peer has, and to be told of further ones.  chunks: what the asker has (a bitmap)."""

    blob: HashField
    chunks: Bitmap


class BlobReply(Body):
    """chunks: what may be asked for (a bitmap).  more: whether others may come.  apart: whether it shows each asker other
    chunks, which nobody else has yet.  neighbours: others that fetch the blob."""

    chunks: Bitmap
    more: bool
    apart: bool
    neighbours: Annotated[list[PeerField], Field(max_length=MAX_NEIGHBOURS)]


class ChunkNews(Body):
    """These chunks of a blob may be asked for now, too."""

    blob: HashField
    chunks: Annotated[list[ChunkIndex], Field(min_length=1, max_length=MAX_NEWS)]


class ChunksRequest(Body):
    """Asks for chunks of a blob, to be pushed in this order.  Answered with those that are not to be had."""

    blob: HashField
    chunks: Annotated[list[ChunkIndex], Field(min_length=1, max_length=MAX_WANTED)]


class ChunksReply(Body):
    """Of the chunks asked for, those that will not come.  chunks: that are not here.  busy: that are, for another time."""

    chunks: Annotated[list[ChunkIndex], Field(max_length=MAX_WANTED)]
    busy: Annotated[list[ChunkIndex], Field(max_length=MAX_WANTED)]


class LeavesRequest(Body):
    """Asks for the hashes of the chunks of a blob."""

    blob: HashField


class ChunkHeader(Body):
    """Says what a push carries: this chunk of this blob."""

    blob: HashField
    chunk: ChunkIndex


QUESTIONS: dict[str, type[Body]] = {
    "blob": BlobRequest,
    "news": ChunkNews,
    "want": ChunksRequest,
    "leaves": LeavesRequest,
}
"""The questions about blobs, by kind."""


@lru_cache(maxsize=256)
def read_chunk_header(raw: bytes) -> ChunkHeader | None:
    """The header of a push, if it carries a chunk of a blob; remembered, for one push asks several times."""
    try:
        return decode_body(ChunkHeader, raw, max_bytes=MAX_PUSH_HEADER_BYTES)
    except Malformed:
        return None
