"""Measured speed of this computer's line, kept in the data directory for the next run that asks for a speed.

`peer doctor` and `peer bench` measure it while a peer runs, with the peers of its run.  Their lines may have been the limit,
so this computer's line carries at least the measured rate.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from peer.files import read_json, write_atomically

FILE_NAME = "line.json"
MAX_BYTES = 1024
KEPT_S = 30 * 86_400.0
"""Age from which a measurement no longer counts."""
MBIT = 10**6 / 8
"""Bytes a second in a Mbit/s, the unit of run files."""


@dataclass(frozen=True)
class MeasuredLine:
    """Measured rates in bytes a second; 0 for a direction that was not measured.  at: unix seconds."""

    up: float
    down: float
    at: float

    @property
    def day(self) -> str:
        """Day of the measurement, in local time."""
        return time.strftime("%Y-%m-%d", time.localtime(self.at))


def keep_line(folder: Path, up: float, down: float, clock: Callable[[], float] = time.time) -> None:
    """Keep measured rates in the data directory `folder`, unless neither was measured.  Blocking."""
    if up > 0 or down > 0:
        with suppress(OSError):  # without the file, the next run only says less
            write_atomically(folder / FILE_NAME, json.dumps(asdict(MeasuredLine(up, down, clock()))).encode())


def kept_line(folder: Path, clock: Callable[[], float] = time.time) -> MeasuredLine | None:
    """Return the last measurement; None if there is none, or if it is old.  Blocking."""
    try:
        fields = read_json(folder / FILE_NAME, MAX_BYTES)
        line = MeasuredLine(*(float(fields[name]) for name in ("up", "down", "at")))
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    is_whole = all(math.isfinite(rate) and rate >= 0 for rate in (line.up, line.down))
    return line if is_whole and 0 <= clock() - line.at < KEPT_S else None
