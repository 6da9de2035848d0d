"""Fetching of whole blobs from the swarm onto the disk; all large data is fetched in this way.

A fetcher gets the hashes of the chunks, from the disk or from peers, begins or continues the blob's part, finds the chunks
that it lacks, fetches them, and publishes the blob.  A peer that was killed continues with the chunks that it had.  The
users of a fetcher decide which blobs are fetched, when, and from which peers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic

import trio

from protocol.blobs.blob import Blob, LeavesRequest, Spans, set_of
from protocol.blobs.mirrors import Mirrors
from protocol.blobs.reliability import Reliability
from protocol.blobs.store import BlobFolder, K
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose
from protocol.events.events import Dropped, Notice
from protocol.offload import Offload
from protocol.short_id import short_id
from protocol.transport.interface import MAX_REQUEST_BYTES, NetworkError, Session
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.questions import LeavesReply

LEAVES_S = 60.0
"""Seconds for asking some peers for the hashes of a blob's chunks, before others are asked."""


@dataclass(frozen=True)
class Wanted(Generic[K]):
    """A blob to be fetched.

    key: the key of the blob in its folder.  name: the root over the hashes of its chunks.  leaves: the hashes, if they are
    known.
    """

    key: K
    name: Hash
    spans: Spans
    purpose: Purpose
    leaves: Sequence[Hash] | None = None


class BlobFetcher(Generic[K]):
    """Fetcher of blobs into one folder.

    Each blob has one download at a time; a later caller adds its sources to that download.

    on_fetched: called with the key and the size of each blob that was fetched.  mirrors: mirrors of the blobs; their hashes
    come from peers.
    """

    def __init__(
        self,
        session: Session,
        swarm: Swarm,
        folder: BlobFolder[K],
        offload: Offload,
        on_fetched: Callable[[K, int], None] = lambda key, size: None,
        mirrors: Mirrors | None = None,
    ) -> None:
        self._mirrors = mirrors
        self._session, self._swarm, self._folder, self._offload = session, swarm, folder, offload
        self._on_fetched = on_fetched
        self._under_way: dict[K, trio.Event] = {}

    async def fetch(
        self, wanted: Wanted[K], sources: Sequence[PeerId], on_chunk: Callable[[int], None] = lambda here: None
    ) -> bool:
        """Fetch a blob, unless it is here; return False if some chunk cannot be found.  Raises `StoreFailed`.

        sources: peers to ask first.  on_chunk: called with the number of chunks that are here, for each chunk that comes.
        """
        async with self._alone(wanted.key, wanted.name, sources):
            return self._folder.has(wanted.key) or await self._download(wanted, sources, on_chunk)

    @asynccontextmanager
    async def _alone(self, key: K, name: Hash, sources: Sequence[PeerId] = ()) -> AsyncGenerator[None]:
        """Hold the only download of a blob; wait for one that is under way, and add our sources to it."""
        while (other := self._under_way.get(key)) is not None:
            self._swarm.add_sources(name, sources)
            await other.wait()
        over = self._under_way[key] = trio.Event()
        try:
            yield
        finally:
            del self._under_way[key]
            over.set()

    async def _download(
        self, wanted: Wanted[K], sources: Sequence[PeerId], on_chunk: Callable[[int], None] = lambda here: None
    ) -> bool:
        leaves, spans = await self._leaves(wanted, sources), wanted.spans
        if leaves is None:
            return False
        part = await self._offload(self._folder.begin, wanted.key, spans[len(spans) - 1].stop)
        try:
            missing = await self._offload(part.missing, leaves, spans)
            blob, here = Blob.cut(wanted.name, leaves, spans), len(spans) - len(missing)

            def came() -> None:
                nonlocal here
                here += 1
                on_chunk(here)

            found = blob.all & ~set_of(missing)
            whole = await self._swarm.fetch(
                blob, part.view, sources, wanted.purpose, here=found, on_chunk=came, mirrors=self._mirrors
            )
            if whole:
                await self._offload(self._folder.publish, part, leaves)
                self._on_fetched(wanted.key, len(part.view))
        finally:
            self._folder.end(part)
        return whole

    async def _leaves(self, wanted: Wanted[K], sources: Sequence[PeerId]) -> Sequence[Hash] | None:
        """Return the hashes of a blob's chunks: as given, from the disk, or from peers; hashes from peers are stored."""
        count = len(wanted.spans)
        if wanted.leaves is not None:
            return wanted.leaves
        leaves: Sequence[Hash] | None = await self._offload(self._folder.leaves, wanted.key)
        if leaves is not None and len(leaves) == count and tree_root(leaves) == wanted.name:
            return leaves
        fetched = None
        with trio.move_on_after(LEAVES_S):
            known, what = self._swarm.reliability, wanted.purpose.what
            fetched = await fetch_leaves(self._session, known, wanted.name, count, sources, what)
        if fetched is not None:
            await self._offload(self._folder.write_leaves, wanted.key, fetched)
        return fetched


# ------------------------------------------------------------------------------------------------------------------------
# The hashes of a blob's chunks, from any peer that has them: they are checked against the root that names the blob.


ASK_TIMEOUT_S = 10.0
PATIENCE_S = 4.0
"""A peer that is silent for longer withholds the hashes."""
SOON_S, AT_ONCE = 1.0, 8
"""After this long without an answer, one more peer is asked, up to this many at a time: a silent peer causes no delay."""


async def fetch_leaves(
    session: Session, reliability: Reliability, root: Hash, count: int, sources: Iterable[PeerId], what: str
) -> list[Hash] | None:
    """Fetch the `count` hashes under `root` from sources in their order; None if no source has them.

    Sources that rank below strangers are asked after all others.  what: the kind of the blob, for the log.
    """
    found: list[list[Hash]] = []
    in_turn = sorted(sources, key=lambda peer: reliability.rank(peer) < 0)
    waiting, over = iter(in_turn), trio.Event()

    async def ask_in_turn() -> None:
        for peer in waiting:
            leaves, asked_at = None, trio.current_time()
            try:
                leaves = await _ask(session, root, count, peer, what)
            finally:
                if leaves is None and trio.current_time() - asked_at > PATIENCE_S:
                    reliability.withheld(peer)
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
