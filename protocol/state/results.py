"""The results of rounds on disk: averaged codec bytes, written in place and published under their root."""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from pathlib import Path

from protocol.state.disk import Disk, map_file, size_of
from protocol.state.parts import Part, Parts
from protocol.wire.hashes import Hash, chunk_hash

_NAME = re.compile(r"(\d{8})-\d{2}-([0-9a-f]{64})")


class ResultFile:
    """A result on its way to the disk.  `view` is its bytes, writable until `commit` or `discard`."""

    def __init__(self, results: Results, round: int, fragment: int, path: Path, mapping: mmap.mmap) -> None:
        self._results, self._round, self._fragment = results, round, fragment
        self._path, self._mapping = path, mapping
        self.view = memoryview(mapping)
        self._done = False

    def commit(self, root: Hash) -> None:
        """The bytes are the result named `root`: fsync and rename.  Raises `StoreFailed`."""
        assert not self._done
        self._results.disk.publish(self._path, self._mapping, self._results.path(self._round, self._fragment, root))
        self._done = True

    def discard(self) -> None:
        """Forget it, unless it was committed."""
        if not self._done:
            self._done = True
            self._results.disk.remove(self._path)


class ResultDownload:
    """A certified result being fetched into place; survives a restart, since every chunk is checked against its hash."""

    def __init__(self, results: Results, target: Path, part: Part) -> None:
        self._results, self._target, self._part = results, target, part
        self.view = memoryview(part.mapping)

    def missing(self, hashes: Sequence[Hash], spans: Sequence[slice]) -> list[int]:
        """The chunks that are not here yet."""
        together = enumerate(zip(hashes, spans, strict=True))
        return [i for i, (right, span) in together if chunk_hash(self.view[span]) != right]

    def commit(self) -> None:
        """All chunks are here: fsync and rename.  Raises `StoreFailed`."""
        self._results.disk.publish(self._part.path, self._part.mapping, self._target)

    def end(self) -> None:
        """As `Parts.end`."""
        self._results.parts.end(self._part)


class Results:
    """There may be several of a round: a result is on disk before its record is voted for.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk, self._folder = disk, folder
        self.parts = Parts(disk, folder)
        self._serial = 0

    def begin(self, round: int, fragment: int, size: int) -> ResultFile:
        """A new file of `size` bytes for a result of `round`, which exchanges `fragment`.  Raises `StoreFull`."""
        self._serial += 1
        path = self._folder / f".part-{round:08}-{self._serial}"
        return ResultFile(self, round, fragment, path, self.disk.allocate(path, size))

    def download(self, round: int, fragment: int, root: Hash, size: int) -> ResultDownload:
        """Begin, or go on with, fetching a result of `size` bytes, until its `end`.  Raises `StoreFull`."""
        target = self.path(round, fragment, root)
        return ResultDownload(self, target, self.parts.begin(target.name, size))

    def all(self) -> list[tuple[int, Hash, int]]:
        """(round, root, bytes) of each result here, by round."""
        names = sorted(self._names(), key=lambda match: match[1])
        sizes = [(match, size_of(self._folder / match[0])) for match in names]
        return [(int(match[1]), Hash(bytes.fromhex(match[2])), size) for match, size in sizes if size]

    def open(self, round: int, fragment: int, root: Hash) -> memoryview | None:
        """The bytes of a result, read-only; None when it is not here.  Their hashes are the reader's to check."""
        return map_file(self.path(round, fragment, root))

    def find(self, root: Hash) -> tuple[int, memoryview] | None:
        """(its round, its bytes) of the result with this root, read-only; None when it is not here."""
        match = next((match for match in self._names() if match[2] == root.hex()), None)
        view = map_file(self._folder / match[0]) if match is not None else None
        return (int(match[1]), view) if match is not None and view is not None else None

    def path(self, round: int, fragment: int, root: Hash) -> Path:
        """Where a result lies."""
        return self._folder / f"{round:08}-{fragment:02}-{root.hex()}"

    def drop(self, round: int, fragment: int, root: Hash) -> None:
        """Remove a result whose bytes turned out to be altered."""
        self.disk.remove(self.path(round, fragment, root))

    def oldest(self) -> int:
        """The first round whose result is here, 0 when there is none."""
        return min((int(match[1]) for match in self._names()), default=0)

    def drop_before(self, round: int) -> None:
        """Remove the results of earlier rounds."""
        for match in self._names():
            if int(match[1]) < round:
                self.disk.remove(self._folder / match[0])

    def _names(self) -> list[re.Match[str]]:
        return [match for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]
