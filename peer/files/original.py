"""Whether a folder is the one that we wrote, or a copy of it, or what a backup put back.

A mark in the folder names its own inode, and the moment at which it was written.  A copy has another inode; what is written
over a file changes the time of its status, which no program can set back.  What leaves no trace is not noticed: a snapshot
of a whole file system or machine that is restored, and one folder that two computers use.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from peer.files.atomic import write_atomically

MARK = "original"
SLACK_S = 30.0
"""A disk may take so long to finish the mark; what changes it later, changes its times by more."""
MAX_MARK_BYTES = 1024


def is_original(folder: Path) -> bool:
    """Whether the folder is as it was marked, or was never marked.  Blocking."""
    path = folder / MARK
    try:
        found = path.stat()
        with path.open("rb") as file:
            said = json.loads(file.read(MAX_MARK_BYTES))
        inode, marked = int(said["inode"]), float(said["marked"])
    except FileNotFoundError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return found.st_ino == inode and all(abs(at - marked) < SLACK_S for at in (found.st_mtime, found.st_ctime))


def mark_original(folder: Path) -> None:
    """From now on the folder is the original, for good when this returns.  Blocking.  Raises OSError."""

    def mark(inode: int) -> bytes:
        return json.dumps({"inode": inode, "marked": time.time()}).encode()

    write_atomically(folder / MARK, mark)
