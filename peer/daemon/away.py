"""Reasons to stay out of a run for a while: a full disk, or a month's quota that is used up.

The peer leaves, so that no peer waits for it and nothing large is transferred.  It joins again when the reason is gone.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import trio

from peer.resources.room import DiskRoom
from peer.rests.keeper import Rest
from peer.rests.reasons import MonthlyQuota
from protocol.disk import StoreFull
from protocol.events.status import WhyIdle

LOOK_S = 5.0
SHORT_S = 600.0
"""Seconds below which a stay counts as short: after two short stays in a row that a full disk ended, waits get longer."""
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0


def full_disk(error: BaseException) -> Rest | None:
    """Return the reason to rest after this error, which may be a group; None if no disk is full."""
    if isinstance(error, BaseExceptionGroup):
        return next((rest for inner in error.exceptions if (rest := full_disk(inner)) is not None), None)
    if isinstance(error, StoreFull):
        sentence = str(error)
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"the disk that holds {error.filename}" if error.filename else "a disk"
        sentence = f"{where} is full: make room there"
    else:
        return None
    return Rest(WhyIdle.DISK_FULL, f"{sentence}; the peer resumes by itself when there is room")


class Away:
    """Decision on the time to join again.

    state: returns the run's folder, the bytes of a state (0 while unknown), and the bytes of other files that have to fit.
    Blocking.
    """

    def __init__(self, quota: MonthlyQuota, room: DiskRoom, state: Callable[[], tuple[Path, int, int]]) -> None:
        self._quota, self._room, self._state = quota, room, state
        self._changed = trio.Event()
        self._short_stays = 0

    def look_now(self) -> None:
        """Check the reason again at once, because a setting has changed."""
        self._changed.set()

    def stayed(self, seconds: float) -> None:
        """Record the length of a stay that a full disk ended."""
        self._short_stays = self._short_stays + 1 if seconds < SHORT_S else 0

    async def until_over(self, rest: Rest, tell: Callable[[Rest], None]) -> None:
        """Wait until nothing keeps the peer away.  tell: called with each new reason or sentence."""
        wait_s = FIRST_WAIT_S * 2 ** (self._short_stays - 2) if self._short_stays > 1 else 0.0
        earliest = trio.current_time() + (min(wait_s, LONGEST_WAIT_S) if rest.why is WhyIdle.DISK_FULL else 0.0)
        while True:
            self._changed = trio.Event()
            with trio.move_on_after(LOOK_S):
                await self._changed.wait()
                earliest = 0.0
            found = await self.reason()
            if found is not None and found != rest:
                rest = found
                tell(rest)
            elif found is None and trio.current_time() >= earliest:
                return

    async def reason(self) -> Rest | None:
        """Return the present reason to stay away, as far as it can be detected outside the run."""
        rest = await self._quota.rest()
        if rest is not None:
            return rest
        folder, state_bytes, more = await trio.to_thread.run_sync(self._state)
        if not state_bytes:
            return None
        problem = await trio.to_thread.run_sync(self._room.problem, folder, state_bytes, more)
        return full_disk(StoreFull(problem)) if problem else None
