"""Small files that are written whole or not at all.

No library is used: `os.replace` is atomic, and only four other calls are needed.  The packages for this are not maintained,
and none of them refuses to replace a file that another process has just made.  The store of a run has its own write
functions, because tests make each write fail (`protocol.disk`).

A writer that is killed leaves a temporary file, `.<name>.<anything>.new`.  The store of a run removes such files from its
folder when it is opened; `remove_left_overs` removes them from another folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

# ------------------------------------------------------------------------------------------------------------------------
# Held file: a sign that its owner lives, because the owner keeps the file locked (flock) until it ends.
#
# The kernel releases the lock when the process ends, however it ends, so the lock shows reliably whether the owner lives.  A
# process that finds an unlocked file removes it.  `filelock` does not fit: a file here is locked before it has its name, and
# other processes test its lock without taking it.


ATTEMPTS = 10


class HeldFile:
    """File at `path` that this process can hold.  All methods raise OSError if its folder cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_there(self) -> bool:
        """True if we hold the file, and no other process has removed or replaced it."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def put(self, data: bytes = b"") -> None:
        """Write the file, replacing an existing one, and hold it."""
        descriptor, temporary = self._temporary()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # before the file has its name, so that no process sees it unlocked
            os.write(descriptor, data)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(descriptor)
            Path(temporary).unlink(missing_ok=True)
            raise
        self._let_go()
        self._descriptor = descriptor

    def remove(self) -> None:
        """Remove the file, and also its folder if it is then empty."""
        if self.is_there:
            self.path.unlink(missing_ok=True)
        self._let_go()
        with suppress(OSError):  # the folder holds other files
            self.path.parent.rmdir()

    def _temporary(self) -> tuple[int, str]:
        """Make a new file in the folder; retry if another process has just removed the folder with its last file."""
        for _ in range(ATTEMPTS):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                return tempfile.mkstemp(dir=self.path.parent, prefix=".")
            except FileNotFoundError:
                continue
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(self.path.parent))

    def _let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_held(path: Path, limit: int) -> bytes | None:
    """Return up to `limit` bytes of a file whose owner lives; None for any other file; a dead owner's file is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return None
    except BlockingIOError:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------------------
# Lock between processes: a file that one process holds, with its process ID inside.
#
# `filelock` uses flock, so the kernel releases the lock when the process ends, however it ends: no lock is ever stale.


PID_CHARACTERS = 32


class LockHeld(Exception):
    """Error: another process holds the lock.  holder: its process ID; None if the file does not name it."""

    def __init__(self, holder: int | None) -> None:
        super().__init__(f"held by process {holder}" if holder is not None else "held by another process")
        self.holder = holder


