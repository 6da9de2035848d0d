"""Write and read speed of the disk under the data directory, measured with one unnamed file.  Blocking."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from pathlib import Path

from peer.bench.figures import DiskSpeed
from peer.errors import ExitCode, PeerError
from peer.formatting import size

MOST_BYTES = 256 << 20
PIECE_BYTES = 8 << 20
SECONDS = 1.5
"""Seconds for writing, and for reading; a slow disk gets less to do."""
KEPT_FREE_BYTES = 256 << 20


def measure_disk(folder: Path, most_bytes: int = MOST_BYTES, seconds: float = SECONDS) -> DiskSpeed:
    """Write a file with fsync, then read it, bypassing the page cache if possible.  Raises PeerError."""
    free = os.statvfs(folder)
    most_bytes = min(most_bytes, free.f_bavail * free.f_frsize - KEPT_FREE_BYTES)
    if most_bytes < PIECE_BYTES:
        needed = size(KEPT_FREE_BYTES + PIECE_BYTES)
        raise PeerError(
            f"less than {needed} are free in {folder}; make room, or give another --data-dir", ExitCode.RESOURCES
        )
    with tempfile.TemporaryFile(dir=folder, prefix=".bench-", buffering=0) as file:
        written, write_s = _write(file.fileno(), most_bytes, seconds)
        is_cached = not _forget(file.fileno())
        read, read_s = _read(file.fileno(), written, seconds)
    return DiskSpeed(written / write_s, read / read_s, written, is_cached)


def _write(fd: int, most_bytes: int, seconds: float) -> tuple[int, float]:
    """Return the bytes written, and the seconds until all of them were on the disk."""
    piece = memoryview(os.urandom(PIECE_BYTES))
    begun, written = time.perf_counter(), 0
    while written + PIECE_BYTES <= most_bytes and (not written or time.perf_counter() - begun < seconds):
        done = 0
        while done < PIECE_BYTES:
            done += os.write(fd, piece[done:])
        os.fsync(fd)  # each piece, so that the time limit holds on a slow disk
        written += PIECE_BYTES
    return written, max(time.perf_counter() - begun, 1e-9)


def _read(fd: int, count: int, seconds: float) -> tuple[int, float]:
    buffer = memoryview(mmap.mmap(-1, PIECE_BYTES))
    os.lseek(fd, 0, os.SEEK_SET)
    begun, done = time.perf_counter(), 0
    while done < count and (not done or time.perf_counter() - begun < seconds):
        got = os.readv(fd, [buffer])
        if not got:
            break
        done += got
    return done, max(time.perf_counter() - begun, 1e-9)


def _forget(fd: int) -> bool:
    """Drop a file from the page cache; False if the system offers no call for this."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return True
