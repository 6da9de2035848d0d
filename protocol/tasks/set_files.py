"""The files of sets of tasks: fetched, checked before they count, and removed when nobody needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import trio

from protocol.content.swarm import Swarm
from protocol.events import Notice
from protocol.network.session import Session
from protocol.offload import Offload
from protocol.state.disk import StoreFailed, map_file
from protocol.state.weight_files import WeightFiles, leaves_of
from protocol.tasks.library import Library
from protocol.versions.weight_versions import Watching
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.tasks import MAX_SET_BYTES, TASK_CHUNK_BYTES

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
