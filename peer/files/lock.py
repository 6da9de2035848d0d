"""A lock between processes: a file that one process holds, with its process ID inside.

`filelock` takes it with flock, so the kernel lets go of it when the process ends, however it ends: no lock is ever stale.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

PID_CHARACTERS = 32


class LockHeld(Exception):
    """Another process holds the lock.  holder: its process ID; None when the file does not say."""

    def __init__(self, holder: int | None) -> None:
        super().__init__(f"held by process {holder}" if holder is not None else "held by another process")
        self.holder = holder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path`, a file of mode 0600 in a folder that exists.

    Raises `LockHeld` at once when another process holds it, OSError when the file cannot be used.
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
