"""Corpora of the run on this peer's disk: opened once their manifests are here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.blobs.store import BlobStore, Held, Holding
from protocol.corpora.cache import BlockCache, BlockStore
from protocol.corpora.manifest import CorpusManifest, read_manifest
from protocol.corpora.rows import MixedSplit, corpora_flaw, source_in
from protocol.corpora.shards import CorpusShelf, shards_of
from protocol.disk import Disk
from protocol.run.manifest import RunManifest
from protocol.run.sections import CORPORA
from protocol.run.settings import CorpusSettings
from protocol.sync.supplies import paths_of
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash


class CorpusFlawed(Exception):
    """Error for corpora that do not fit the run; the text is one sentence with the remedy."""


class RunCorpora:
    """The run's corpora on disk: a `protocol.blobs.store.ListedShelf`, empty until `open`.

    disk: where the run's other files lie as well, under the same limit.  store, splits: blocks, and training splits of the
    run's sources; None and empty until `open`.
    """

    def __init__(self, manifest: RunManifest, files: BlobStore, disk: Disk, settings: CorpusSettings) -> None:
        self.manifest, self._files, self._disk, self.settings = manifest, files, disk, settings
        self.store: BlockStore | None = None
        self.splits: list[MixedSplit] = []

    def open(self) -> BlockStore:
        """Read the manifests of the corpora, which must be here, and the blocks on disk.  Blocking.

        Raises `CorpusFlawed` and `StoreFailed`.
        """
        assert self.settings.blocks is not None, "a peer of a run with corpora has a folder for their blocks"
        corpora = [self._read(path) for name, path in paths_of(self.manifest, self._files).items() if self._is_ours(name)]
        if flaw := corpora_flaw(self.manifest, corpora):
            raise CorpusFlawed(f"the run's data cannot be read: {flaw}; ask the organiser for a new run")
        shards = shards_of(corpora)
        cache = BlockCache(self._disk, self.settings.blocks, shards, self.settings.cache_bytes)
        cache.load()
        self.splits = splits_of(self.manifest, corpora)
        self.store = BlockStore(cache, [CorpusShelf(folder, shards) for folder in self.settings.folders], shards)
        return self.store

    @staticmethod
    def _is_ours(name: str) -> bool:
        return name.startswith(CORPORA)

    def _read(self, path: Path) -> CorpusManifest:
        try:
            return read_manifest(path.read_bytes())
        except Malformed as error:
            raise CorpusFlawed(f"the run's data cannot be read: {error}; ask the organiser for a new run") from error

    def find(self, name: Hash) -> Held | None:
        """Return the blocks of a shard as `Shelf.find` describes."""
        return self.store.find(name) if self.store is not None else None

    def holdings(self) -> list[Holding]:
        """Return the whole shards as `ListedShelf.holdings` describes."""
        return self.store.holdings() if self.store is not None else []


def splits_of(run: RunManifest, corpora: Sequence[CorpusManifest]) -> list[MixedSplit]:
    """Return the training splits of the run's sources, in their order.  The corpora must fit the run."""
    found = [(corpora[source.corpus], source_in(corpora, source)) for source in run.data.sources]
    return [MixedSplit(corpus, source.train) for corpus, source in found if source is not None]
