"""What peers say to each other about a blob: who has which chunks, and who wants which.

Questions travel over a connection that has proven both peer IDs.  Nothing in them is believed: chunks are checked against
their hashes, and a peer that claims what it has not is asked in vain, once for each chunk.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated

import trio
from pydantic import Field

from protocol.blobs.blob import MAX_BLOB_CHUNKS, ChunkSet, chunks_in
from protocol.events.events import Dropped, Notice
from protocol.short_id import short_id
from protocol.transport.interface import MAX_PUSH_HEADER_BYTES, MAX_REQUEST_BYTES, NetworkError, Session
from protocol.wire.body import Body, HashField, PeerField, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply

# ------------------------------------------------------------------------------------------------------------------------
# How many copies of each chunk there are: finds the rarest ones of many thousands at once.


class Copies:
    """Counts for `count` chunks, all of them 0 in the beginning."""

    def __init__(self, count: int) -> None:
        self._of = [0] * count
        self._with: dict[int, ChunkSet] = {0: (1 << count) - 1}
        """The chunks of which there are so many copies."""

    def add(self, chunks: ChunkSet, change: int = 1) -> None:
        """There is one more of each of these; one less with a `change` of -1."""
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
        """Those of a set of which there are the fewest copies; empty for the empty set."""
        return next((both for copies in sorted(self._with) if (both := self._with[copies] & among)), 0)


def any_of(chunks: ChunkSet, random_: random.Random) -> int:
    """A random one of a set that is not empty: the first at or above a random place."""
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


# ------------------------------------------------------------------------------------------------------------------------
# The hashes of a blob's chunks, from whoever has them: they are checked against the root that names the blob.


ASK_TIMEOUT_S = 10.0
SOON_S, AT_ONCE = 1.0, 8
"""One more peer is asked after so long without an answer, up to so many at a time: who says nothing holds nobody up."""


async def fetch_leaves(session: Session, root: Hash, count: int, sources: Iterable[PeerId], what: str) -> list[Hash] | None:
    """The `count` hashes under `root`; None when no source has them.  what: of which kind of blob, for the log."""
    found: list[list[Hash]] = []
    waiting, over = iter(sources), trio.Event()

    async def ask_in_turn() -> None:
        for peer in waiting:
            leaves = await _ask(session, root, count, peer, what)
            if leaves is not None:
                found.append(leaves)
                nursery.cancel_scope.cancel()
                return
        over.set()

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(ask_in_turn)
            with trio.move_on_after(SOON_S):
                await over.wait()
            if over.is_set():
                break
    return found[0] if found else None


async def _ask(session: Session, root: Hash, count: int, peer: PeerId, what: str) -> list[Hash] | None:
    try:
        question = LeavesRequest(blob=root).encode()
        answer = await session.network.request(peer, "leaves", question, timeout_s=ASK_TIMEOUT_S)
        reply = decode_body(LeavesReply, answer, max_bytes=MAX_REQUEST_BYTES)
    except (NetworkError, Malformed) as error:
        session.emit(Notice("debug", f"no {what} hashes from {short_id(peer)}: {error}"))
        return None
    leaves = [Hash(leaf) for leaf in reply.leaves]
    if len(leaves) == count and tree_root(leaves) == root:
        return leaves
    session.emit(Dropped(peer, f"{what} hashes", "they do not match the certified digest"))
    return None
