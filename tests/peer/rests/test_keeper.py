"""A peer that is let rest and go on, and sensors that hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import trio
import trio.testing

from peer.rests.judge import Judge, Reading
from peer.rests.keeper import LOOK_S, READ_TIMEOUT_S, keep_rests
from protocol.wire.presence import WhyIdle
from tests.peer.rests.test_judge import CALM, EVERYTHING, NOON


class Node:
    def __init__(self) -> None:
        self.told: list[tuple[str, WhyIdle]] = []

    def rest(self, why: WhyIdle, detail: str) -> None:
        self.told.append(("rest", why))

    def go_on(self, why: WhyIdle) -> None:
        self.told.append(("go on", why))


def keep(read: Callable[[], Reading], looks: int) -> list[tuple[str, WhyIdle]]:
    node = Node()

    async def main() -> None:
        with trio.move_on_after(looks * LOOK_S):
            await keep_rests(Judge(EVERYTHING), read, node)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))
    return node.told


def test_the_keeper_tells_changes_alone_and_the_new_reason_before_the_end_of_the_old() -> None:
    unplugged = replace(CALM, plugged=False)
    night = replace(unplugged, now=NOON.replace(hour=20))
    readings = iter([CALM, unplugged, unplugged, night, CALM, *[CALM] * 100])
    assert keep(lambda: next(readings), 6) == [
        ("rest", WhyIdle.ON_BATTERY),
        ("rest", WhyIdle.OUTSIDE_HOURS),
        ("go on", WhyIdle.ON_BATTERY),
        ("go on", WhyIdle.OUTSIDE_HOURS),
    ]


def test_a_driver_that_hangs_is_asked_once_and_keeps_nobody_from_leaving() -> None:
    answered, asked = threading.Event(), list[float]()

    def read() -> Reading:
        asked.append(0.0)
        answered.wait()
        return CALM

    try:
        assert keep(read, int(5 * READ_TIMEOUT_S / LOOK_S)) == [] and len(asked) == 1
    finally:
        answered.set()
