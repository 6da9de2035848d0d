"""The interface for running blocking work outside the event loop, and for charging it to a peer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import trio

Offload = Callable[..., Awaitable[Any]]
"""Callable that runs a blocking function without blocking the event loop: `trio.to_thread.run_sync`, or inline."""


class Payer(Protocol):
    """The account of a peer whose question is being answered."""

    async def run(self, offload: Offload, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking function as `offload` does, once the peer may have a thread, and charge the peer for it."""
        ...


_PAYER: ContextVar[tuple[trio.lowlevel.Task, Payer] | None] = ContextVar("payer", default=None)
"""The account that pays for blocking work, and the only task in which it pays: tasks that a task starts copy its context."""


@contextmanager
def charging(payer: Payer) -> Iterator[None]:
    """Charge `payer` for blocking work of the current task inside the context.

    Tasks that the current task starts work for us: they may outlast the answer, others may wait for them, and a liar in debt
    must not delay its own conviction.  So an answer awaits all work for which its asker should pay.
    """
    before = _PAYER.set((trio.lowlevel.current_task(), payer))
    try:
        yield
    finally:
        _PAYER.reset(before)


def charged(offload: Offload) -> Offload:
    """Return `offload`, except that blocking work for an answer waits its turn and is charged to the asker."""

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        paying = _PAYER.get()
        if paying is None or paying[0] is not trio.lowlevel.current_task():
            return await offload(function, *arguments)
        return await paying[1].run(offload, function, *arguments)

    return run


def one_at_a_time(offload: Offload) -> Offload:
    """Return `offload`, except that one piece of work runs at a time.

    To charge for such work, write `charged(one_at_a_time(offload))`: a task that waits for its turn then keeps no other task
    waiting.
    """
    lock = trio.Lock()

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        async with lock:
            return await offload(function, *arguments)

    return run
