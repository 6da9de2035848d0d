"""Looks at the sensors now and then, and lets the peer rest and go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import trio

from peer.rests.judge import Judge, Reading, Rest
from protocol.wire.presence import WhyIdle

LOOK_S = 2.0
READ_TIMEOUT_S = 10.0
"""A driver may hang.  Then nothing is known, and it is not asked again before it has answered."""


class Resting(Protocol):
    """Who rests: the node."""

    def rest(self, why: WhyIdle, detail: str) -> None:
        """Compute nothing for this reason."""

    def go_on(self, why: WhyIdle) -> None:
        """This reason is over."""


async def keep_rests(judge: Judge, read: Callable[[], Reading], peer: Resting) -> None:
    """Until cancelled.  read: blocks, and raises nothing."""
    resting: Rest | None = None
    one_at_a_time = trio.CapacityLimiter(1)
    while True:
        rest: Rest | None = None
        with trio.move_on_after(READ_TIMEOUT_S):
            wait = partial(trio.to_thread.run_sync, read, limiter=one_at_a_time)
            reading = await wait(abandon_on_cancel=True)  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
            rest = judge.judge(reading)
        if rest is not None and rest != resting:
            peer.rest(rest.why, rest.detail)
        if resting is not None and (rest is None or rest.why is not resting.why):
            peer.go_on(resting.why)  # after the new one, so that nothing is begun between the two
        resting = rest
        await trio.sleep(LOOK_S)
