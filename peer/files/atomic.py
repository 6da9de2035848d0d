"""Small files that are written whole or not at all.

No library: `os.replace` is atomic, and what is left to do is four calls; the packages for it are not maintained, and none of
them refuses to replace a file that another process makes meanwhile.  The store of a run has writes of its own, for tests
make each of them fail (`protocol.chain.disk`).

Whoever is killed while it writes leaves a temporary file, `.<name>.<anything>.new`: the store of a run removes those in its
folder when it is opened, `remove_left_overs` those in another one.
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

    data: the content, or what makes it of the file's inode.
    With `replace=False` raises FileExistsError when `path` exists, also if another process makes it meanwhile.
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
    """Remove what writers that were killed left in this folder.  What a living one writes is locked, and stays."""
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
    """A new file beside `path`, locked; another one, when it was taken for a left-over just before it was locked."""
    while True:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=SUFFIX)
        with suppress(OSError):  # some file servers lock nothing
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)


def _place_new(temporary: Path, path: Path) -> None:
    """Give a written file its name unless that is taken; the link is atomic, where the file system has links."""
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
# Whether a folder is the one that we wrote, or a copy of it, or what a backup put back.
#
# A mark in the folder names its own inode and the time of its last change.  A copy has another inode; a mark that was
# written over has another time.  The mark is made anew after every vote, so a backup from before has another one, and what
# puts back only the files that differ puts back that, too.
#
# What leaves no trace is not noticed: a snapshot of a whole file system or machine that is restored, single files that are
# put back without the mark, one folder that two computers use, and a mark that is put back with its time where the file
# system gives it its old inode number again (ext4 does so often).  The time of the last change of its status would show
# that, but permissions and links change it, too, every day.


MARK = "original"
COARSE_S = 3.0
"""Some file systems tell times in steps of two seconds."""
MAX_MARK_BYTES = 1024


def is_original(folder: Path) -> bool:
    """Whether the folder is as it was marked, or was never marked.  Blocking."""
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
    """From now on the folder is the original, for good when this returns.  Blocking.  Raises OSError."""
    changed = time.time()

    def mark(inode: int) -> bytes:
        return json.dumps({"inode": inode, "changed": changed}).encode()

    write_atomically(folder / MARK, mark)
    os.utime(folder / MARK, (changed, changed))  # a file server has a clock of its own
