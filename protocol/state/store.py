"""What a peer keeps about one run: records, results, checkpoints, its last promise.

    records/00000012           commit 12: record, index, certificate (canonical msgpack, behind its hash)
    results/00000012-00-<root> codec bytes of round 12's result, for fragment 0; on disk before it is voted for, so there may
                               be several of a round
    checkpoints/00000012       outer state after 12 rounds, and 00000012.leaves with the hashes of its pieces
    promise                    the last promise and vote
    evidence/<hash>            proofs that peers lied

Write, fsync, rename; then act.  A file that is torn or altered counts as absent and is moved out of the way.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from pathlib import Path

from protocol.state.disk import Disk, StoreFailed, StoreFull
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, hash_bytes
from protocol.wire.messages import Commit, decode_body

__all__ = ["CheckpointDownload", "Disk", "ResultFile", "Store", "StoreFailed", "StoreFull"]

KEEP_CHECKPOINTS = 2
MAX_RECORD_BYTES = 4 << 20
_EVIDENCE = re.compile(r"[0-9a-f]{64}")
_RESULT = re.compile(r"(\d{8})-\d{2}-[0-9a-f]{16}")


class ResultFile:
    """A result on its way to the disk.  `view` is its bytes, writable until `commit` or `discard`."""

    def __init__(self, store: Store, round: int, fragment: int, path: Path, mapping: mmap.mmap) -> None:
        self._store, self._round, self._fragment, self._path, self._mapping = store, round, fragment, path, mapping
        self.view = memoryview(mapping)
        self._done = False

    def commit(self, root: Hash) -> None:
        """The bytes are the result named `root`: fsync and rename."""
        assert not self._done
        self._store.disk.publish(self._path, self._mapping, self._store.result_path(self._round, self._fragment, root))
        self._done = True

    def discard(self) -> None:
        """Forget it, unless it was committed."""
        if not self._done:
            self._done = True
            self._store.disk.remove(self._path)


class CheckpointDownload:
    """A checkpoint being fetched into place; survives a restart, since every piece is checked against its hash."""

    def __init__(self, store: Store, rounds: int, leaves: Sequence[Hash], path: Path, mapping: mmap.mmap,
                 piece: int) -> None:
        self._store, self._rounds, self._leaves = store, rounds, list(leaves)
        self._path, self._mapping, self._piece = path, mapping, piece
        self.view = memoryview(mapping)

    def missing(self) -> list[int]:
        """The pieces that are not here yet."""
        step = self._piece
        return [i for i, leaf in enumerate(self._leaves) if chunk_hash(self.view[i * step : (i + 1) * step]) != leaf]

    def commit(self) -> None:
        """All pieces are here: fsync and rename."""
        self._store.write_leaves(self._rounds, self._leaves)
        self._store.disk.publish(self._path, self._mapping, self._store.checkpoint_path(self._rounds))


class Store:
    """Rooted at a folder of its own.  Blocking; call it in worker threads.

    What an earlier life left is made lasting before anything is built on it: that life may have died before it was.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root, self.disk = root, disk or Disk()
        self._records, self._results, self._checkpoints = root / "records", root / "results", root / "checkpoints"
        self._evidence = root / "evidence"
        for folder in (self._records, self._results, self._checkpoints, self._evidence):
            folder.mkdir(parents=True, exist_ok=True)
        for left_over in [*self._results.glob(".part-*"), *root.glob("**/.*.new")]:
            self.disk.remove(left_over)
        for folder in (root, self._records, self._results, self._checkpoints, self._evidence):
            self.disk.settle(folder)
        self._serial = 0

    # -- records ------------------------------------------------------------------------------------------------------

    def length(self) -> int:
        """Rounds from 0 on without a gap."""
        rounds = {int(path.name) for path in self._records.iterdir() if path.name.isdigit()}
        length = 0
        while length in rounds:
            length += 1
        return length

    def append(self, commit: Commit) -> None:
        self.disk.write_file(self._record_path(commit.record.round), _guarded(commit.encode()))

    def commit_at(self, round: int) -> Commit | None:
        raw = self._read_guarded(self._record_path(round))
        if raw is None:
            return None
        try:
            return decode_body(Commit, raw, max_bytes=MAX_RECORD_BYTES)
        except Malformed:
            self._set_aside(self._record_path(round))
            return None

    def truncate(self, length: int) -> None:
        """Drop the records of rounds `length` and above, the newest first, and what stands on them."""
        for path in sorted(self._records.iterdir(), reverse=True):
            if path.name.isdigit() and int(path.name) >= length:
                self.disk.remove(path)
        for rounds in self.checkpoints():
            if rounds > length:
                self._remove_checkpoint(rounds)

    # -- results ------------------------------------------------------------------------------------------------------

    def result_writer(self, round: int, fragment: int, size: int) -> ResultFile:
        """A new file of `size` bytes for a result of `round`, which exchanges `fragment`.  Raises `StoreFull`."""
        self._serial += 1
        path = self._results / f".part-{round:08}-{self._serial}"
        return ResultFile(self, round, fragment, path, self.disk.allocate(path, size))

    def open_result(self, round: int, fragment: int, root: Hash) -> memoryview | None:
        """The bytes of a result, read-only; None when it is not here.  Their hashes are the reader's to check."""
        return _map(self.result_path(round, fragment, root))

    def result_path(self, round: int, fragment: int, root: Hash) -> Path:
        return self._results / f"{round:08}-{fragment:02}-{root[:8].hex()}"

    def drop_result(self, round: int, fragment: int, root: Hash) -> None:
        """A result whose bytes turned out to be altered."""
        self.disk.remove(self.result_path(round, fragment, root))

    def oldest_result(self) -> int:
        """The first round whose result is here, 0 when there is none."""
        return min((int(match[1]) for match in self._result_names()), default=0)

    def _result_names(self) -> list[re.Match[str]]:
        return [match for path in self._results.iterdir() if (match := _RESULT.fullmatch(path.name))]

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def write_checkpoint(self, rounds: int, leaves: Sequence[Hash], state: memoryview) -> None:
        """Raises `StoreFull`; an older checkpoint stays then."""
        self.write_leaves(rounds, leaves)
        self.disk.write_file(self.checkpoint_path(rounds), state)

    def write_leaves(self, rounds: int, leaves: Sequence[Hash]) -> None:
        self.disk.write_file(self._leaves_path(rounds), _guarded(b"".join(leaves)))

    def checkpoints(self) -> list[int]:
        """After how many rounds there are checkpoints, ascending."""
        return sorted(int(path.name) for path in self._checkpoints.iterdir() if path.name.isdigit())

    def open_checkpoint(self, rounds: int) -> tuple[list[Hash], memoryview] | None:
        """(hashes of the pieces, bytes) of a checkpoint; None when it is not here."""
        raw = self._read_guarded(self._leaves_path(rounds))
        view = _map(self.checkpoint_path(rounds))
        if raw is None or view is None or not raw or len(raw) % HASH_BYTES:
            return None
        return [Hash(raw[at : at + HASH_BYTES]) for at in range(0, len(raw), HASH_BYTES)], view

    def checkpoint_download(self, rounds: int, leaves: Sequence[Hash], size: int, piece: int) -> CheckpointDownload:
        """Begin, or go on with, fetching a checkpoint.  Raises `StoreFull`."""
        name = hash_bytes("download", b"".join(leaves))[:8].hex()
        path = self._checkpoints / f"part-{name}"
        for other in self._checkpoints.glob("part-*"):
            if other != path:
                self.disk.remove(other)
        if path.exists() and path.stat().st_size == size:
            with open(path, "r+b") as file:
                mapping = mmap.mmap(file.fileno(), size)
        else:
            mapping = self.disk.allocate(path, size)
        return CheckpointDownload(self, rounds, leaves, path, mapping, piece)

    def checkpoint_path(self, rounds: int) -> Path:
        return self._checkpoints / f"{rounds:08}"

    def prune(self) -> None:
        """Keep the newest checkpoints, and every result since the oldest of those kept."""
        kept = self.checkpoints()[-KEEP_CHECKPOINTS:]
        for rounds in self.checkpoints():
            if rounds not in kept:
                self._remove_checkpoint(rounds)
        if len(kept) == KEEP_CHECKPOINTS:
            for match in self._result_names():
                if int(match[1]) < kept[0]:
                    self.disk.remove(self._results / match[0])

    def _remove_checkpoint(self, rounds: int) -> None:
        self.disk.remove(self.checkpoint_path(rounds))
        self.disk.remove(self._leaves_path(rounds))

    # -- promise ------------------------------------------------------------------------------------------------------

    def save_promise(self, raw: bytes) -> None:
        self.disk.write_file(self.root / "promise", _guarded(raw))

    def load_promise(self) -> bytes | None:
        return self._read_guarded(self.root / "promise")

    # -- evidence -----------------------------------------------------------------------------------------------------

    def save_evidence(self, name: Hash, raw: bytes) -> None:
        self.disk.write_file(self._evidence / name.hex(), _guarded(raw))

    def load_evidence(self, name: Hash) -> bytes | None:
        return self._read_guarded(self._evidence / name.hex())

    def evidence_names(self) -> list[Hash]:
        names = sorted(path.name for path in self._evidence.iterdir())
        return [Hash(bytes.fromhex(name)) for name in names if _EVIDENCE.fullmatch(name)]

    def evidence_bytes(self) -> int:
        """What the proofs take up."""
        return sum(path.stat().st_size for path in self._evidence.iterdir())

    # -- files --------------------------------------------------------------------------------------------------------

    def _record_path(self, round: int) -> Path:
        return self._records / f"{round:08}"

    def _leaves_path(self, rounds: int) -> Path:
        return self._checkpoints / f"{rounds:08}.leaves"

    def _read_guarded(self, path: Path) -> bytes | None:
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        if len(raw) < HASH_BYTES or chunk_hash(raw[HASH_BYTES:]) != raw[:HASH_BYTES]:
            self._set_aside(path)
            return None
        return raw[HASH_BYTES:]

    def _set_aside(self, path: Path) -> None:
        """Out of the way, but not lost: somebody may want to know what happened to it."""
        self.disk.rename(path, path.with_name(f"{path.name}.corrupt"))


def _guarded(data: bytes) -> bytes:
    """`data` behind its hash, so that a torn or altered file shows."""
    return chunk_hash(data) + data


def _map(path: Path) -> memoryview | None:
    """A file's bytes, read-only; None when it is not there or empty."""
    try:
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
