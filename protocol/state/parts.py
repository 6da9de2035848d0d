"""Files on their way to the disk, each under a name of its own, so that a later life goes on where one stopped."""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass
from pathlib import Path

from protocol.state.disk import Disk, size_of


@dataclass(frozen=True)
class Part:
    """A file of its full size, some of whose bytes are right."""

    path: Path
    mapping: mmap.mmap


class Parts:
    """Those in one folder.  Of those that nobody works on, one stays: the next `begin` removes the others.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._in_use: set[Path] = set()
        self._lock = threading.Lock()
        """Several threads may begin at a time, and one must not take the file of another for one that nobody works on."""

    def begin(self, name: str, size: int) -> Part:
        """Begin, or go on with, a file of `size` bytes, until its `end`.  Raises `StoreFull`."""
        path = self._folder / f"part-{name}"
        with self._lock:
            assert path not in self._in_use, "one at a time works on a file"
            for other in self._folder.glob("part-*"):
                if other != path and other not in self._in_use:
                    self._disk.remove(other)
            if size_of(path) == size:
                part = Part(path, self._disk.resume(path, size))
            else:
                part = Part(path, self._disk.allocate(path, size))
            self._in_use.add(path)
        return part

    def end(self, part: Part) -> None:
        """Nobody works on it any more, whether it is complete or not; what is here is found again."""
        with self._lock:
            self._in_use.discard(part.path)
