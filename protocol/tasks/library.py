"""Blobs that peers state, such as sets of tasks: fetched with retries, and removed when they are not needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import trio

from protocol.blobs.blob import EvenSpans
from protocol.blobs.download import MOST_SOURCES
from protocol.blobs.fetcher import BlobFetcher, Wanted
from protocol.blobs.store import BlobStore, leaves_of
from protocol.blobs.swarm import Swarm
from protocol.blobs.transfer import Purpose
from protocol.disk import StoreFailed, map_file
from protocol.events.events import Notice
from protocol.offload import Offload
from protocol.transport.handlers import Guard
from protocol.transport.interface import Session
from protocol.transport.task_group import TaskGroup
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import MAX_SET_BYTES, TASK_CHUNK_BYTES

AT_ONCE = 4
"""Most blobs that are fetched at a time."""
TRIES = 3
RETRY_S = 2.0


class BlobKind(NamedTuple):
    """Kind of blobs.  what: the kind's name.  chunk_bytes: the size of chunks.  at_once: most fetches at a time."""

    what: str
    chunk_bytes: int
    at_once: int = AT_ONCE


class Library(BlobFetcher[Hash]):
    """Store of blobs of one kind, which are fetched and later removed.

    needed: returns True if a blob is still needed and must not be removed; several peers may have stated the same bytes.
    """

    def __init__(
        self,
        session: Session,
        store: BlobStore,
        swarm: Swarm,
        offload: Offload,
        kind: BlobKind,
        needed: Callable[[Hash], bool] = lambda root: False,
    ) -> None:
        super().__init__(session, swarm, store, offload)
        self._what, self._chunk_bytes = kind.what, kind.chunk_bytes
        self._places, self._needed, self._removing = trio.CapacityLimiter(kind.at_once), needed, trio.Lock()
        self._random = Random(session.me)

    async def obtain(self, root: Hash, size: int, number: int, first: Container[PeerId], within_s: float) -> bool:
        """Fetch a blob of this size; return True if we then have its bytes.  Raises `StoreFailed`.

        number: number for display.  first: peers to ask first, because other peers may not have the blob.
        """
        wanted = Wanted(root, root, EvenSpans(size, self._chunk_bytes), Purpose(self._what, number))
        async with self._places, self._alone(root, root):  # a blob may be stated in two sizes, and its file is mapped
            async with self._removing:
                pass  # wait for a removal under way: bytes that it removes must not count as present
            with trio.move_on_after(within_s):
                for _ in range(TRIES):
                    if self._folder.has(root) or await self._download(wanted, self._sources(first)):
                        break
                    await trio.sleep(RETRY_S)
        return self._folder.sizes().get(root) == size

    def _sources(self, first: Container[PeerId]) -> Sequence[PeerId]:
        """Return the peers to ask: `first` before others, in either group the most reliable first, equals in random order.

        Members rank before strangers because a peer's place in `first` often rests on its own statement alone.
        """
        connected, known = sorted(self._session.network.connected()), self._swarm.reliability
        self._random.shuffle(connected)
        return sorted(connected, key=lambda peer: (peer not in first, -known.rank(peer)))[:MOST_SOURCES]

    async def remove(self, root: Hash) -> bool:
        """Remove a blob; return True if its bytes are gone, or needed again.  Bytes that are being read are kept."""
        async with self._removing:
            if self._needed(root):
                return True
            if root in self._under_way or root in self._folder.used():
                return False
            self._swarm.end_origin(root)
            try:
                await self._offload(self._folder.remove, root)
            except (StoreFailed, OSError) as error:
                self._session.emit(Notice("debug", f"{self._what} cannot be removed: {error}"))
            return True


# ------------------------------------------------------------------------------------------------------------------------
# Files of sets of tasks: fetched, checked before use, and removed when they are not needed.


FETCH_S = 120.0


