"""Monthly quota: counts the month's traffic, and tells when the quota is used up."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import trio

from peer.files.atomic import write_atomically
from peer.formatting import size
from peer.rests.keeper import Rest
from protocol.wire.presence import WhyIdle

# ------------------------------------------------------------------------------------------------------------------------
# Traffic of this peer in the present calendar month, sent and received, kept in a file of its data directory.
#
# The month is that of local time.  The file is written whole or not at all, so it survives any death; a killed process
# loses only the traffic since the last write.


FILE = "month.json"
MAX_FILE_BYTES = 4096
MOST_BYTES = 1 << 62
_MONTH = re.compile(r"\d{4}-\d{2}")


class MonthTraffic:
    """Traffic of a month.  bytes: in `month`, sent and received together.  Both are as of the last `count`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.month, self.bytes = _read(self._path)
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


def _read(path: Path) -> tuple[str, int]:
    """Return the stored month and bytes; nothing if the file is missing or not of our form."""
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return "", 0
    month, moved = (told.get("month"), told.get("bytes")) if isinstance(told, dict) else (None, None)
    if isinstance(month, str) and _MONTH.fullmatch(month) and type(moved) is int and 0 <= moved <= MOST_BYTES:
        return month, moved
    return "", 0


# ------------------------------------------------------------------------------------------------------------------------


LOOK_S = 1.0
KEEP_S = 5.0
"""Seconds between two writes of the count: a killed process loses no more of it."""

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
        """Count until cancelled.  moved: returns the bytes since the start of a network that has just begun.

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
                    was_spent = True
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
            f"this month's {size(quota)} (monthly_quota) are sent and received: goes on at {begins}, or with a larger quota",
        )
