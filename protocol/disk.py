"""The file-system operations of a store, in one place so that tests can make each of them fail.

`durable=False` skips the fsyncs, for tests that do not test the disk.

Large files are mapped, and read and written in order: `in_turn` lets go of the memory of each part after its use, so a file
of any size takes little of this process's memory.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from protocol.wire.hashes import HASH_BYTES, chunk_hash


class StoreFailed(Exception):
    """A failed disk operation; the text is a sentence with the remedy.  Earlier files are intact."""


class StoreFull(StoreFailed):
    """A full disk.  No partial file remains."""


class StateLost(Exception):
    """A state that this disk has lost and nobody else is known to have; the text is a sentence with the remedy."""


class NoRoom(OSError):
    """A write beyond the space we may use; the text is a sentence with the remedy."""


# ------------------------------------------------------------------------------------------------------------------------
# Mapped files.  The pages of a shared mapping belong to the file: a process that lets go of them loses nothing, and finds
# them again in the system's cache or on the disk.  Pages that it keeps count as its memory.


FAULT_BYTES = 1 << 16
"""Aligned bytes that Linux maps together with a used byte, so that using one part may map the end of the part before."""


class FileMapping(mmap.mmap):
    """Shared mapping of a file; `let_go` applies to its bytes."""


def let_go(view: memoryview) -> None:
    """Release this process's memory of a part of a mapped file; the bytes stay in the file, and later uses find them there.

    Does nothing for bytes that are not in a `FileMapping`.
    """
    mapping = view.obj
    if not isinstance(mapping, FileMapping) or not view.nbytes:
        return
    start = _address(view) - _address(memoryview(mapping))
    first, last = start // FAULT_BYTES * FAULT_BYTES, -(-(start + view.nbytes) // FAULT_BYTES) * FAULT_BYTES
    mapping.madvise(mmap.MADV_DONTNEED, first, min(last, len(mapping)) - first)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def in_turn(view: memoryview, spans: Iterable[slice]) -> Iterator[memoryview]:
    """Yield the parts of `view`, and let go of each when the next is asked for."""
    for span in spans:
        part = view[span]
        yield part
        let_go(part)


def fill(view: memoryview, pieces: Iterable[bytes | memoryview]) -> None:
    """Write pieces into a mapped file, one after the other, and let go of each."""
    at = 0
    for piece in pieces:
        part = view[at : at + len(piece)]
        part[:] = piece
        let_go(part)
        at += len(piece)


def pieces_of(view: memoryview, size: int) -> Iterator[memoryview]:
    """Yield `view` in order, in pieces of `size` bytes, as `in_turn` does; the last piece may be shorter."""
    return in_turn(view, (slice(at, at + size) for at in range(0, len(view), size)))


# ------------------------------------------------------------------------------------------------------------------------


WRITE_BYTES = 8 << 20
"""Number of bytes written at a time."""


class Disk:
    """Atomic file writes (`write_file`, `allocate`, `publish`), and the single operations below them."""

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable
        self._reliefs: list[Callable[[int], bool]] = []

    def add_relief(self, relief: Callable[[int], bool]) -> None:
        """Call `relief` when a file does not fit, and try again while it makes room.

        relief: removes other files to make room for so many bytes, in the thread that writes; returns False if it cannot.
        """
        self._reliefs.append(relief)

    def _makes_room(self, error: OSError, size: int) -> bool:
        """Return True after making room for `size` bytes, if the lack of room was the error."""
        return _is_for_room(error) and any(relief(size) for relief in self._reliefs)

    def write_file(self, path: Path, data: bytes | memoryview, *, relieved: bool = True) -> None:
        """Replace `path` with `data` atomically: temporary file, fsync, rename, fsync of the folder.

        relieved: False to fail if the file does not fit, even if other files could leave for it.
        """
        temporary = path.with_name(f".{path.name}.new")
        while True:
            try:
                with open(temporary, "wb") as file:
                    self.write(file, data)
                    self.sync(file)
                self.rename(temporary, path)
                return
            except OSError as error:
                self.clear(temporary)
                if not (relieved and self._makes_room(error, memoryview(data).nbytes)):
                    raise _sentence(error, path) from error

    def clear(self, path: Path) -> None:
        """Remove a file that nothing needs, if the disk allows it: a disk that became read-only does not."""
        with suppress(OSError):
            self.remove(path)

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it, unless it exists; durable on return.  Raises `StoreFailed`."""
        try:
            if not folder.exists():
                folder.mkdir(parents=True, exist_ok=True)
                self.sync_folder(folder.parent)
        except OSError as error:
            raise _sentence(error, folder) from error

    def settle(self, folder: Path) -> None:
        """Make the names in a folder durable.  Raises `StoreFailed`."""
        try:
            self.sync_folder(folder)
        except OSError as error:
            raise _sentence(error, folder) from error

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        """Write into a new file; nothing is durable before `sync`."""
        for piece in pieces_of(memoryview(data), WRITE_BYTES):
            file.write(piece)
        file.flush()

    def sync(self, file: BinaryIO) -> None:
        """Flush a file's bytes to the disk."""
        if self.durable:
            os.fsync(file.fileno())

    def allocate(self, path: Path, size: int) -> FileMapping:
        """Return a writable mapping of a new file of `size` bytes.

        The file's blocks are allocated, so a full disk raises an error now instead of SIGBUS later.
        """
        while True:
            try:
                with open(path, "w+b") as file:
                    self.reserve(file, size)
                    return FileMapping(file.fileno(), size)
            except OSError as error:
                self.clear(path)
                if not self._makes_room(error, size):
                    raise _sentence(error, path) from error

    def resume(self, path: Path, size: int) -> FileMapping:
        """Return a writable mapping of an existing file of `size` bytes; allocate the blocks that a copied file may lack."""
        try:
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return FileMapping(file.fileno(), size)
        except OSError as error:
            raise _sentence(error, path) from error

    def publish(self, path: Path, mapping: mmap.mmap, target: Path) -> None:
        """Publish a complete mapped file: flush its bytes to the disk, then rename it to `target`."""
        try:
            self.flush(path, mapping)
            self.rename(path, target)
        except OSError as error:
            raise _sentence(error, path) from error

    def reserve(self, file: BinaryIO, size: int) -> None:
        """Allocate the first `size` bytes of a file.  Raises `OSError` if the disk is full."""
        os.posix_fallocate(file.fileno(), 0, size)

    def flush(self, path: Path, mapping: mmap.mmap) -> None:
        """Flush the bytes of a mapped file to the disk."""
        if self.durable:
            mapping.flush()

    def link(self, source: Path, path: Path) -> None:
        """Make `path` a link to a file elsewhere, which is only read; durable on return.  Raises `StoreFailed`."""
        temporary = path.with_name(f".{path.name}.new")
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(source.resolve(strict=True))
            self.rename(temporary, path)
        except OSError as error:
            raise _sentence(error, path) from error

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, replacing it; durable on return."""
        self.move(source, target)
        self.sync_folder(target.parent)

    def move(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, replacing it; durable once the folder is synced.  A folder there is set aside."""
        try:
            os.replace(source, target)
        except IsADirectoryError:
            os.replace(target, corrupt_name(target))
            os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make renames and removals in a folder durable.  Raises `OSError`."""
        if self.durable:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class ScratchFolder:
    """Files in place of memory, in `folder`, which is emptied when this object is made.  Blocking.

    The files need not outlive this process, so they are never synced; the system writes them when it needs their memory.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        disk.make_folder(folder)
        clear_folder(disk, folder)

    def make(self, name: str, size: int) -> tuple[int, FileMapping]:
        """Return a descriptor and a mapping of a new file of zeros.  Raises `StoreFull`."""
        path = self._folder / name
        mapping = self._disk.allocate(path, size)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), mapping

    def remove(self, name: str) -> None:
        """Remove a file; mappings of it keep its bytes until they are gone."""
        self._disk.clear(self._folder / name)


