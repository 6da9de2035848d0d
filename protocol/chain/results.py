"""The results of rounds on disk: averaged codec bytes, written in place and published under their root."""

from __future__ import annotations

import mmap
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.chain.records import Chain
from protocol.disk import Disk, map_file, read_guarded, size_of, write_guarded
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, hash_bytes

# ------------------------------------------------------------------------------------------------------------------------
# Files that are being fetched, each under a name of its own, so that a restarted peer continues where it stopped.


@dataclass(frozen=True)
class ResultPart:
    """A file of its full size, some of whose bytes are right."""

    path: Path
    mapping: mmap.mmap


class Parts:
    """The part files of one folder.  `begin` removes the others that nobody works on.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._in_use: set[Path] = set()
        self._lock = threading.Lock()
        """Guards `_in_use`: without it, a thread could remove a file that another thread is just beginning."""

    def begin(self, name: str, size: int) -> ResultPart:
        """Begin or continue a file of `size` bytes, until its `end`.  Raises `StoreFull`."""
        path = self._folder / f"part-{name}"
        with self._lock:
            assert path not in self._in_use, "one at a time works on a file"
            for other in self._folder.glob("part-*"):
                if other != path and other not in self._in_use:
                    self._disk.remove(other)
            if size_of(path) == size:
                part = ResultPart(path, self._disk.resume(path, size))
            else:
                part = ResultPart(path, self._disk.allocate(path, size))
            self._in_use.add(path)
        return part

    def end(self, part: ResultPart) -> None:
        """Stop work on a file, complete or not; a later `begin` finds its bytes again."""
        with self._lock:
            self._in_use.discard(part.path)


# ------------------------------------------------------------------------------------------------------------------------
# Checkpoints: the outer state after some rounds on disk, with the hashes of its pieces.


Mark = tuple[int, Hash]
"""Number of rounds applied, and the tip after them."""
_CHECKPOINT_NAME = re.compile(r"(\d{8})-([0-9a-f]{64})")


class CheckpointDownload:
    """A checkpoint being fetched into place; survives a restart, since every piece is checked against its hash."""

    def __init__(self, checkpoints: Checkpoints, mark: Mark, leaves: Sequence[Hash], part: ResultPart, piece: int) -> None:
        self._checkpoints, self._mark, self._leaves = checkpoints, mark, list(leaves)
        self._part, self._piece = part, piece
        self.view = memoryview(part.mapping)

    def end(self) -> None:
        """See `Parts.end`."""
        self._checkpoints.parts.end(self._part)

    def missing(self) -> list[int]:
        """Return the pieces that are not here yet."""
        step = self._piece
        return [i for i, leaf in enumerate(self._leaves) if chunk_hash(self.view[i * step : (i + 1) * step]) != leaf]

    def commit(self) -> None:
        """Publish the checkpoint once all pieces are here: fsync and rename.  Raises `StoreFailed`."""
        self._checkpoints.write_leaves(*self._mark, self._leaves)
        self._checkpoints.disk.publish(self._part.path, self._part.mapping, self._checkpoints.path(*self._mark))


class Checkpoints:
    """Checkpoints on disk, named by rounds applied and tip, since branches may have some as well.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk, self._folder = disk, folder
        self.parts = Parts(disk, folder)
        self._read: dict[Mark, int] = {}
        """Length of our chain, in rounds, when others last asked for a checkpoint."""

    def write(self, rounds: int, tip: Hash, leaves: Sequence[Hash], state: memoryview) -> None:
        """Write a checkpoint.  Raises `StoreFull`; older checkpoints stay then."""
        self.write_leaves(rounds, tip, leaves)
        self.disk.write_file(self.path(rounds, tip), state)

    def write_leaves(self, rounds: int, tip: Hash, leaves: Sequence[Hash]) -> None:
        """Write the hashes of a checkpoint's pieces.  Raises `StoreFull`."""
        write_guarded(self.disk, self._leaves_path(rounds, tip), b"".join(leaves))

    def marks(self) -> list[Mark]:
        """Return the rounds and tip of each checkpoint here, ascending."""
        named = [_CHECKPOINT_NAME.fullmatch(path.name) for path in self._folder.iterdir()]
        return sorted((int(match[1]), Hash(bytes.fromhex(match[2]))) for match in named if match)

    def of(self, chain: Chain) -> list[int]:
        """Return the numbers of rounds of this chain after which there are checkpoints, ascending."""
        return [rounds for rounds, tip in self.marks() if rounds <= chain.length and chain.tip_at(rounds) == tip]

    def open(self, rounds: int, tip: Hash) -> tuple[list[Hash], memoryview] | None:
        """Return (hashes of the pieces, bytes) of a checkpoint; None if it is not here."""
        raw = read_guarded(self.disk, self._leaves_path(rounds, tip))
        view = self.view(rounds, tip)
        if raw is None or view is None or not raw or len(raw) % HASH_BYTES:
            return None
        return [Hash(raw[at : at + HASH_BYTES]) for at in range(0, len(raw), HASH_BYTES)], view

    def view(self, rounds: int, tip: Hash) -> memoryview | None:
        """Return the bytes of a checkpoint; None if it is not here."""
        return map_file(self.path(rounds, tip))

    def note_read(self, mark: Mark, rounds: int) -> None:
        """Note that a peer asks for a checkpoint while our chain has `rounds` rounds."""
        self._read[mark] = rounds

    def was_read(self, mark: Mark, since: int) -> bool:
        """Return True if a peer has asked for a checkpoint since our chain had `since` rounds."""
        return self._read.get(mark, -1) >= since

    def stamp(self, rounds: int, tip: Hash) -> tuple[int, int]:
        """Return a stamp that changes if the hashes of a checkpoint's pieces are written anew; zeros if there are none."""
        try:
            found = self._leaves_path(rounds, tip).stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def download(self, rounds: int, tip: Hash, leaves: Sequence[Hash], size: int, piece: int) -> CheckpointDownload:
        """Begin or continue fetching a checkpoint of `size` bytes in pieces of `piece` bytes, until its `end`.

        Raises `StoreFull`.
        """
        part = self.parts.begin(hash_bytes("download", b"".join(leaves))[:8].hex(), size)
        return CheckpointDownload(self, (rounds, tip), leaves, part, piece)

    def remove(self, rounds: int, tip: Hash) -> None:
        """Remove a checkpoint."""
        self._read.pop((rounds, tip), None)
        self.disk.remove(self.path(rounds, tip))
        self.disk.remove(self._leaves_path(rounds, tip))

    def path(self, rounds: int, tip: Hash) -> Path:
        """Return the path of a checkpoint."""
        return self._folder / f"{rounds:08}-{tip.hex()}"

    def _leaves_path(self, rounds: int, tip: Hash) -> Path:
        return self._folder / f"{rounds:08}-{tip.hex()}.leaves"


