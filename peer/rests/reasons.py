"""Reasons to rest that outlive a process: the month's quota of traffic, and a pause that a person asked for."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import trio

from peer.files import read_json, write_atomically
from peer.rests.keeper import Rest
from protocol.events.status import WhyIdle
from protocol.formatting import duration, size

# ------------------------------------------------------------------------------------------------------------------------
# Traffic of this peer in the present calendar month, sent and received, kept in a file of its data directory.
#
# Months are in local time.  The file is written whole or not at all, so it survives any death; a killed process
# loses only the traffic since the last write.


FILE = "month.json"
MAX_COUNT_BYTES = 4096
MOST_BYTES = 1 << 62
_MONTH = re.compile(r"\d{4}-\d{2}")


class MonthTraffic:
    """Traffic of a month.

    bytes: traffic in `month`, sent and received together.  Both fields are as of the last `count`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.month, self.bytes = "", 0
        told = read_json(self._path, MAX_COUNT_BYTES)
        month, moved = (told.get("month"), told.get("bytes")) if isinstance(told, dict) else (None, None)
        if isinstance(month, str) and _MONTH.fullmatch(month) and type(moved) is int and 0 <= moved <= MOST_BYTES:
            self.month, self.bytes = month, moved
        self._kept = (self.month, self.bytes)

    def count(self, moved: int, now: datetime) -> None:
        """Add `moved` bytes, transferred until `now` (local time)."""
        if self.month != (month := f"{now:%Y-%m}"):
            self.month, self.bytes = month, 0
        self.bytes += moved

    def keep(self) -> None:
        """Write the count if it has changed.  Blocking.  Raises OSError."""
        now = (self.month, self.bytes)
        if now != self._kept:
            write_atomically(self._path, json.dumps({"month": now[0], "bytes": now[1]}).encode())
            self._kept = now


def next_month(now: datetime) -> datetime:
    """Return the beginning of the month after `now`."""
    return datetime(now.year + now.month // 12, now.month % 12 + 1, 1)


# ------------------------------------------------------------------------------------------------------------------------


LOOK_S = 1.0
KEEP_S = 60.0
"""Seconds between two writes of the count: a killed process loses at most the traffic of this time."""

Clock = Callable[[], Awaitable[datetime | None]]
"""Function that returns local time; None if it is unknown."""


class MonthlyQuota:
    """Monthly quota of a peer.  quota: bytes, sent and received together; None for no quota."""

    def __init__(self, traffic: MonthTraffic, clock: Clock, quota: Callable[[], int | None]) -> None:
        self.traffic, self._clock, self._quota = traffic, clock, quota

    async def rest(self) -> Rest | None:
        """Return the reason to rest now, with its end; None while part of this month's quota is left."""
        return self._judge(await self._now())

    async def watch(self, moved: Callable[[], int], spent: Callable[[Rest], None]) -> None:
        """Count traffic until cancelled.  moved: returns the bytes since the start of the network, which has just begun.

        spent: called once, with the reason to rest, when the quota is used up.
        """
        counted, kept_at, was_spent = 0, trio.current_time(), False
        try:
            while True:
                now, total = await self._now(), moved()
                self.traffic.count(total - counted, now)
                counted = total
                rest = self._judge(now)
                if rest is not None and not was_spent:
                    was_spent, kept_at = (
                        True,
                        -math.inf,
                    )  # if the process is killed now, the next one must not count the month from zero
                    spent(rest)
                if trio.current_time() - kept_at >= KEEP_S:
                    kept_at = trio.current_time()
                    with suppress(OSError):  # the store reports a full disk
                        await trio.to_thread.run_sync(self.traffic.keep)
                await trio.sleep(LOOK_S)
        finally:
            self.traffic.bytes += moved() - counted
            with suppress(OSError):
                self.traffic.keep()

    async def _now(self) -> datetime:
        return await self._clock() or datetime.now()

    def _judge(self, now: datetime) -> Rest | None:
        self.traffic.count(0, now)
        quota = self._quota()
        if quota is None or self.traffic.bytes < quota:
            return None
        begins = f"{next_month(now):%Y-%m-%d}"
        return Rest(
            WhyIdle.MONTHLY_QUOTA,
            f"this month's {size(quota)} (monthly_quota) are used up: resumes at {begins}, or with a larger quota",
        )


# ------------------------------------------------------------------------------------------------------------------------
# Pause that a person asked for: its end is on disk, so that a restarted peer continues the pause.
#
# Times are wall clock, in unix seconds: a pause ends at the time that was shown to the person, also across restarts.


FILE_NAME = "pause.json"
MAX_PAUSE_BYTES = 1024
MAX_PAUSE_S = 366 * 86_400.0


@dataclass(frozen=True)
class TimedPause:
    """A pause.  until: unix seconds, infinite for a pause that only `peer resume` ends."""

    until: float = math.inf

    def left_s(self, now: float) -> float:
        """Return the seconds until the pause ends by itself; at most the longest pause, in case the clock was set back."""
        return min(max(0.0, self.until - now), MAX_PAUSE_S) if math.isfinite(self.until) else math.inf

    def end(self, now: float) -> str:
        """Describe the end, such as "until `peer resume`" or "until 18:30 (in 25 min)"."""
        if not math.isfinite(self.until):
            return "until `peer resume`"
        left = self.left_s(now)
        clock = time.strftime("%H:%M" if left < 86_400 else "%A %d %B, %H:%M", time.localtime(now + left))
        return f"until {clock} (in {duration(left)})"

    def detail(self, now: float) -> str:
        """Return the sentence of a paused peer."""
        if not math.isfinite(self.until):
            return "paused by you; `peer resume` ends the pause"
        return f"paused by you {self.end(now).partition(' (')[0]}; `peer resume` ends the pause early"


def keep_pause(folder: Path, pause: TimedPause | None) -> None:
    """Write the pause into the data directory; None removes it.  Blocking.  Raises OSError."""
    if pause is None:
        (folder / FILE_NAME).unlink(missing_ok=True)
    else:
        until = pause.until if math.isfinite(pause.until) else None
        write_atomically(folder / FILE_NAME, json.dumps({"until": until}).encode())


def kept_pause(folder: Path, now: float) -> TimedPause | None:
    """Return the pause that an earlier process stored; None if it is missing or over, or the file is damaged.  Blocking."""
    try:
        until = read_json(folder / FILE_NAME, MAX_PAUSE_BYTES)["until"]
        pause = TimedPause(math.inf if until is None else float(until))
        if until is not None and not math.isfinite(pause.until):
            return None
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return pause if pause.left_s(now) > 0 else None
