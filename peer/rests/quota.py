"""Counts what moves in a month, and says when the quota of it is used up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

import trio

from peer.formatting import size
from peer.rests.judge import Rest
from peer.rests.month import MonthTraffic, next_month
from protocol.wire.presence import WhyIdle

LOOK_S = 1.0
KEEP_S = 5.0
"""What was counted is written so often: a killed process loses no more of it."""

Clock = Callable[[], Awaitable[datetime | None]]
"""Local time; None when nobody can tell."""


class MonthlyQuota:
    """quota: bytes, sent and received together; None for no quota."""

    def __init__(self, traffic: MonthTraffic, clock: Clock, quota: Callable[[], int | None]) -> None:
        self.traffic, self._clock, self._quota = traffic, clock, quota

    async def rest(self) -> Rest | None:
        """Why to rest now, and until when; None while something is left of this month's quota."""
        return self._judge(await self._now())

    async def watch(self, moved: Callable[[], int], spent: Callable[[Rest], None]) -> None:
        """Count until cancelled.  moved: bytes since the start, of a network that has just begun.

        spent: told why to rest when the quota is used up, once.
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
                    with suppress(OSError):  # a full disk is told by the store
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
