"""Task groups: the tasks that a component's methods start while its `run` is running."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVarTuple

import trio

log = logging.getLogger(__name__)
Arguments = TypeVarTuple("Arguments")


class TaskGroup:
    """A nursery for methods that are called from outside its block, at any time.

    A nursery kept in an attribute may be closed although the attribute is set: it closes when its block and its last task
    have ended, and the code after the block runs later.  A group stops taking tasks within the block, so it never raises.
    """

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    @property
    def is_open(self) -> bool:
        """True while tasks can be started."""
        return self._nursery is not None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[trio.Nursery]:
        """Take tasks inside the context, which yields their nursery.  Keep it open as long as tasks are started."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                yield nursery
            finally:
                self._nursery = None

    def start(self, task: Callable[[*Arguments], Awaitable[object]], *arguments: *Arguments) -> bool:
        """Start a task; return False if the group is not open."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(task, *arguments)
        return True


async def guarded(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Await `work`, which another peer has caused: an error ends the task, not its nursery.  Raises only cancellation."""
    try:
        await work(*arguments)
    except Exception as error:  # noqa: BLE001 - see above
        log.debug("%r failed: %r", work, error)
