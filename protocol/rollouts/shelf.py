"""Batches of rollouts on disk, as blobs that others may fetch; how they come here, and how they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from protocol.rollouts.batch import Batch
from protocol.state.disk import StoreFailed
from protocol.state.weight_files import WeightFiles
from protocol.versions.shelf import StoredBlob
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import ROLLOUT_CHUNK_BYTES
from protocol.wire.versions import BlobName

TRIES = 3
RETRY_S = 2.0


class RolloutShelf:
    """A `protocol.content.shelf.Shelf` of the batches whose bytes are here."""

    def __init__(self, files: WeightFiles) -> None:
        self._files = files

    def find(self, name: Hash) -> Held | None:
        """As `Shelf.find`."""
        size = self._files.sizes().get(name)
        hashes = self._files.index(name, ROLLOUT_CHUNK_BYTES) if size is not None else None
        if size is None or hashes is None:
            return None
        return StoredBlob(self._files, BlobName(size=size, chunk_bytes=ROLLOUT_CHUNK_BYTES, root=name), hashes)

    def holdings(self) -> list[Holding]:
        """As `ListedShelf.holdings`."""
        return [Holding("rollouts", 0, root.hex(), size) for root, size in self._files.sizes().items()]


class Library:
    """Fetches batches into `files`, and removes them.

    needed: whether bytes are those of a batch that is wanted: several peers may have stated the same ones.
    """

    def __init__(
        self, session: Session, files: WeightFiles, swarm: Swarm, offload: Offload, needed: Callable[[Hash], bool]
    ) -> None:
        self._session, self._files, self._swarm, self._offload = session, files, swarm, offload
        self._needed, self._removing = needed, trio.Lock()

    async def fetch(self, batch: Batch, within_s: float) -> bool:
        """Whether the bytes of a batch, of the size that is stated, are here in the end.  Raises `StoreFailed`."""
        async with self._removing:
            pass  # what is just being removed is not taken for being here
        with trio.move_on_after(within_s):
            for _ in range(TRIES):
                if self._files.has(batch.root) or await self._try(batch):
                    break
                await trio.sleep(RETRY_S)
        return self._files.sizes().get(batch.root) == batch.body.size

    async def _try(self, batch: Batch) -> bool:
        root, body, sources = batch.root, batch.body, self._sources(batch.author)
        leaves = await fetch_leaves(self._session, root, body.chunks, sources, "rollouts")
        if leaves is None:
            return False
        await self._offload(self._files.write_leaves, root, leaves)
        part = await self._offload(self._files.begin, root, body.size)
        missing = await self._offload(part.missing, leaves, ROLLOUT_CHUNK_BYTES)
        here = ((1 << body.chunks) - 1) & ~set_of(missing)
        blob = Blob.even(root, leaves, body.size, ROLLOUT_CHUNK_BYTES)
        whole = await self._swarm.fetch(blob, part.view, sources, Purpose("rollouts", body.version), here=here)
        if whole:
            await self._offload(self._files.publish, part, root, leaves)
        return whole

    def _sources(self, author: PeerId) -> Sequence[PeerId]:
        """Its maker first; the others may have it already."""
        connected = [*self._session.network.connected()]
        return sorted(connected, key=lambda peer: peer != author)[:MOST_SOURCES]

    async def remove(self, root: Hash) -> bool:
        """Whether the bytes of a batch are gone, or needed again; while somebody reads them they stay."""
        async with self._removing:
            if self._needed(root):
                return True
            if root in self._files.used():
                return False
            self._swarm.end_origin(root)
            try:
                await self._offload(self._files.remove, root)
            except (StoreFailed, OSError) as error:
                self._session.emit(Notice("debug", f"a batch of rollouts cannot be removed: {error}"))
            return True
