"""Tasks that arriving bytes start, and that the sender does not wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVarTuple

import trio

# ------------------------------------------------------------------------------------------------------------------------
# What a round has begun and does not end with it: deliveries, for which a leaver waits before it says goodbye.


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


# ------------------------------------------------------------------------------------------------------------------------


Arguments = TypeVarTuple("Arguments")


class Background:
    """Runs tasks while it is open.  Before and after, it starts none."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    @property
    def is_open(self) -> bool:
        """Whether tasks are started."""
        return self._nursery is not None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.Nursery]:
        """Within, tasks are started, in the nursery that this gives."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                yield nursery
        finally:
            self._nursery = None

    def start(self, task: Callable[[*Arguments], Awaitable[None]], *arguments: *Arguments) -> None:
        """Start a task, if open."""
        if self._nursery is not None:
            self._nursery.start_soon(task, *arguments)
