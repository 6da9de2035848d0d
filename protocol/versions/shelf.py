"""Versions of the weights on disk, as blobs that others may fetch."""

from __future__ import annotations

from protocol.blobs.blob import EvenSpans
from protocol.blobs.store import BlobStore, Holding, StoreShelf
from protocol.versions.catalogue import Catalogue
from protocol.wire.hashes import Hash


class VersionShelf(StoreShelf):
    """Shelf of the files that the statements in `catalogue` name."""

    def __init__(self, catalogue: Catalogue, store: BlobStore) -> None:
        super().__init__(store, "weights", 0)
        self._catalogue = catalogue

    def _cut(self, name: Hash, size: int) -> EvenSpans | None:
        blob = self._catalogue.blob(name)
        return EvenSpans(blob.size, blob.chunk_bytes) if blob is not None else None

    def holdings(self) -> list[Holding]:
        """As `ListedShelf.holdings`."""
        sizes = self._store.sizes()
        return [
            Holding("weights" if blob is signed.body.weights else "patch", signed.body.version, blob.root.hex(), blob.size)
            for signed in self._catalogue.all()
            for blob in signed.body.blobs
            if blob.root in sizes
        ]
