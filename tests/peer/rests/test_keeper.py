"""A peer that is let rest and go on, and sensors that hang."""

from __future__ import annotations

import threading
from dataclasses import replace

import trio
import trio.testing

from peer.rests.keeper import LOOK_S, READ_TIMEOUT_S, RestJudge, RestKeeper, RestLimits, SensorReading, in_a_thread
from protocol.wire.presence import WhyIdle
from tests.peer.rests.test_judge import CALM, EVERYTHING, NOON


class Node:
    def __init__(self) -> None:
        self.told: list[tuple[str, WhyIdle]] = []

    def rest(self, why: WhyIdle, detail: str) -> None:
        self.told.append(("rest", why))

    def go_on(self, why: WhyIdle) -> None:
        self.told.append(("go on", why))


def test_changes_alone_are_told_and_the_new_reason_before_the_end_of_the_old() -> None:
    unplugged = replace(CALM, plugged=False)
    night = replace(unplugged, now=NOON.replace(hour=20))
    readings = iter([CALM, unplugged, unplugged, night, None, *[CALM] * 100])
    node = Node()

    async def ask() -> SensorReading | None:
        await trio.lowlevel.checkpoint()
        return next(readings)

    async def main() -> None:
        with trio.move_on_after(7 * LOOK_S):
            await RestKeeper(RestJudge(EVERYTHING), ask, node).run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert node.told == [
        ("rest", WhyIdle.ON_BATTERY),
        ("rest", WhyIdle.OUTSIDE_HOURS),
        ("go on", WhyIdle.ON_BATTERY),
        ("go on", WhyIdle.OUTSIDE_HOURS),
    ]


def test_a_setting_that_changes_is_judged_by_at_once() -> None:
    node = Node()

    async def ask() -> SensorReading | None:
        await trio.lowlevel.checkpoint()
        return replace(CALM, plugged=False, temperature=81.0)

    async def main() -> None:
        keeper, told = RestKeeper(RestJudge(RestLimits()), ask, node), list[int]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            await trio.sleep(LOOK_S / 2)
            for limits in (RestLimits(on_battery=True), RestLimits(None, 80.0, True), RestLimits(None, 90.0, True)):
                keeper.change(limits)
                await trio.sleep(LOOK_S / 20)
                told.append(len(node.told))
            nursery.cancel_scope.cancel()
        assert told == [2, 3, 4]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert node.told == [
        ("rest", WhyIdle.ON_BATTERY),
        ("go on", WhyIdle.ON_BATTERY),
        ("rest", WhyIdle.TOO_HOT),
        ("go on", WhyIdle.TOO_HOT),
    ]


def test_a_driver_that_hangs_is_asked_once_and_keeps_nobody_waiting() -> None:
    answered, asked = threading.Event(), list[None]()

    def read() -> SensorReading:
        asked.append(None)
        answered.wait()
        return CALM

    async def main() -> None:
        ask, begun = in_a_thread(read), trio.current_time()
        assert [await ask() for _ in range(3)] == [None] * 3
        assert round(trio.current_time() - begun) == 3 * READ_TIMEOUT_S and len(asked) <= 1

    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))
    finally:
        answered.set()


def test_what_answers_is_asked_again() -> None:
    async def main() -> None:
        ask = in_a_thread(lambda: CALM)
        assert [await ask() for _ in range(3)] == [CALM] * 3

    trio.run(main)
