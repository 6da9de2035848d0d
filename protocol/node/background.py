"""Background tasks: work that arriving bytes start and the sender does not wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVarTuple

import trio

# ------------------------------------------------------------------------------------------------------------------------
# Deliveries that a round starts and that outlive it.  A leaving peer waits for them before it says goodbye.


class PendingDeliveries:
    """Deliveries under way in one life of a node.  nursery: outlives the rounds."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self._under_way = 0
        self._idle = trio.Event()

    @contextmanager
    def delivery(self) -> Iterator[None]:
        """Count a delivery to a peer as under way inside the context."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def delivered(self) -> None:
        """Wait until no delivery is under way."""
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
        """True while tasks can be started."""
        return self._nursery is not None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.Nursery]:
        """Start tasks inside the context, in the nursery that it yields."""
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
