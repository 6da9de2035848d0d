"""Pause that a person asked for: its end is on disk, so that a peer that starts again goes on pausing.

Times are wall clock, in unix seconds: a pause ends at an hour that the person was told, also across restarts.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

from peer.files.atomic import write_atomically
from peer.formatting import duration

FILE_NAME = "pause.json"
MAX_FILE_BYTES = 1024
MAX_PAUSE_S = 366 * 86_400.0


@dataclass(frozen=True)
class TimedPause:
    """A pause.  until: unix seconds, infinite for a pause that only `peer resume` ends."""

    until: float = math.inf

    def left_s(self, now: float) -> float:
        """Return the seconds until the pause ends by itself; at most the longest pause, in case the clock was set back."""
        return min(max(0.0, self.until - now), MAX_PAUSE_S) if math.isfinite(self.until) else math.inf

    def end(self, now: float) -> str:
        """Describe the end, as "until `peer resume`" or "until 18:30 (in 25 min)"."""
        if not math.isfinite(self.until):
            return "until `peer resume`"
        left = self.left_s(now)
        clock = time.strftime("%H:%M" if left < 86_400 else "%A %d %B, %H:%M", time.localtime(now + left))
        return f"until {clock} (in {duration(left)})"

    def detail(self, now: float) -> str:
        """Return the sentence of a paused peer."""
        if not math.isfinite(self.until):
            return "paused by you; `peer resume` goes on"
        return f"paused by you {self.end(now).partition(' (')[0]}; `peer resume` goes on before"


def keep_pause(folder: Path, pause: TimedPause | None) -> None:
    """Write the pause into the data directory; None removes it.  Blocking.  Raises OSError."""
    if pause is None:
        (folder / FILE_NAME).unlink(missing_ok=True)
    else:
        until = pause.until if math.isfinite(pause.until) else None
        write_atomically(folder / FILE_NAME, json.dumps({"until": until}).encode())


def kept_pause(folder: Path, now: float) -> TimedPause | None:
    """Return the pause that an earlier life left; None if there is none, it is over, or the file is damaged.  Blocking."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            until = json.loads(file.read(MAX_FILE_BYTES))["until"]
        pause = TimedPause(math.inf if until is None else float(until))
        if until is not None and not math.isfinite(pause.until):
            return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return pause if pause.left_s(now) > 0 else None
