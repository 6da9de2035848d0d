"""The interface for running blocking work outside the event loop, and who is charged for the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Protocol

Offload = Callable[..., Awaitable[Any]]
"""Callable that runs a blocking function without blocking the event loop: `trio.to_thread.run_sync`, or inline."""


class Payer(Protocol):
    """The account of a peer whose question is being answered."""

    async def run(self, offload: Offload, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking function as `offload` does, once the peer may have a thread, and charge the peer for it."""
        ...


PAYER: ContextVar[Payer | None] = ContextVar("payer", default=None)
"""The account that pays for blocking work in the current task, and in tasks that it starts; None for our own work."""


def charged(offload: Offload) -> Offload:
    """Return `offload`, except that blocking work for an answer waits its turn and is charged to the asker."""

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        payer = PAYER.get()
        return await (offload(function, *arguments) if payer is None else payer.run(offload, function, *arguments))

    return run
