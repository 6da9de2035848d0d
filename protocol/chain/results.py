"""Results of rounds and checkpoints on disk: two folders of blobs that are identified by their rounds."""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from protocol.blobs.store import BlobFolder, Part
from protocol.chain.records import Chain
from protocol.disk import Disk
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.messages import Record


class CheckpointName(NamedTuple):
    """Key of a checkpoint: the number of rounds applied, and the tip after them, because branches have their own."""

    rounds: int
    tip: Hash


_CHECKPOINT_NAME = re.compile(r"(\d{8})-([0-9a-f]{64})")


class Checkpoints(BlobFolder[CheckpointName]):
    """Checkpoints on disk: the outer state after some rounds, with the hashes of its pieces.

    <rounds>-<tip>            a checkpoint
    <rounds>-<tip>.leaves     the hashes of its pieces, behind their own hash
    part-<rounds>-<tip>         a checkpoint that is being fetched
    """

    keeps_parts = False

    def __init__(self, disk: Disk, folder: Path) -> None:
        super().__init__(disk, folder)
        self._read: dict[CheckpointName, int] = {}
        """Length of our chain, in rounds, when a peer last asked for each checkpoint."""
        self._indices: dict[CheckpointName, tuple[Hash, list[Hash]]] = {}

    def name(self, key: CheckpointName) -> str:
        """Return the name as `BlobFolder.name` describes."""
        return f"{key.rounds:08}-{key.tip.hex()}"

    def key(self, name: str) -> CheckpointName | None:
        """Return the key as `BlobFolder.key` describes."""
        match = _CHECKPOINT_NAME.fullmatch(name)
        return CheckpointName(int(match[1]), Hash(bytes.fromhex(match[2]))) if match is not None else None

    def write(self, key: CheckpointName, leaves: Sequence[Hash], state: memoryview) -> None:
        """Write a checkpoint.  Raises `StoreFull`; older checkpoints are kept even then."""
        self.write_leaves(key, leaves)
        self.disk.write_file(self.path(key), state)
        with self._lock:
            self._whole[key] = len(state)

    def of(self, chain: Chain) -> list[int]:
        """Return the numbers of rounds of this chain after which there are checkpoints, ascending."""
        return [rounds for rounds, tip in sorted(self.sizes()) if rounds <= chain.length and chain.tip_at(rounds) == tip]

    def index(self, key: CheckpointName) -> tuple[Hash, list[Hash]] | None:
        """Return (root over the hashes of the pieces, these hashes) of a checkpoint; None if the hashes are missing.

        The hashes are read only once: there are tens of thousands, and computing their tree takes milliseconds.
        """
        known = self._indices.get(key)
        if known is None and (leaves := self.leaves(key)) is not None:
            known = self._indices[key] = tree_root(leaves), leaves
        return known

    def write_leaves(self, key: CheckpointName, leaves: Sequence[Hash]) -> None:
        """Keep the hashes as `BlobFolder.write_leaves` does."""
        self._indices.pop(key, None)
        super().write_leaves(key, leaves)

    def remove(self, key: CheckpointName) -> None:
        """Remove a checkpoint as `BlobFolder.remove` does."""
        self._read.pop(key, None)
        self._indices.pop(key, None)
        super().remove(key)

    def note_read(self, key: CheckpointName, rounds: int) -> None:
        """Note that a peer asks for a checkpoint while our chain has `rounds` rounds."""
        self._read[key] = rounds

    def was_read(self, key: CheckpointName, since: int) -> bool:
        """Return True if a peer asked for a checkpoint when our chain had at least `since` rounds."""
        return self._read.get(key, -1) >= since


# ------------------------------------------------------------------------------------------------------------------------


class ResultName(NamedTuple):
    """Key of a result: its round, the fragment that the round exchanges, and the root over the hashes of its chunks."""

    round: int
    fragment: int
    root: Hash

    @classmethod
    def of(cls, record: Record) -> ResultName:
        """Return the key of a record's result."""
        return cls(record.round, record.fragment, Hash(record.result_root))


_RESULT_NAME = re.compile(r"(\d{8})-(\d{2})-([0-9a-f]{64})")


class ResultFile:
    """A result that is being made.  view: its bytes, writable until `commit` or `discard`."""

    def __init__(self, results: Results, path: Path, mapping: mmap.mmap) -> None:
        self._results, self._path, self._mapping = results, path, mapping
        self.view = memoryview(mapping)
        self._done = False

    def commit(self, name: ResultName) -> None:
        """Publish the bytes as this result: fsync and rename.  Raises `StoreFailed`."""
        assert not self._done
        self._results.publish(Part(name, self._path, self._mapping))
        self._done = True

    def discard(self) -> None:
        """Remove the file unless it was committed."""
        if not self._done:
            self._done = True
            self._results.disk.remove(self._path)


class Results(BlobFolder[ResultName]):
    """Results on disk, possibly several for a round: each is on disk before we vote for its record.

    <round>-<fragment>-<root>          the averaged codec bytes of all chunks, whose hashes are in the record's index
    part-<round>-<fragment>-<root>     a result that is being fetched
    .part-<number>                     a result that is being made; removed at the next start
    """

    keeps_parts = keeps_leaves = False

    def __init__(self, disk: Disk, folder: Path) -> None:
        super().__init__(disk, folder)
        self._serial = 0

    def name(self, key: ResultName) -> str:
        """Return the name as `BlobFolder.name` describes."""
        return f"{key.round:08}-{key.fragment:02}-{key.root.hex()}"

    def key(self, name: str) -> ResultName | None:
        """Return the key as `BlobFolder.key` describes."""
        match = _RESULT_NAME.fullmatch(name)
        return ResultName(int(match[1]), int(match[2]), Hash(bytes.fromhex(match[3]))) if match is not None else None

    def make(self, size: int) -> ResultFile:
        """Create a file of `size` bytes for a result.  Raises `StoreFull`."""
        self._serial += 1
        path = self.folder / f".part-{self._serial}"
        return ResultFile(self, path, self.disk.allocate(path, size))

    def find(self, root: Hash) -> ResultName | None:
        """Return the key of the result with this root; None if it is not here."""
        return next((name for name in self.sizes() if name.root == root), None)

    def oldest(self) -> int:
        """Return the first round whose result is here; 0 if there is none."""
        return min((name.round for name in self.sizes()), default=0)

    def drop_before(self, round: int) -> None:
        """Remove the results of earlier rounds."""
        for name in self.sizes():
            if name.round < round:
                self.drop(name)
