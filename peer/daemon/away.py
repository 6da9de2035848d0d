"""What keeps a peer out of its run for a while: a disk that is full, or a month's quota that is used up.

It leaves then, so that nobody waits for it and nothing large moves, stays away until that is over, and joins anew.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import trio

from peer.resources.room import Room
from peer.rests.judge import Rest
from peer.rests.quota import MonthlyQuota
from protocol.chain.disk import StoreFull
from protocol.wire.presence import WhyIdle

LOOK_S = 5.0
SHORT_S = 600.0
"""A stay in the run that ended after less than this by a full disk makes the next wait longer."""
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0


def full_disk(error: BaseException) -> Rest | None:
    """Why to rest after this error, which may be a group; None when no disk is full."""
    if isinstance(error, BaseExceptionGroup):
        return next((rest for inner in error.exceptions if (rest := full_disk(inner)) is not None), None)
    if isinstance(error, StoreFull):
        sentence = str(error)
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"the disk that holds {error.filename}" if error.filename else "a disk"
        sentence = f"{where} is full: make room there"
    else:
        return None
    return Rest(WhyIdle.DISK_FULL, f"{sentence}; goes on by itself when there is room")


class Away:
    """Decides when to go on.  state: (folder of the run, bytes of a state, 0 while it is not known)."""

    def __init__(self, quota: MonthlyQuota, room: Room, state: Callable[[], tuple[Path, int]]) -> None:
        self._quota, self._room, self._state = quota, room, state
        self._changed = trio.Event()
        self._short_stays = 0

    def look_now(self) -> None:
        """A setting has changed: do not wait longer than it takes to look."""
        self._changed.set()

    def stayed(self, seconds: float) -> None:
        """So long this peer was in the run before it has left because of a full disk."""
        self._short_stays = self._short_stays + 1 if seconds < SHORT_S else 0

    async def until_over(self, rest: Rest, tell: Callable[[Rest], None]) -> None:
        """Return when nothing keeps it away any more.  tell: of another sentence, or reason."""
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
        """What keeps it away now, as far as that can be seen from outside the run."""
        rest = await self._quota.rest()
        if rest is not None:
            return rest
        folder, state_bytes = self._state()
        problem = await trio.to_thread.run_sync(self._room.problem, folder, state_bytes) if state_bytes else ""
        return full_disk(StoreFull(problem)) if problem else None
