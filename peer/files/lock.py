"""Lock between processes: a file that one process holds, with its process ID inside.

`filelock` takes it with flock, so the kernel releases it when the process ends, however it ends: no lock is ever stale.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

# ------------------------------------------------------------------------------------------------------------------------
# Held file: it says "its owner lives", because the owner keeps it locked (flock) for as long as it lives.
#
# The kernel releases the lock when the process ends, however it ends, so nobody has to guess whether an owner lives.  A
# process that finds a file without a holder removes it.  `filelock` does not fit: a file here is locked before it has its
# name, and others test its lock without taking it.


ATTEMPTS = 10


class HeldFile:
    """File of ours at `path`.  All methods raise OSError if its folder cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_there(self) -> bool:
        """True if we hold the file, and nobody has removed or replaced it."""
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
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # before it has its name, so that nobody sees it unlocked
            os.write(descriptor, data)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(descriptor)
            Path(temporary).unlink(missing_ok=True)
            raise
        self._let_go()
        self._descriptor = descriptor

    def remove(self) -> None:
        """Remove the file, and also its folder if that is empty then."""
        if self.is_there:
            self.path.unlink(missing_ok=True)
        self._let_go()
        with suppress(OSError):  # the folder holds other files
            self.path.parent.rmdir()

    def _temporary(self) -> tuple[int, str]:
        """Make a new file in the folder; retry if the removal of another's last file has just removed the folder."""
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
    """Return up to `limit` bytes of a file whose owner lives; None for any other, and a dead owner's file is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if _lock_is_free(descriptor):
            path.unlink(missing_ok=True)
            return None
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def _lock_is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------------------


PID_CHARACTERS = 32


class LockHeld(Exception):
    """Another process holds the lock.  holder: its process ID; None if the file does not say."""

    def __init__(self, holder: int | None) -> None:
        super().__init__(f"held by process {holder}" if holder is not None else "held by another process")
        self.holder = holder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path`, a file of mode 0600 in an existing folder.

    Raises `LockHeld` at once if another process holds it, OSError if the file cannot be used.
    """
    lock = FileLock(path, timeout=0, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise LockHeld(_holder(path)) from error
    try:
        path.write_text(f"{os.getpid()}\n")
        yield
        path.write_text("")
    finally:
        lock.release()


def _holder(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            text = file.read(PID_CHARACTERS).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
