"""Looks at the sensors now and then, and lets the peer rest and go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import trio

from peer.rests.judge import Judge, Limits, Reading, Rest
from protocol.wire.presence import WhyIdle

LOOK_S = 2.0
READ_TIMEOUT_S = 10.0
"""A driver may hang."""

T = TypeVar("T")
Ask = Callable[[], Awaitable[Reading | None]]


class Resting(Protocol):
    """Who rests: the node."""

    def rest(self, why: WhyIdle, detail: str) -> None:
        """Compute nothing for this reason."""

    def go_on(self, why: WhyIdle) -> None:
        """This reason is over."""


def in_a_thread(read: Callable[[], T]) -> Callable[[], Awaitable[T | None]]:
    """Asks what blocks; None when it does not answer in time.  It is not asked again before it has answered."""
    one_at_a_time = trio.CapacityLimiter(1)

    async def ask() -> T | None:
        with trio.move_on_after(READ_TIMEOUT_S):
            wait = partial(trio.to_thread.run_sync, read, limiter=one_at_a_time)
            found: T = await wait(abandon_on_cancel=True)  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
            return found
        return None

    return ask


class RestKeeper:
    """`run` it.  ask: what is so now; None, which is no reason to rest, when nobody can tell."""

    def __init__(self, judge: Judge, ask: Ask, peer: Resting) -> None:
        self._judge, self._ask, self._peer = judge, ask, peer
        self._changed = trio.Event()

    def change(self, limits: Limits) -> None:
        """Judge by these, at once."""
        self._judge.change(limits)
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        resting: Rest | None = None
        while True:
            self._changed = trio.Event()
            reading = await self._ask()
            rest = self._judge.judge(reading) if reading is not None else None
            if rest is not None and rest != resting:
                self._peer.rest(rest.why, rest.detail)
            if resting is not None and (rest is None or rest.why is not resting.why):
                self._peer.go_on(resting.why)  # after the new one, so that nothing is begun between the two
            resting = rest
            with trio.move_on_after(LOOK_S):
                await self._changed.wait()