@contextmanager
def locked(path: Path, wait_s: float = 0) -> Iterator[None]:
    """Hold `path`, a file of mode 0600 in an existing folder.

    Raises `LockHeld` if another process still holds it after `wait_s` seconds, OSError if the file cannot be used.
    """
    lock = FileLock(path, timeout=wait_s, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        text = b""
        with suppress(OSError), path.open("rb") as file:
            text = file.read(PID_CHARACTERS).strip()
        raise LockHeld(int(text) if text.isdigit() else None) from error
    try:
        path.write_text(f"{os.getpid()}\n")
        yield
        path.write_text("")
    finally:
        lock.release()


# ------------------------------------------------------------------------------------------------------------------------
# Log file of limited size: a full file is renamed, and the oldest one is replaced.
#
# `logging.handlers.RotatingFileHandler` does not fit: data that a full disk refuses stays in its buffer and is written
# later, torn and out of order, although it was counted as lost.  It also counts characters instead of bytes.


class RotatingFile:
    """Log that appends to the first of `names` in `folder`; the other names are the older files, newest first.

    max_bytes: limit on each file, unless a single piece is larger.
    """

    def __init__(self, folder: Path, names: Sequence[str], max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._paths = [folder / name for name in names]

    def append(self, data: bytes) -> None:
        """Append `data`.  Raises OSError if the write fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        newest = self._paths[0]
        if newest.exists() and newest.stat().st_size + len(data) > self._max_bytes:
            for newer, older in reversed(list(zip(self._paths, self._paths[1:], strict=False))):
                if newer.exists():
                    newer.replace(older)
            if len(self._paths) == 1:
                newest.unlink()
        with newest.open("ab") as file:
            file.write(data)


# ------------------------------------------------------------------------------------------------------------------------


SUFFIX = ".new"


def write_atomically(path: Path, data: bytes | Callable[[int], bytes], *, replace: bool = True, mode: int = 0o600) -> None:
    """Write a file whole or not at all, and durably.  Raises OSError.

    data: the content, or a function that makes it from the file's inode.  With `replace=False`, raises FileExistsError if
    `path` exists, even if another process has only just made it.  mode: permissions of the file.
    """
    descriptor, temporary = _temporary(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data if isinstance(data, bytes) else data(os.fstat(file.fileno()).st_ino))
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            if replace:  # while the file is still locked
                os.replace(temporary, path)
            else:
                _place_new(Path(temporary), path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the folder's names to the disk.  Blocking.  Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, limit: int) -> Any:
    """Return the content of a small JSON file; None if it is missing or damaged, or not a regular file.

    limit: largest number of bytes to read.  Blocking.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return json.loads(file.read(limit))
    except (OSError, ValueError, RecursionError):
        pass
    return None


def remove_left_overs(folder: Path, name: str = "") -> None:
    """Remove the files that killed writers left in this folder.  The file of a living writer is locked, and is kept.

    name: name of the file that they wrote; empty for every file.
    """
    for path in folder.glob(f".{name}*{SUFFIX}"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _temporary(path: Path) -> tuple[int, str]:
    """Make a new file beside `path`, locked; make another if the first was removed as a leftover before it was locked."""
    while True:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=SUFFIX)
        with suppress(OSError):  # some file servers have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)


def _place_new(temporary: Path, path: Path) -> None:
    """Give a written file its name unless the name is taken; this is atomic if the file system has links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a memory stick's file system has no links: check first, then rename
        if path.exists():
            raise FileExistsError(f"{path} exists") from None
        os.replace(temporary, path)


# ------------------------------------------------------------------------------------------------------------------------
# Recognition of copies: a folder is the one that we wrote, a copy of it, or one restored from a backup.
#
# A mark in the folder names its own inode and the time of its last change.  A copy has another inode, and an overwritten
# mark has another time.  The mark is renewed after every vote, so an earlier backup has another mark.  A restore of only
# the files that differ restores the mark as well.
#
# Restores that leave no trace are not noticed: a snapshot of a whole file system or machine, single files restored without
# the mark, one folder that two computers use, and a mark restored with its time if the file system reuses the old inode
# number (ext4 often does).  The time of the last status change would show this last case, but changes of permissions and
# links alter that time every day.


MARK = "original"
COARSE_S = 3.0
"""Tolerance in seconds: some file systems store times in steps of two seconds."""
MAX_MARK_BYTES = 1024


def is_original(folder: Path) -> bool:
    """Return True if the folder's mark is intact, or if the folder was never marked.  Blocking."""
    path = folder / MARK
    try:
        found = path.stat()
        with path.open("rb") as file:
            said = json.loads(file.read(MAX_MARK_BYTES))
        inode, changed = int(said["inode"]), float(said["changed"])
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False
    return found.st_ino == inode and abs(found.st_mtime - changed) < COARSE_S


def mark_original(folder: Path) -> None:
    """Mark the folder as the original, durably once this returns.  Blocking.  Raises OSError."""
    changed = time.time()

    def mark(inode: int) -> bytes:
        return json.dumps({"inode": inode, "changed": changed}).encode()

    write_atomically(folder / MARK, mark)
    os.utime(folder / MARK, (changed, changed))  # a file server has its own clock
