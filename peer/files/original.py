"""Whether a folder is the one that we wrote, or a copy of it, or what a backup put back.

A mark in the folder names its own inode and the time of its last change.  A copy has another inode; a mark that was written
over has another time.  The mark is made anew after every vote, so a backup from before has another one, and what puts back
only the files that differ puts back that, too.

What leaves no trace is not noticed: a snapshot of a whole file system or machine that is restored, single files that are put
back without the mark, one folder that two computers use, and a mark that is put back with its time where the file system
gives it its old inode number again (ext4 does so often).  The time of the last change of its status would show that, but
permissions and links change it, too, every day.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from peer.files.atomic import write_atomically

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
