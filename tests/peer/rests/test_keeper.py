"""A peer that is let rest and go on, and sensors that hang."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime

import trio
import trio.testing

from peer.rests.keeper import (
    LEAST_REST_S,
    LOOK_S,
    READ_TIMEOUT_S,
    RestJudge,
    RestKeeper,
    RestLimits,
    SensorReading,
    in_a_thread,
)
from peer.settings.values import read_schedule
from protocol.events.status import WhyIdle

# ------------------------------------------------------------------------------------------------------------------------
# Each reason to rest by itself: when it begins, what it says, and when it ends.


NOON = datetime(2026, 11, 23, 12, 0)
CALM = SensorReading(NOON, 0.0, temperature=50.0, plugged=True)
EVERYTHING = RestLimits(read_schedule("09:00-17:00"), 80.0)


def why(judge: RestJudge, reading: SensorReading) -> WhyIdle | None:
    rest = judge.judge(reading)
    return rest.why if rest is not None else None


def test_outside_its_hours_it_says_until_when() -> None:
    judge, night = RestJudge(EVERYTHING), replace(CALM, now=NOON.replace(hour=20))
    rest = judge.judge(night)
    assert rest is not None and rest.why is WhyIdle.OUTSIDE_HOURS
    assert rest.detail == "rests until Tuesday 09:00: these are not its hours (09:00-17:00)"
    assert judge.judge(CALM) is None


def test_it_rests_while_somebody_uses_the_computer_if_it_is_asked_to() -> None:
    judge = RestJudge(RestLimits(unused_for=600.0))
    rest = judge.judge(replace(CALM, unused_s=599.0))
    assert rest is not None and rest.why is WhyIdle.IN_USE
    assert rest.detail == "somebody uses this computer: resumes 10 min after the last key (unused_for)"
    assert judge.judge(replace(CALM, unused_s=600.0)) is None
    assert judge.judge(CALM) is None, "nobody knows"
    assert RestJudge(RestLimits()).judge(replace(CALM, unused_s=0.0)) is None


def test_on_battery_unless_it_may() -> None:
    unplugged = replace(CALM, plugged=False)
    rest = RestJudge(RestLimits()).judge(unplugged)
    assert rest is not None and rest.why is WhyIdle.ON_BATTERY and "plugged in" in rest.detail
    assert RestJudge(RestLimits(on_battery=True)).judge(unplugged) is None


def test_heat_has_a_second_limit_and_a_least_time() -> None:
    judge = RestJudge(EVERYTHING)
    at = [(81.0, 0.0), (75.0, 1.0), (77.0, LEAST_REST_S), (75.0, LEAST_REST_S + 1), (77.0, LEAST_REST_S + 2)]
    found = [why(judge, replace(CALM, at=seconds, temperature=value)) for value, seconds in at]
    assert found == [WhyIdle.TOO_HOT] * 3 + [None, None]
    assert why(judge, replace(CALM, at=999.0, temperature=81.0)) is WhyIdle.TOO_HOT
    assert why(judge, replace(CALM, at=999.5, temperature=None)) is None, "the sensor is gone"


def test_others_on_the_gpu_go_first_where_the_owner_wants_it() -> None:
    assert RestJudge(RestLimits()).judge(replace(CALM, gpu_used_by_others=90.0)) is None
    judge = RestJudge(RestLimits(yield_gpu=True))
    at = [(19.0, 0.0), (21.0, 1.0), (0.0, 2.0), (6.0, 99.0), (5.0, 100.0), (6.0, 101.0)]
    found = [why(judge, replace(CALM, at=seconds, gpu_used_by_others=value)) for value, seconds in at]
    assert found == [None, *[WhyIdle.GPU_WANTED] * 3, None, None]
    assert why(judge, replace(CALM, at=200.0, gpu_used_by_others=50.0)) is WhyIdle.GPU_WANTED
    judge.change(RestLimits())
    assert why(judge, replace(CALM, at=201.0, gpu_used_by_others=50.0)) is None


# ------------------------------------------------------------------------------------------------------------------------


class Permit:
    def __init__(self) -> None:
        self.told: list[tuple[str, WhyIdle]] = []

    def suspend(self, why: WhyIdle, detail: str) -> None:
        self.told.append(("suspend", why))

    def restore(self, why: WhyIdle) -> None:
        self.told.append(("restore", why))


def test_changes_alone_are_told_and_the_new_reason_before_the_end_of_the_old() -> None:
    unplugged = replace(CALM, plugged=False)
    night = replace(unplugged, now=NOON.replace(hour=20))
    readings = iter([CALM, unplugged, unplugged, night, None, *[CALM] * 100])
    permit = Permit()

    async def ask() -> SensorReading | None:
        await trio.lowlevel.checkpoint()
        return next(readings)

    async def main() -> None:
        with trio.move_on_after(7 * LOOK_S):
            await RestKeeper(RestJudge(EVERYTHING), ask, permit).run()  # type: ignore[arg-type]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert permit.told == [
        ("suspend", WhyIdle.ON_BATTERY),
        ("suspend", WhyIdle.OUTSIDE_HOURS),
        ("restore", WhyIdle.ON_BATTERY),
        ("restore", WhyIdle.OUTSIDE_HOURS),
    ]


def test_a_setting_that_changes_is_judged_by_at_once() -> None:
    permit = Permit()

    async def ask() -> SensorReading | None:
        await trio.lowlevel.checkpoint()
        return replace(CALM, plugged=False, temperature=81.0)

    async def main() -> None:
        keeper, told = RestKeeper(RestJudge(RestLimits()), ask, permit), list[int]()  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            await trio.sleep(LOOK_S / 2)
            for limits in (RestLimits(on_battery=True), RestLimits(None, 80.0, True), RestLimits(None, 90.0, True)):
                keeper.change(limits)
                await trio.sleep(LOOK_S / 20)
                told.append(len(permit.told))
            nursery.cancel_scope.cancel()
        assert told == [2, 3, 4]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert permit.told == [
        ("suspend", WhyIdle.ON_BATTERY),
        ("restore", WhyIdle.ON_BATTERY),
        ("suspend", WhyIdle.TOO_HOT),
        ("restore", WhyIdle.TOO_HOT),
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