class SetFiles:
    """Files of sets of tasks at one node.

    digests: hexadecimal BLAKE2b-128, which the trainer process compares, of each file whose bytes match its root; other
    files are ignored.
    """

    def __init__(self, session: Session, guard: Guard, files: BlobStore, offload: Offload, swarm: Swarm) -> None:
        self._session, self._guard, self._files, self._offload, self._swarm = session, guard, files, offload, swarm
        self._library = Library(session, files, swarm, offload, BlobKind("tasks", TASK_CHUNK_BYTES))
        self.digests: dict[Hash, str] = {}
        self._coming: dict[Hash, trio.Event] = {}

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return self._files.folder

    def path(self, root: Hash) -> Path:
        """Return the path of a complete set."""
        return self._files.path(root)

    def size(self, root: Hash) -> int:
        """Return the size of a complete set, in bytes."""
        return self._files.sizes()[root]

    async def load(self) -> None:
        """Check the files on disk from before a restart."""
        await self._offload(self._files.load)
        for root in self._files.sizes():
            await self._check(root)

    async def tidy(self, kept: Collection[Hash]) -> None:
        """Remove all sets that are not in `kept`, complete or begun, unless they are being read."""
        for root in {*self._files.sizes(), *self._files.parts()} - {*kept, *self._coming}:
            if await self._library.remove(root):
                self.digests.pop(root, None)

    def begin(self, tasks: TaskGroup, needed: Mapping[Hash, tuple[int, PeerId]]) -> None:
        """Start to fetch the sets that we lack.  needed: (size, publisher) of each set."""
        for root, (size, maker) in needed.items():
            is_lacking = root not in self.digests and root not in self._coming
            if is_lacking and tasks.start(self._fetch, root, size, maker):
                self._coming[root] = trio.Event()

    async def obtain(self, tasks: TaskGroup, root: Hash, size: int, maker: PeerId) -> bool:
        """Fetch a set; return True if we then have it."""
        self.begin(tasks, {root: (size, maker)})
        if root in self._coming:
            await self._coming[root].wait()
        return root in self.digests

    async def _fetch(self, root: Hash, size: int, maker: PeerId) -> None:
        try:
            with self._guard.watch(maker, "set of tasks"):
                try:
                    if await self._library.obtain(root, size, 0, (maker,), FETCH_S):
                        await self._check(root)
                except StoreFailed as error:
                    self._session.emit(Notice("warning", f"tasks cannot be kept: {error}"))
        finally:
            self._coming.pop(root).set()

    async def look_again(self, roots: Iterable[Hash]) -> None:
        """Check again the sets that could not be read; a set whose bytes are gone can then be fetched again."""
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
        """Return the digest of a file with the right bytes; otherwise demote the file, to fetch it again.  Blocking."""
        view = map_file(self._files.path(root))
        if view is not None and tree_root(leaves_of(view, TASK_CHUNK_BYTES)) == root:
            return hashlib.blake2b(view, digest_size=16).hexdigest()
        self._files.demote(root)
        return None

    async def adopt(self, source: Path) -> tuple[Hash, int]:
        """Turn a file of our folder into a set that we serve, and return its root and size.

        Raises ValueError for a file of a wrong size, and `StoreFailed`.
        """
        root, leaves, size = await self._offload(self._measure, source)
        await self._offload(self._files.adopt, source, root, leaves)
        await self._check(root)
        self._swarm.originate(root, len(leaves))
        return root, size

    @staticmethod
    def _measure(source: Path) -> tuple[Hash, list[Hash], int]:
        """Return the root, the chunks' hashes and the size of a file.  Blocking.  Raises ValueError for a wrong size."""
        view = map_file(source)
        if view is None or not 0 < len(view) <= MAX_SET_BYTES:
            raise ValueError(f"a set has 1 to {MAX_SET_BYTES} bytes; split it")
        leaves = leaves_of(view, TASK_CHUNK_BYTES)
        return tree_root(leaves), leaves, len(view)
