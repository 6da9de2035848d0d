"""Small files that are written whole or not at all.

No library is used: `os.replace` is atomic, and only four calls remain.  The packages for this are not maintained, and none
of them refuses to replace a file that another process makes meanwhile.  The store of a run has writes of its own, because
tests make each of them fail (`protocol.disk`).

A writer that is killed leaves a temporary file, `.<name>.<anything>.new`.  The store of a run removes such files from its
folder when it is opened; `remove_left_overs` removes them from another folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SUFFIX = ".new"


def write_atomically(path: Path, data: bytes | Callable[[int], bytes], *, replace: bool = True) -> None:
    """Write a file of mode 0600 whole or not at all, and durably.  Raises OSError.

    data: the content, or a function that makes it from the file's inode.  With `replace=False`, raises FileExistsError if
    `path` exists, also if another process makes it meanwhile.
    """
    descriptor, temporary = _temporary(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data if isinstance(data, bytes) else data(os.fstat(file.fileno()).st_ino))
            file.flush()
            os.fsync(file.fileno())
            if replace:  # while it is locked
                os.replace(temporary, path)
            else:
                _place_new(Path(temporary), path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(path.parent)


def remove_left_overs(folder: Path) -> None:
    """Remove the files that killed writers left in this folder.  The file of a living writer is locked, and stays."""
    for path in folder.glob(f".*{SUFFIX}"):
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
    """Make a new file beside `path`, locked; make another if the first was removed as a left-over before it was locked."""
    while True:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=SUFFIX)
        with suppress(OSError):  # some file servers lock nothing
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)


def _place_new(temporary: Path, path: Path) -> None:
    """Give a written file its name unless that is taken; the link is atomic, if the file system has links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # no links on a memory stick's file system: look first, then rename
        if path.exists():
            raise FileExistsError(f"{path} exists") from None
        os.replace(temporary, path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------------------
# Recognition of copies: a folder is the one that we wrote, or a copy of it, or restored from a backup.
#
# A mark in the folder names its own inode and the time of its last change.  A copy has another inode, and an overwritten
# mark has another time.  The mark is made anew after every vote, so an earlier backup has another mark.  A restore of only
# the files that differ restores the mark as well.
#
# Restores that leave no trace are not noticed: a snapshot of a whole file system or machine, single files put back without
# the mark, one folder that two computers use, and a mark that is put back with its time if the file system gives it its
# old inode number again (ext4 does so often).  The time of its last status change would show that, but permissions and
# links change it every day.


MARK = "original"
COARSE_S = 3.0
"""Tolerance in seconds: some file systems store times in steps of two seconds."""
MAX_MARK_BYTES = 1024


def is_original(folder: Path) -> bool:
    """Return True if the folder is as it was marked, or was never marked.  Blocking."""
    path = folder / MARK
    try:
        found = path.stat()
        with path.open("rb") as file:
            said = json.loads(file.read(MAX_MARK_BYTES))
        inode, changed = int(said["inode"]), float(said["changed"])
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return found.st_ino == inode and abs(found.st_mtime - changed) < COARSE_S


def mark_original(folder: Path) -> None:
    """Mark the folder as the original, durably once this returns.  Blocking.  Raises OSError."""
    changed = time.time()

    def mark(inode: int) -> bytes:
        return json.dumps({"inode": inode, "changed": changed}).encode()

    write_atomically(folder / MARK, mark)
    os.utime(folder / MARK, (changed, changed))  # a file server has a clock of its own
