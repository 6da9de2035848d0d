"""Small blobs in a folder of their own: how they come here, how others get them, and how they go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from random import Random

import trio

from protocol.content.blob import Blob, set_of
from protocol.content.download import MOST_SOURCES
from protocol.content.leaves import fetch_leaves
from protocol.content.shelf import Held, Holding
from protocol.content.swarm import Swarm
from protocol.content.transfer import Purpose
from protocol.events import Notice
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.state.disk import StoreFailed
from protocol.state.weight_files import WeightFiles
from protocol.versions.shelf import StoredBlob
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.versions import BlobName

AT_ONCE = 4
"""Blobs that are fetched at a time."""
TRIES = 3
RETRY_S = 2.0


class FolderShelf:
    """A `protocol.content.shelf.ListedShelf` of the files of a folder.  what: they are, in a word.  chunk_bytes: of all."""

    def __init__(self, files: WeightFiles, what: str, chunk_bytes: int) -> None:
        self._files, self._what, self._chunk_bytes = files, what, chunk_bytes

    def find(self, name: Hash) -> Held | None:
        """As `Shelf.find`."""
        size = self._files.sizes().get(name)
        hashes = self._files.index(name, self._chunk_bytes) if size is not None else None
        if size is None or hashes is None:
            return None
        return StoredBlob(self._files, BlobName(size=size, chunk_bytes=self._chunk_bytes, root=name), hashes)

    def holdings(self) -> list[Holding]:
        """As `ListedShelf.holdings`."""
        return [Holding(self._what, 0, root.hex(), size) for root, size in self._files.sizes().items()]


class Library:
    """Fetches blobs into `files`, and removes them.  what, chunk_bytes: as of the shelf.  at_once: fetches.

    needed: whether a blob is still wanted, so that it is not removed: several peers may have stated the same bytes.
    """

    def __init__(
        self,
        session: Session,
        files: WeightFiles,
        swarm: Swarm,
        offload: Offload,
        what: str,
        chunk_bytes: int,
        *,
        at_once: int = AT_ONCE,
        needed: Callable[[Hash], bool] = lambda root: False,
    ) -> None:
        self._session, self._files, self._swarm, self._offload = session, files, swarm, offload
        self._what, self._chunk_bytes = what, chunk_bytes
        self._places, self._needed, self._removing = trio.CapacityLimiter(at_once), needed, trio.Lock()
        self._under_way: dict[Hash, trio.Event] = {}
        self._random = Random(session.me)

    async def fetch(self, root: Hash, size: int, number: int, first: Container[PeerId], within_s: float) -> bool:
        """Whether the bytes of a blob, of this size, are here in the end.  number: for people.  first: are asked first, as
        the others may not have it.  Raises `StoreFailed`."""
        async with self._places, self._alone(root):
            with trio.move_on_after(within_s):
                for _ in range(TRIES):
                    if self._files.has(root) or await self._try(root, size, number, first):
                        break
                    await trio.sleep(RETRY_S)
        return self._files.sizes().get(root) == size

    @asynccontextmanager
    async def _alone(self, root: Hash) -> AsyncIterator[None]:
        """Within, nobody else fetches or removes these bytes: they may be stated in two sizes, and the file is mapped."""
        while (other := self._under_way.get(root)) is not None:
            await other.wait()
        ended = self._under_way[root] = trio.Event()
        try:
            async with self._removing:
                pass  # what is just being removed is not taken for being here
            yield
        finally:
            del self._under_way[root]
            ended.set()

    async def _try(self, root: Hash, size: int, number: int, first: Container[PeerId]) -> bool:
        count, sources = -(-size // self._chunk_bytes), self._sources(first)
        leaves = await fetch_leaves(self._session, root, count, sources, self._what)
        if leaves is None:
            return False
        await self._offload(self._files.write_leaves, root, leaves)
        part = await self._offload(self._files.begin, root, size)
        missing = await self._offload(part.missing, leaves, self._chunk_bytes)
        here = ((1 << count) - 1) & ~set_of(missing)
        blob = Blob.even(root, leaves, size, self._chunk_bytes)
        whole = await self._swarm.fetch(blob, part.view, sources, Purpose(self._what, number), here=here)
        if whole:
            await self._offload(self._files.publish, part, root, leaves)
        return whole

    def _sources(self, first: Container[PeerId]) -> Sequence[PeerId]:
        """Others each time: of more than may be asked at once, any may be the only one that has it."""
        connected = sorted(self._session.network.connected())
        self._random.shuffle(connected)
        return sorted(connected, key=lambda peer: peer not in first)[:MOST_SOURCES]

    async def remove(self, root: Hash) -> bool:
        """Whether the bytes of a blob are gone, or needed again; while somebody reads them they stay."""
        async with self._removing:
            if self._needed(root):
                return True
            if root in self._under_way or root in self._files.used():
                return False
            self._swarm.end_origin(root)
            try:
                await self._offload(self._files.remove, root)
            except (StoreFailed, OSError) as error:
                self._session.emit(Notice("debug", f"{self._what} cannot be removed: {error}"))
            return True
