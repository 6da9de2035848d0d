"""Disks that fail as real ones do: torn writes, lost fsyncs, failing fsyncs, no room.

A `Platter` is what a seat's disk holds, over all its lives.  What was written and not synced is there as long as the power
is: a killed process loses nothing that it wrote.  When the power is cut, each file that was not synced is kept, cut short or
filled with rubbish, and of the renames and removals of each folder that were not synced only the first few happened.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import BinaryIO

from protocol.disk import Disk
from tests.simulation.processes import Killed, Process

DISK_FAULTS = ("dies at a disk operation", "torn write", "failing fsync")


class Platter:
    """One seat's disk.  `full`: nothing more can be written."""

    def __init__(self, random: Random) -> None:
        self.full = False
        self._random = random
        self._unsynced: dict[Path, None] = {}
        self._undo: dict[Path, list[Callable[[], None]]] = {}

    def wrote(self, path: Path) -> None:
        self._unsynced[path] = None

    def synced(self, path: Path) -> None:
        self._unsynced.pop(path, None)

    def folder_synced(self, folder: Path) -> None:
        self._undo.pop(folder, None)

    def renames(self, source: Path, target: Path) -> None:
        """Call before it happens."""
        before = target.read_bytes() if target.exists() else None
        self._unsynced.pop(target, None)
        if source in self._unsynced:
            del self._unsynced[source]
            self._unsynced[target] = None

        def undo() -> None:
            if target.exists():
                target.rename(source)
            if before is not None:
                target.write_bytes(before)

        self._undo.setdefault(target.parent, []).append(undo)

    def removes(self, path: Path) -> None:
        """Call before it happens."""
        self._unsynced.pop(path, None)
        if path.exists():
            content = path.read_bytes()
            self._undo.setdefault(path.parent, []).append(lambda: _write_if_absent(path, content))

    def cut_power(self) -> None:
        """What was not synced may be lost or torn."""
        for undo in self._undo.values():
            happened = self._random.randint(0, len(undo))
            for action in reversed(undo[happened:]):
                action()
        for path in self._unsynced:
            if path.exists():
                path.write_bytes(self._tear(path.read_bytes()))
        self._undo.clear()
        self._unsynced.clear()

    def replace(self) -> None:
        """Be a new disk: nothing of before is left to lose."""
        self._undo.clear()
        self._unsynced.clear()

    def _tear(self, content: bytes) -> bytes:
        kept = self._random.randint(0, len(content))
        kind = self._random.randrange(4)
        if kind == 0:
            return content
        if kind == 1:
            return content[:kept]
        rest = len(content) - kept
        return content[:kept] + (bytes(rest) if kind == 2 else self._random.randbytes(rest))


class FaultyDisk(Disk):
    """The disk as one life of a peer sees it.  `fault` is asked before each operation which of `DISK_FAULTS` happens."""

    def __init__(self, platter: Platter, process: Process, fault: Callable[[str], str | None]) -> None:
        super().__init__(durable=False)
        self._platter, self._process, self._fault = platter, process, fault

    def _begin(self, operation: str) -> str | None:
        if not self._process.alive:
            raise Killed
        if operation in ("write", "reserve") and self._platter.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fault = self._fault(operation)
        if fault == "dies at a disk operation":
            self._process.die()
        return fault

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        fault = self._begin("write")
        self._platter.wrote(Path(file.name))
        if fault == "torn write":
            super().write(file, data[: len(data) // 2])
            self._process.die()
        super().write(file, data)

    def sync(self, file: BinaryIO) -> None:
        if self._begin("sync") == "failing fsync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._platter.synced(Path(file.name))

    def reserve(self, file: BinaryIO, size: int) -> None:
        self._begin("reserve")
        self._platter.wrote(Path(file.name))
        file.truncate(size)

    def flush(self, path: Path, mapping: mmap.mmap) -> None:
        if self._begin("sync") == "failing fsync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._platter.synced(path)

    def move(self, source: Path, target: Path) -> None:
        self._begin("rename")
        self._platter.renames(source, target)
        super().move(source, target)

    def remove(self, path: Path) -> None:
        self._begin("remove")
        self._platter.removes(path)
        super().remove(path)

    def sync_folder(self, folder: Path) -> None:
        if self._begin("sync") == "failing fsync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._platter.folder_synced(folder)


def _write_if_absent(path: Path, content: bytes) -> None:
    if not path.exists():
        path.write_bytes(content)