# ------------------------------------------------------------------------------------------------------------------------


_NAME = re.compile(r"(\d{8})-\d{2}-([0-9a-f]{64})")


class ResultFile:
    """A result that is being written.  `view` is its bytes, writable until `commit` or `discard`."""

    def __init__(self, results: Results, round: int, fragment: int, path: Path, mapping: mmap.mmap) -> None:
        self._results, self._round, self._fragment = results, round, fragment
        self._path, self._mapping = path, mapping
        self.view = memoryview(mapping)
        self._done = False

    def commit(self, root: Hash) -> None:
        """Publish the bytes as the result named `root`: fsync and rename.  Raises `StoreFailed`."""
        assert not self._done
        self._results.disk.publish(self._path, self._mapping, self._results.path(self._round, self._fragment, root))
        self._done = True

    def discard(self) -> None:
        """Remove the file unless it was committed."""
        if not self._done:
            self._done = True
            self._results.disk.remove(self._path)


class ResultDownload:
    """A certified result being fetched into place; survives a restart, since every chunk is checked against its hash."""

    def __init__(self, results: Results, target: Path, part: ResultPart) -> None:
        self._results, self._target, self._part = results, target, part
        self.view = memoryview(part.mapping)

    def missing(self, hashes: Sequence[Hash], spans: Sequence[slice]) -> list[int]:
        """Return the chunks that are not here yet."""
        together = enumerate(zip(hashes, spans, strict=True))
        return [i for i, (right, span) in together if chunk_hash(self.view[span]) != right]

    def commit(self) -> None:
        """Publish the result once all chunks are here: fsync and rename.  Raises `StoreFailed`."""
        self._results.disk.publish(self._part.path, self._part.mapping, self._target)

    def end(self) -> None:
        """See `Parts.end`."""
        self._results.parts.end(self._part)


class Results:
    """Results on disk, several of a round if need be: each is on disk before its record is voted for.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk, self._folder = disk, folder
        self.parts = Parts(disk, folder)
        self._serial = 0

    def begin(self, round: int, fragment: int, size: int) -> ResultFile:
        """Create a file of `size` bytes for a result of `round`, which exchanges `fragment`.  Raises `StoreFull`."""
        self._serial += 1
        path = self._folder / f".part-{round:08}-{self._serial}"
        return ResultFile(self, round, fragment, path, self.disk.allocate(path, size))

    def download(self, round: int, fragment: int, root: Hash, size: int) -> ResultDownload:
        """Begin or continue fetching a result of `size` bytes, until its `end`.  Raises `StoreFull`."""
        target = self.path(round, fragment, root)
        return ResultDownload(self, target, self.parts.begin(target.name, size))

    def all(self) -> list[tuple[int, Hash, int]]:
        """Return (round, root, bytes) of each result here, by round."""
        names = sorted(self._names(), key=lambda match: match[1])
        sizes = [(match, size_of(self._folder / match[0])) for match in names]
        return [(int(match[1]), Hash(bytes.fromhex(match[2])), size) for match, size in sizes if size]

    def open(self, round: int, fragment: int, root: Hash) -> memoryview | None:
        """Return the bytes of a result, read-only; None if it is not here.  The reader checks their hashes."""
        return map_file(self.path(round, fragment, root))

    def find(self, root: Hash) -> tuple[int, memoryview] | None:
        """Return (its round, its bytes) of the result with this root, read-only; None if it is not here."""
        match = next((match for match in self._names() if match[2] == root.hex()), None)
        view = map_file(self._folder / match[0]) if match is not None else None
        return (int(match[1]), view) if match is not None and view is not None else None

    def path(self, round: int, fragment: int, root: Hash) -> Path:
        """Return the path of a result."""
        return self._folder / f"{round:08}-{fragment:02}-{root.hex()}"

    def drop(self, round: int, fragment: int, root: Hash) -> None:
        """Remove a result whose bytes turned out to be altered."""
        self.disk.remove(self.path(round, fragment, root))

    def oldest(self) -> int:
        """Return the first round whose result is here; 0 if there is none."""
        return min((int(match[1]) for match in self._names()), default=0)

    def drop_before(self, round: int) -> None:
        """Remove the results of earlier rounds."""
        for match in self._names():
            if int(match[1]) < round:
                self.disk.remove(self._folder / match[0])

    def _names(self) -> list[re.Match[str]]:
        return [match for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
