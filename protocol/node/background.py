"""Tasks that arriving bytes start, and that the sender does not wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVarTuple

import trio

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
