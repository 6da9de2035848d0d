"""What this peer has sent and received in the present calendar month, kept in a file of its data directory.

The month is that of local time.  A file that is written whole or not at all survives any death; what moved since it was
written last is lost with a killed process.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

from peer.files.atomic import write_atomically

FILE = "month.json"
MAX_FILE_BYTES = 4096
MOST_BYTES = 1 << 62
_MONTH = re.compile(r"\d{4}-\d{2}")


class MonthTraffic:
    """bytes: in `month`, sent and received together.  Both are as of the last `count`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.month, self.bytes = _read(self._path)
        self._kept = (self.month, self.bytes)

    def count(self, moved: int, now: datetime) -> None:
        """So many bytes more have moved until now (local time)."""
        if self.month != (month := f"{now:%Y-%m}"):
            self.month, self.bytes = month, 0
        self.bytes += moved

    def keep(self) -> None:
        """Write what was counted, if anything was.  Blocking.  Raises OSError."""
        now = (self.month, self.bytes)
        if now != self._kept:
            write_atomically(self._path, json.dumps({"month": now[0], "bytes": now[1]}).encode())
            self._kept = now


def next_month(now: datetime) -> datetime:
    """When the month after that of `now` begins."""
    return datetime(now.year + now.month // 12, now.month % 12 + 1, 1)


def _read(path: Path) -> tuple[str, int]:
    """Nothing where there is no such file, or another one than we write."""
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return "", 0
    month, moved = (told.get("month"), told.get("bytes")) if isinstance(told, dict) else (None, None)
    if isinstance(month, str) and _MONTH.fullmatch(month) and type(moved) is int and 0 <= moved <= MOST_BYTES:
        return month, moved
    return "", 0
