"""The results and checkpoints of a run on disk, as blobs.

A result is named by the root that its record names, a checkpoint by the digest of the state.  What is read is checked once
more against its hash, where it is known: a disk may alter what it holds, and that is not served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.content.blob import ChunkSet
from protocol.content.shelf import Held
from protocol.state.checkpoints import Mark
from protocol.state.replica import Replica
from protocol.wire.hashes import Hash, chunk_hash, tree_root


@dataclass(frozen=True)
class WholeBlob:
    """A complete blob on disk.  hashes: of its chunks; None where they are not known.  is_urgent: as `Held.is_urgent`."""

    bytes_: memoryview
    spans: Sequence[slice]
    hashes: Sequence[Hash] | None
    is_urgent: bool

    @property
    def count(self) -> int:
        """Chunks of the blob."""
        return len(self.spans)

    @property
    def here(self) -> ChunkSet:
        """All of them."""
        return (1 << self.count) - 1

    def leaves(self) -> Sequence[Hash] | None:
        """As `Held.leaves`."""
        return self.hashes

    def read(self, chunk: int) -> bytes | None:
        """As `Held.read`."""
        data = bytes(self.bytes_[self.spans[chunk]])
        return data if self.hashes is None or chunk_hash(data) == self.hashes[chunk] else None


class ReplicaShelf:
    """A `protocol.content.shelf.Shelf` over a replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._digests: dict[Mark, Hash] = {}

    def find(self, name: Hash) -> Held | None:
        """As `Shelf.find`."""
        return self._result(name) or self._checkpoint(name)

    def _result(self, root: Hash) -> Held | None:
        replica = self._replica
        found = replica.store.results.find(root)
        if found is None:
            return None
        round, view = found
        spans = [span.encoded for span in replica.layout]
        if len(view) != spans[-1].stop:
            return None
        commit = replica.history.commit_at(round) if round < replica.history.length else None
        if commit is None or commit.record.result_root != root:
            return WholeBlob(view, spans, None, is_urgent=True)
        is_newest = round == replica.history.length - 1
        return WholeBlob(view, spans, [Hash(entry.hash) for entry in commit.index], is_urgent=is_newest)

    def _checkpoint(self, digest: Hash) -> Held | None:
        checkpoints = self._replica.store.checkpoints
        marks = checkpoints.marks()
        self._digests = {mark: known for mark, known in self._digests.items() if mark in marks}
        for mark in reversed(marks):
            if self._digests.get(mark, digest) != digest:
                continue
            opened = checkpoints.open(*mark)
            if opened is None:
                continue
            leaves, view = opened
            self._digests[mark] = tree_root(leaves)
            step = self._replica.manifest.checkpoint_chunk_bytes
            if self._digests[mark] == digest and len(leaves) == -(-len(view) // step):
                spans = [slice(at, min(at + step, len(view))) for at in range(0, len(view), step)]
                return WholeBlob(view, spans, leaves, is_urgent=False)
        return None