def clear_folder(disk: Disk, folder: Path) -> None:
    """Remove the files in a folder, as far as the disk allows."""
    for path in folder.iterdir() if folder.is_dir() else ():
        disk.clear(path)


def _is_for_room(error: OSError) -> bool:
    return isinstance(error, NoRoom) or error.errno in (errno.ENOSPC, errno.EDQUOT)


def _sentence(error: OSError, path: Path) -> StoreFailed:
    if isinstance(error, NoRoom):
        return StoreFull(str(error))
    if _is_for_room(error):
        return StoreFull(f"the disk that holds {path.parent} is full: make room there, or choose another --data-dir")
    return StoreFailed(
        f"the disk that holds {path.parent} failed ({error.strerror or error}): check it, or choose another --data-dir"
    )


def map_file(path: Path) -> memoryview | None:
    """Return a file's bytes, read-only; None if it is missing or empty."""
    try:
        with open(path, "rb") as file:
            return memoryview(FileMapping(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0 if it is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


# ------------------------------------------------------------------------------------------------------------------------
# Guarded files begin with the hash of their content, so that torn or altered files are detected.


def write_guarded(disk: Disk, path: Path, data: bytes) -> None:
    """Replace `path` with the hash of `data` followed by `data`; durable on return.  Raises `StoreFailed`."""
    disk.write_file(path, chunk_hash(data) + data)


def read_guarded(disk: Disk, path: Path) -> bytes | None:
    """Return the data of a guarded file; None if the file is missing or damaged.

    A damaged (torn or altered) file is set aside.  Raises `StoreFailed` if it cannot be set aside.
    """
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < HASH_BYTES or chunk_hash(raw[HASH_BYTES:]) != raw[:HASH_BYTES]:
        set_aside(disk, path)
        return None
    return raw[HASH_BYTES:]


def read_slice(path: Path, offset: int, length: int) -> bytes | None:
    """Return bytes [offset, offset + length) of a guarded file's data, unchecked; None if the file is missing."""
    try:
        with path.open("rb") as file:
            file.seek(HASH_BYTES + offset)
            return file.read(length)
    except OSError:
        return None


def set_aside(disk: Disk, path: Path) -> None:
    """Move a damaged file out of the way without deleting it, so that its damage can be examined.  Raises `StoreFailed`."""
    try:
        disk.rename(path, corrupt_name(path))
    except OSError as error:
        raise _sentence(error, path) from error


def corrupt_name(path: Path) -> Path:
    """Return the path to which a damaged file is moved."""
    return path.with_name(f"{path.name}.corrupt")
