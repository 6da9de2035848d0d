"""Saying a statement by gossip again for a while: gossip may lose it."""

from __future__ import annotations

import trio

from protocol.network.interface import NetworkError
from protocol.network.session import Session

FIRST_S = 2.0
TIMES = 5
"""So often a statement is said, each time after twice as long."""
MOST = 4096
"""Statements that are said again; the oldest make room."""


class Repeating:
    """What this peer says about rollouts."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._due: dict[bytes, tuple[float, int]] = {}
        """When each is said next, and how often it was."""

    def say(self, raw: bytes, times: int = TIMES) -> None:
        """Say it at the next turn, and so often in all."""
        self._due[raw] = (trio.current_time(), TIMES - times)
        if len(self._due) > MOST:
            del self._due[next(iter(self._due))]

    async def turn(self) -> None:
        """Say what is due."""
        now = trio.current_time()
        for raw, (at, times) in [*self._due.items()]:
            if at > now:
                continue
            if times + 1 < TIMES:
                self._due[raw] = now + FIRST_S * 2**times, times + 1
            else:
                del self._due[raw]
            try:
                await self._session.network.publish(raw)
            except NetworkError:
                pass  # it is said again
