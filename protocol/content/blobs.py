"""Fetching the chunks of a large thing from everyone who has it.

A result or a checkpoint is a sequence of chunks whose hashes a certified record vouches for.  Chunks are asked for in
slices of at most `SLICE_BYTES`, several at a time from each source, checked by hash, and written in place.

Sources are equal: a free source takes the next wanted chunk.  A fast one therefore serves more; one that does not have a
chunk is not asked for it again; one that fails twice running, or sends a wrong chunk, is set aside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import trio
from pydantic import Field

from protocol.events import Dropped, Event
from protocol.network.interface import Network, NetworkError, Refused
from protocol.wire.body import Body, Count, HashField
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.questions import SLICE_BYTES

IN_FLIGHT = 2
"""Chunks under way from one source."""
FAILURES = 2
FETCH_TIMEOUT_S = 30.0

Offload = Callable[..., Awaitable[Any]]


class ChunkRequest(Body):
    """Bytes [offset, offset + length) of a chunk.  root: the result's root, or the checkpoint's digest."""

    what: Literal["result", "checkpoint"]
    round: Count
    root: HashField
    index: Count
    offset: Count
    length: Annotated[int, Field(ge=1, le=SLICE_BYTES)]


@dataclass(frozen=True)
class BlobChunk:
    """Chunk `index`: bytes [offset, offset + size) of the destination."""

    index: int
    offset: int
    size: int
    hash: Hash


@dataclass
class _Fetch:
    """What is left to do, and who is doing it."""

    wanted: list[BlobChunk]
    total: int
    lacking: dict[int, list[PeerId]] = field(default_factory=dict)
    done: int = 0

    def take(self, peer: PeerId) -> BlobChunk | None:
        for position, chunk in enumerate(self.wanted):
            if peer not in self.lacking.get(chunk.index, ()):
                return self.wanted.pop(position)
        return None


async def fetch_blob(
    network: Network,
    sources: Sequence[PeerId],
    what: Literal["result", "checkpoint"],
    round: int,
    root: Hash,
    wanted: Sequence[BlobChunk],
    into: memoryview,
    *,
    offload: Offload,
    emit: Callable[[Event], None],
    on_progress: Callable[[int, int], None],
) -> bool:
    """Fetch the wanted chunks into `into`; True when all are there, False when no source is left for some."""
    fetch, willing, failed = _Fetch(list(wanted), len(wanted)), list(sources), set[PeerId]()

    async def one_after_another(peer: PeerId) -> None:
        failures = 0
        while failures < FAILURES and (chunk := fetch.take(peer)) is not None:
            try:
                data = await _fetch_chunk(network, peer, what, round, root, chunk)
            except Refused:
                fetch.lacking.setdefault(chunk.index, []).append(peer)
                fetch.wanted.append(chunk)
                continue
            except NetworkError:
                failures += 1
                fetch.wanted.append(chunk)
                continue
            if await offload(chunk_hash, data) != chunk.hash:
                emit(Dropped(peer, f"{what} chunk", "its bytes are not those that were certified"))
                fetch.wanted.append(chunk)
                failed.add(peer)
                return
            into[chunk.offset : chunk.offset + chunk.size] = data
            failures, fetch.done = 0, fetch.done + 1
            on_progress(fetch.done, fetch.total)
        if failures >= FAILURES:
            failed.add(peer)

    while fetch.wanted:
        before = fetch.done
        async with trio.open_nursery() as nursery:
            for peer in willing:
                for _ in range(IN_FLIGHT):
                    nursery.start_soon(one_after_another, peer)
        if fetch.done == before and not failed.intersection(willing):
            return False
        willing = [peer for peer in willing if peer not in failed]  # others wait for the chunks that these did not bring
    return True


async def _fetch_chunk(
    network: Network, peer: PeerId, what: Literal["result", "checkpoint"], round: int, root: Hash, chunk: BlobChunk
) -> bytes:
    slices = []
    for offset in range(0, chunk.size, SLICE_BYTES):
        length = min(SLICE_BYTES, chunk.size - offset)
        question = ChunkRequest(what=what, round=round, root=root, index=chunk.index, offset=offset, length=length)
        answer = await network.request(peer, "chunk", question.encode(), timeout_s=FETCH_TIMEOUT_S)
        if len(answer) != length:
            raise Refused("a slice of another length than asked for")
        slices.append(answer)
    return b"".join(slices)
