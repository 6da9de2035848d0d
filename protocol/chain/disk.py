"""The few things a store does to a file system, in one place, so that tests can make each of them fail.

`durable=False` leaves out the fsyncs, for tests that are not about the disk.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import BinaryIO

from protocol.wire.hashes import HASH_BYTES, chunk_hash


class StoreFailed(Exception):
    """The disk did not do what it was told; the text is a sentence with the remedy.  What was there before is intact."""


class StoreFull(StoreFailed):
    """The disk is full.  Nothing half-written remains."""


class NoRoom(OSError):
    """What is to be written is more than may be; the text is a sentence with the remedy."""


class Disk:
    """Writes that are whole or not there: `write_file`, `allocate`, `publish`.  Below them the single operations."""

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable

    def write_file(self, path: Path, data: bytes | memoryview) -> None:
        """Replace `path` with `data` atomically: temporary file, fsync, rename, fsync of the folder."""
        temporary = path.with_name(f".{path.name}.new")
        try:
            with open(temporary, "wb") as file:
                self.write(file, data)
                self.sync(file)
            self.rename(temporary, path)
        except OSError as error:
            self.remove(temporary)
            raise _sentence(error, path) from error

    def settle(self, folder: Path) -> None:
        """What the folder names, it names for good."""
        try:
            self.sync_folder(folder)
        except OSError as error:
            raise _sentence(error, folder) from error

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        """Into a new file; nothing is safe before `sync`."""
        file.write(data)
        file.flush()

    def sync(self, file: BinaryIO) -> None:
        """A file's bytes to the disk."""
        if self.durable:
            os.fsync(file.fileno())

    def allocate(self, path: Path, size: int) -> mmap.mmap:
        """A writable mapping of a new file of `size` bytes whose blocks exist: a full disk shows now, not as SIGBUS."""
        try:
            with open(path, "w+b") as file:
                self.reserve(file, size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            self.remove(path)
            raise _sentence(error, path) from error

    def resume(self, path: Path, size: int) -> mmap.mmap:
        """A writable mapping of a file of `size` bytes that is here; a copy of one may lack blocks, and they are made."""
        try:
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise _sentence(error, path) from error

    def publish(self, path: Path, mapping: mmap.mmap, target: Path) -> None:
        """A mapped file is complete: its bytes to the disk, then its name."""
        try:
            self.flush(path, mapping)
            self.rename(path, target)
        except OSError as error:
            raise _sentence(error, path) from error

    def reserve(self, file: BinaryIO, size: int) -> None:
        """Make sure that there is room for `size` more bytes.  Raises `StoreFull`."""
        os.posix_fallocate(file.fileno(), 0, size)

    def flush(self, path: Path, mapping: mmap.mmap) -> None:
        """The bytes of a mapped file to the disk."""
        if self.durable:
            mapping.flush()

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target`, for good when this returns."""
        self.move(source, target)
        self.sync_folder(target.parent)

    def move(self, source: Path, target: Path) -> None:
        """Replace `target`; for good once the folder is synced."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make renames and removals in a folder durable.  Raises `StoreFailed`."""
        if self.durable:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _sentence(error: OSError, path: Path) -> StoreFailed:
    if isinstance(error, NoRoom):
        return StoreFull(str(error))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"the disk that holds {path.parent} is full: make room there, or choose another --data-dir")
    return StoreFailed(
        f"the disk that holds {path.parent} failed ({error.strerror or error}): look after it, or choose another --data-dir"
    )


def map_file(path: Path) -> memoryview | None:
    """A file's bytes, read-only; None when it is not there or empty."""
    try:
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None


def size_of(path: Path) -> int:
    """A file's bytes; 0 when it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


# ------------------------------------------------------------------------------------------------------------------------
# Files that show when they are torn or altered: their content stands behind its hash.


def write_guarded(disk: Disk, path: Path, data: bytes) -> None:
    """Replace `path` with `data` behind its hash, for good when this returns.  Raises `StoreFailed`."""
    disk.write_file(path, chunk_hash(data) + data)


def read_guarded(disk: Disk, path: Path) -> bytes | None:
    """The data of a guarded file.  None when it is not there; one that is torn or altered is set aside."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < HASH_BYTES or chunk_hash(raw[HASH_BYTES:]) != raw[:HASH_BYTES]:
        set_aside(disk, path)
        return None
    return raw[HASH_BYTES:]


def set_aside(disk: Disk, path: Path) -> None:
    """Out of the way, but not lost: somebody may want to know what happened to it."""
    disk.rename(path, corrupt_name(path))


def corrupt_name(path: Path) -> Path:
    """Where a file that was set aside is."""
    return path.with_name(f"{path.name}.corrupt")
