"""Versions of the weights on disk, as blobs that others may fetch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.blobs.blob import ChunkSet
from protocol.blobs.store import BlobStore, Held, Holding, ListedShelf
from protocol.versions.catalogue import Catalogue
from protocol.wire.hashes import Hash
from protocol.wire.versions import BlobName

REMEMBERED = 4
"""Most files whose chunks' hashes are remembered; 1 MiB each at most."""


@dataclass(frozen=True)
class StoredBlob:
    """Complete file; a damaged chunk is found out when it is read."""

    files: BlobStore
    blob: BlobName
    hashes: Sequence[Hash]

    @property
    def count(self) -> int:
        """As `Held.count`."""
        return self.blob.count

    @property
    def here(self) -> ChunkSet:
        """All chunks, as the file is complete."""
        return (1 << self.count) - 1

    @property
    def is_urgent(self) -> bool:
        """False: no round waits for such a blob."""
        return False

    def leaves(self) -> Sequence[Hash]:
        """As `Held.leaves`."""
        return self.hashes

    def read(self, chunk: int) -> bytes | None:
        """As `Held.read`."""
        at = chunk * self.blob.chunk_bytes
        size = min(self.blob.chunk_bytes, self.blob.size - at)
        return self.files.read(Hash(self.blob.root), at, size, self.hashes[chunk])


class VersionShelf:
    """A `protocol.blobs.store.Shelf` of the files that the statements in `catalogue` name."""

    def __init__(self, catalogue: Catalogue, files: BlobStore) -> None:
        self._catalogue, self._files = catalogue, files
        self._hashes: OrderedDict[Hash, Sequence[Hash]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, name: Hash) -> Held | None:
        """As `Shelf.find`."""
        blob = self._catalogue.blob(name) if self._files.has(name) else None
        if blob is None:
            return None
        with self._lock:
            hashes = self._hashes.get(name)
        hashes = hashes or self._files.index(name, blob.chunk_bytes)
        if hashes is None:
            return None
        with self._lock:
            self._hashes[name] = hashes
            while len(self._hashes) > REMEMBERED:
                self._hashes.popitem(last=False)
        return StoredBlob(self._files, blob, hashes)

    def holdings(self) -> list[Holding]:
        """As `ListedShelf.holdings`."""
        sizes, held = self._files.sizes(), []
        for signed in self._catalogue.all():
            body, patch = signed.body, signed.body.patch
            for what, blob in [("weights", body.weights), *([("patch", patch.blob)] if patch is not None else [])]:
                if blob.root in sizes:
                    held.append(Holding(what, body.version, blob.root.hex(), blob.size))
        return held


class Shelves:
    """Several shelves as one."""

    def __init__(self, *shelves: ListedShelf) -> None:
        self._shelves = shelves

    def find(self, name: Hash) -> Held | None:
        """As `Shelf.find`."""
        return next((held for shelf in self._shelves if (held := shelf.find(name)) is not None), None)

    def holdings(self) -> list[Holding]:
        """As `ListedShelf.holdings`."""
        return [holding for shelf in self._shelves for holding in shelf.holdings()]
