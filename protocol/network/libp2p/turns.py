"""Tasks that take turns: one of them goes on in each turn of the event loop, so that together they do not hold it up."""

from __future__ import annotations

import trio


class Turns:
    """Tasks that wait for a turn get theirs in the order in which they asked."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def take(self) -> None:
        """Return in a turn of the event loop in which nobody else's `take` returns."""
        async with self._lock:  # to take it is a checkpoint, and it passes to one waiting task in each turn
            pass
