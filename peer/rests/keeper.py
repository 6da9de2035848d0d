"""Looks at the sensors now and then, and lets the peer rest and go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio

from peer.rests.judge import Judge, Reading, Rest
from protocol.wire.presence import WhyIdle

LOOK_S = 2.0
READ_TIMEOUT_S = 10.0
"""A driver may hang."""

Ask = Callable[[], Awaitable[Reading | None]]


class Resting(Protocol):
    """Who rests: the node."""

    def rest(self, why: WhyIdle, detail: str) -> None:
        """Compute nothing for this reason."""

    def go_on(self, why: WhyIdle) -> None:
        """This reason is over."""


def in_a_thread(read: Callable[[], Reading]) -> Ask:
    """Asks what blocks; None when it does not answer in time.  It is not asked again before it has answered."""
    one_at_a_time = trio.CapacityLimiter(1)

    async def ask() -> Reading | None:
        with trio.move_on_after(READ_TIMEOUT_S):
            wait = partial(trio.to_thread.run_sync, read, limiter=one_at_a_time)
            found: Reading = await wait(abandon_on_cancel=True)  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
            return found
        return None

    return ask


async def keep_rests(judge: Judge, ask: Ask, peer: Resting) -> None:
    """Until cancelled.  ask: what is so now; None, which is no reason to rest, when nobody can tell."""
    resting: Rest | None = None
    while True:
        reading = await ask()
        rest = judge.judge(reading) if reading is not None else None
        if rest is not None and rest != resting:
            peer.rest(rest.why, rest.detail)
        if resting is not None and (rest is None or rest.why is not resting.why):
            peer.go_on(resting.why)  # after the new one, so that nothing is begun between the two
        resting = rest
        await trio.sleep(LOOK_S)
