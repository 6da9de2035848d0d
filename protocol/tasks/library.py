"""Small blobs in a folder of their own: how they come here, how others get them, and how they go."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from protocol.blobs.blob import Blob, set_of
from protocol.blobs.download import MOST_SOURCES
from protocol.blobs.messages import fetch_leaves
from protocol.blobs.shelf import Held, Holding
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose
from protocol.chain.disk import StoreFailed, map_file
from protocol.chain.weight_files import WeightFiles, leaves_of
from protocol.events.events import Notice
from protocol.offload import Offload
from protocol.transport.interface import Session
from protocol.versions.shelf import StoredBlob
from protocol.versions.weight_versions import Watching
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.tasks import MAX_SET_BYTES, TASK_CHUNK_BYTES
from protocol.wire.versions import BlobName

AT_ONCE = 4
"""Blobs that are fetched at a time."""
TRIES = 3
RETRY_S = 2.0


class FolderShelf:
    """A `protocol.blobs.shelf.ListedShelf` of the files of a folder.  what: they are, in a word.  chunk_bytes: of all."""

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
        leaves = await self._offload(self._files.leaves, root)
        if leaves is None or len(leaves) != count:
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
        """Members before strangers, and of a crowd of strangers others each time: who is first is often only their word."""
        connected, members = sorted(self._session.network.connected()), self._swarm.members
        self._random.shuffle(connected)
        return sorted(connected, key=lambda peer: (peer not in first, not members.has_member(peer)))[:MOST_SOURCES]

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


# ------------------------------------------------------------------------------------------------------------------------
# The files of sets of tasks: fetched, checked before they count, and removed when nobody needs them.


FETCH_S = 120.0


class SetFiles:
    """Of one node.  digests: what the trainer process compares (hexadecimal BLAKE2b-128), of each file whose bytes are the
    named ones; the others do not count."""

    def __init__(self, session: Session, guard: Watching, files: WeightFiles, offload: Offload, swarm: Swarm) -> None:
        self._session, self._guard, self._files, self._offload, self._swarm = session, guard, files, offload, swarm
        self._library = Library(session, files, swarm, offload, "tasks", TASK_CHUNK_BYTES)
        self.digests: dict[Hash, str] = {}
        self._coming: dict[Hash, trio.Event] = {}

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._files.folder

    def path(self, root: Hash) -> Path:
        """Where a complete one lies."""
        return self._files.path(root)

    def size(self, root: Hash) -> int:
        """Of a complete one."""
        return self._files.sizes()[root]

    async def load(self) -> None:
        """Look at what an earlier life left."""
        await self._offload(self._files.load)
        for root in self._files.sizes():
            await self._check(root)

    async def tidy(self, kept: Collection[Hash]) -> None:
        """Remove all others, as far as nobody reads them."""
        for root in {*self._files.sizes()} - {*kept, *self._coming}:
            if await self._library.remove(root):
                self.digests.pop(root, None)

    def begin(self, nursery: trio.Nursery, needed: Mapping[Hash, tuple[int, PeerId]]) -> None:
        """Fetch those that are not here.  needed: of each its size, and who published it."""
        for root, (size, maker) in needed.items():
            if root not in self.digests and root not in self._coming:
                self._coming[root] = trio.Event()
                nursery.start_soon(self._fetch, root, size, maker)

    async def obtain(self, nursery: trio.Nursery, root: Hash, size: int, maker: PeerId) -> bool:
        """Whether one is here in the end."""
        self.begin(nursery, {root: (size, maker)})
        if root in self._coming:
            await self._coming[root].wait()
        return root in self.digests

    async def _fetch(self, root: Hash, size: int, maker: PeerId) -> None:
        try:
            with self._guard.watch(maker, "set of tasks"):
                try:
                    if await self._library.fetch(root, size, 0, (maker,), FETCH_S):
                        await self._check(root)
                except StoreFailed as error:
                    self._session.emit(Notice("warning", f"tasks cannot be kept: {error}"))
        finally:
            self._coming.pop(root).set()

    async def look_again(self, roots: Iterable[Hash]) -> None:
        """Somebody cannot read these: those whose bytes are not here any more are fetched again."""
        for root in roots:
            if root not in self._coming:
                await self._check(root)

    async def _check(self, root: Hash) -> None:
        digest = await self._offload(self._digest, root)
        if digest is not None:
            self.digests[root] = digest
        else:
            self.digests.pop(root, None)

    def _digest(self, root: Hash) -> str | None:
        """Blocking: of a file whose bytes are right; another one is to be fetched again."""
        view = map_file(self._files.path(root))
        if view is not None and tree_root(leaves_of(view, TASK_CHUNK_BYTES)) == root:
            return hashlib.blake2b(view, digest_size=16).hexdigest()
        self._files.demote(root)
        return None

    async def adopt(self, source: Path) -> tuple[Hash, int]:
        """Name and size of a file of our folder, which becomes a set that others can have from us.

        Raises ValueError where it is no set, and `StoreFailed`.
        """
        root, leaves, size = await self._offload(self._measure, source)
        await self._offload(self._files.adopt, source, root, leaves)
        await self._check(root)
        self._swarm.originate(root, len(leaves))
        return root, size

    @staticmethod
    def _measure(source: Path) -> tuple[Hash, list[Hash], int]:
        """Blocking: name, chunks' hashes and size."""
        view = map_file(source)
        if view is None or not 0 < len(view) <= MAX_SET_BYTES:
            raise ValueError(f"a set has 1 to {MAX_SET_BYTES} bytes; split it")
        leaves = leaves_of(view, TASK_CHUNK_BYTES)
        return tree_root(leaves), leaves, len(view)
