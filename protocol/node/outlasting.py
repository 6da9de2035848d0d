"""What a round has begun and does not end with it: deliveries, for which a leaver waits before it says goodbye."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Outlasting:
    """Of one life.  nursery: goes on when a round is over."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self._under_way = 0
        self._idle = trio.Event()

    @contextmanager
    def delivery(self) -> Iterator[None]:
        """Within, something is on its way to a peer."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def delivered(self) -> None:
        """Until nothing is on its way any more."""
        while self._under_way:
            if self._idle.is_set():
                self._idle = trio.Event()
            await self._idle.wait()
