"""The few things a store does to a file system, in one place, so that tests can make each of them fail.

`durable=False` leaves out the fsyncs: for simulations, where the disk is not what is tested.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path


class StoreFull(Exception):
    """The disk is full; the text is a sentence with the remedy.  Nothing half-written remains."""


class Disk:
    """Writes that are whole or not there."""

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable

    def step(self, what: str) -> None:
        """Called before each operation that changes the disk; a test's disk raises here."""

    def write_file(self, path: Path, data: bytes | memoryview) -> None:
        """Replace `path` with `data` atomically: temporary file, fsync, rename, fsync of the folder."""
        temporary = path.with_name(f".{path.name}.new")
        try:
            self.step(f"write {path.name}")
            with open(temporary, "wb") as file:
                file.write(data)
                self._sync(file.fileno())
            self.rename(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _full(error, path) from error

    def allocate(self, path: Path, size: int) -> mmap.mmap:
        """A writable mapping of a new file of `size` bytes whose blocks exist: a full disk shows now, not as SIGBUS."""
        try:
            self.step(f"allocate {path.name}")
            with open(path, "w+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise _full(error, path) from error

    def flush(self, mapping: mmap.mmap) -> None:
        """The mapping's bytes to the disk."""
        self.step("flush")
        if self.durable:
            mapping.flush()

    def rename(self, source: Path, target: Path) -> None:
        self.step(f"rename {target.name}")
        os.replace(source, target)
        self.sync_folder(target.parent)

    def remove(self, path: Path) -> None:
        self.step(f"remove {path.name}")
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    def sync_folder(self, folder: Path) -> None:
        if self.durable:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _sync(self, descriptor: int) -> None:
        if self.durable:
            os.fsync(descriptor)


def _full(error: OSError, path: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"the disk that holds {path.parent} is full: make room there, or choose another --data-dir")
    return error
