"""Disk space for a peer: the free space, within its owner's cap.

The cap applies to the whole data directory: states, checkpoints, results, corpora and logs of all runs.  A
`CappedDisk` refuses a write in advance.  Files that are written in other ways are small or of limited size; they are not
refused, but they count for later writes.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from peer.paths import BLOCKS, FILES
from protocol.disk import Disk, NoRoom
from protocol.formatting import size

BLOCK_BYTES = 512
"""Unit of `st_blocks`."""
MARGIN_BYTES = 1 << 20
"""Bytes for records, votes and other small files, besides the states."""
STATES_ON_DISK = 3
"""Room for two checkpoints, and results between them, in multiples of the state."""
STATES_TO_GO_ON = 2
"""Further states that must fit if the peer already has its state on the disk."""

MEASURE_S, MEASURE_TIMES = 5.0, 50.0
"""Age at which used bytes are measured again: the larger of these seconds and this multiple of the measuring time."""


def used_bytes(folder: Path) -> int:
    """Return the bytes that all files below `folder` take up on the disk; one with several names counts once.  Blocking."""
    found: dict[tuple[int, int], int] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it has just been removed
                stat = os.lstat(os.path.join(where, name))
                found[stat.st_dev, stat.st_ino] = stat.st_blocks * BLOCK_BYTES
    return sum(found.values())


@dataclass(frozen=True)
class DiskRoom:
    """Room of a data directory.  cap: bytes that all files below `folder` may take up; None for no cap."""

    folder: Path
    cap: Callable[[], int | None] = lambda: None

    def left_bytes(self) -> int:
        """Return the bytes that may still be written.  Blocking."""
        free, cap = shutil.disk_usage(self.folder).free, self.cap()
        return free if cap is None else max(0, min(free, cap - used_bytes(self.folder)))

    def problem(self, run: Path, state_bytes: int, more: int = 0) -> str:
        """Return a sentence if there is no room for states of `state_bytes` in the folder `run`; otherwise "".  Blocking.

        more: further bytes that the peer keeps in that folder.  Cached blocks count as free, since they give way.
        """
        blocks = used_bytes(run / BLOCKS)
        others = blocks + used_bytes(run / FILES)
        states = max(STATES_ON_DISK * state_bytes - (used_bytes(run) - others), STATES_TO_GO_ON * state_bytes)
        needed = states + more + MARGIN_BYTES - blocks
        need, left, cap = f"the run needs about {size(needed)} more on disk", self.left_bytes(), self.cap()
        if left >= needed:
            return ""
        if cap is not None and shutil.disk_usage(self.folder).free >= needed:
            return (
                f"{need}, and max_disk ({size(cap)}) leaves {size(left)} in {self.folder}: raise max_disk, or remove "
                "what is not needed (`peer runs`)"
            )
        return f"{need}, and {self.folder} has {size(left)} free: make room there, or choose another folder with --data-dir"

    def refuse(self, wanted: int) -> str:
        """Return the sentence that refuses a write of `wanted` bytes beyond the cap."""
        cap = self.cap() or 0
        return (
            f"{size(wanted)} more would be above max_disk ({size(cap)}) in {self.folder}: raise max_disk, or remove what is "
            "not needed (`peer runs`)"
        )


CACHE_SHARE, LEAST_CACHE_BYTES = 0.1, 4_000_000_000
"""Share of the free disk that cached blocks may take, and the least that they may take if that is at most half of it."""


def default_block_cache(room: DiskRoom, run: Path) -> int:
    """Return the limit on cached blocks in the folder `run` if its owner sets none.  Blocking."""
    free = room.left_bytes() + used_bytes(run / BLOCKS)
    return int(max(CACHE_SHARE * free, min(LEAST_CACHE_BYTES, free / 2)))


class CappedDisk(Disk):
    """Disk that refuses writes for which `room` has no space.  Thread-safe."""

    def __init__(self, room: DiskRoom, *, durable: bool = True) -> None:
        super().__init__(durable=durable)
        self._room = room
        self._used: int | None = None
        """Bytes used at the last measurement, plus the bytes written since then; None while there is no cap."""
        self._stale_at = 0.0
        self._lock = threading.Lock()

    def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
        """Write as `Disk.write` does; also raises NoRoom."""
        self._claim(memoryview(data).nbytes)
        super().write(file, data)

    def reserve(self, file: BinaryIO, size: int) -> None:
        """Reserve as `Disk.reserve` does; also raises NoRoom."""
        self._claim(size)
        super().reserve(file, size)

    def _claim(self, wanted: int) -> None:
        cap = self._room.cap()
        with self._lock:
            if cap is None:
                self._used = None
                return
            if self._used is None or self._used + wanted > cap or time.monotonic() > self._stale_at:
                self._used = self._measure()
            if self._used + wanted > cap:
                raise NoRoom(self._room.refuse(wanted))
            self._used += wanted

    def _measure(self) -> int:
        """Measure the used bytes, because other code writes and removes here too; repeat a slow measurement less often."""
        begun = time.monotonic()
        used = used_bytes(self._room.folder)
        ended = time.monotonic()
        self._stale_at = ended + max(MEASURE_S, MEASURE_TIMES * (ended - begun))
        return used
