"""Keeper of rests: reads the sensors regularly, makes the peer rest, and ends the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

import trio

from peer.settings.values import Schedule
from protocol.events.status import WhyIdle
from protocol.formatting import duration
from protocol.membership.activity import WorkPermit

# ------------------------------------------------------------------------------------------------------------------------
# Decision to rest, with the reason: compares the sensors' readings with a person's limits.
#
# Pure.  Only one reason holds at a time: the first in the order of `RestJudge.judge`, with a sentence about the condition
# that ends the rest.  Measured values have two limits, and a rest has a least length, so that a value near the limit does
# not switch the peer back and forth.


COOLER_C = 5.0
"""Degrees below the limit at which a peer that rests because of heat goes on."""
LEAST_REST_S = 60.0
BUSY_PERCENT, FREE_PERCENT = 20.0, 5.0
"""Load by other programs, in percent of a peer's GPU, above which the peer rests, and at or below which it goes on."""


@dataclass(frozen=True)
class RestLimits:
    """Limits that a person set; None for a limit that is not set.  max_temperature: Celsius.  unused_for: seconds."""

    schedule: Schedule | None = None
    max_temperature: float | None = None
    on_battery: bool = False
    yield_gpu: bool = False
    unused_for: float | None = None


@dataclass(frozen=True)
class SensorReading:
    """Reading of the sensors; None for a missing sensor.

    now: local time.  at: seconds on a clock that never jumps.  temperature: temperature of the hottest GPU in Celsius.
    plugged: True on external power.  gpu_used_by_others: load by other programs in percent, on a GPU on which a peer
    computes.  unused_s: seconds since somebody last used the computer.
    """

    now: datetime
    at: float
    temperature: float | None = None
    plugged: bool | None = None
    gpu_used_by_others: float | None = None
    unused_s: float | None = None


@dataclass(frozen=True)
class Rest:
    """Rest of a peer.  why: the reason.  detail: a sentence with the condition that ends it."""

    why: WhyIdle
    detail: str


def planned_rest(limits: RestLimits, now: datetime, is_portable: bool) -> str:
    """Describe when a peer rests, or by the clock resumes, under these limits, as "from Monday 08:00, on battery".

    Empty if it never rests.

    is_portable: True if the computer has a battery.
    """
    clock = ""
    if (schedule := limits.schedule) is not None:
        change = schedule.next_change(now)
        if schedule.allows(change) is not schedule.allows(now):
            clock = f"{'from' if schedule.allows(now) else 'resumes at'} {change:%A %H:%M}"
    planned = [
        text
        for holds, text in (
            (bool(clock), clock),
            (limits.unused_for is not None, "while somebody uses this computer"),
            (is_portable and not limits.on_battery, "on battery"),
            (limits.yield_gpu, "while other programs use the GPU"),
            (limits.max_temperature is not None, f"above {limits.max_temperature or 0:.0f} °C"),
        )
        if holds
    ]
    return ", ".join(planned)


class _Threshold:
    """Threshold with hysteresis.

    The threshold is passed from the first value above `most` until a value is at or below `enough`, and for at least
    `LEAST_REST_S`.
    """

    def __init__(self, most: float | None, enough: float | None) -> None:
        self.most, self.enough = most, enough
        self._since: float | None = None

    def is_passed(self, value: float | None, at: float) -> bool:
        """Return True while the threshold is passed.  A value that is not measured does not pass it."""
        if self.most is None or self.enough is None or value is None:
            self._since = None
        elif self._since is None:
            self._since = at if value > self.most else None
        elif value <= self.enough and at - self._since >= LEAST_REST_S:
            self._since = None
        return self._since is not None


class RestJudge:
    """Judge of readings, with the state that the hysteresis needs."""

    def __init__(self, limits: RestLimits) -> None:
        self.limits = RestLimits()
        self._heat, self._others = _Threshold(None, None), _Threshold(None, None)
        self.change(limits)

    def change(self, limits: RestLimits) -> None:
        """Judge by these limits from now on."""
        most = limits.max_temperature
        if most != self.limits.max_temperature:
            self._heat = _Threshold(most, most - COOLER_C if most is not None else None)
        if limits.yield_gpu != self.limits.yield_gpu:
            self._others = _Threshold(BUSY_PERCENT, FREE_PERCENT) if limits.yield_gpu else _Threshold(None, None)
        self.limits = limits

    def judge(self, reading: SensorReading) -> Rest | None:
        """Return the reason to rest now; None to compute."""
        limits, heat = self.limits, self._heat
        is_hot = heat.is_passed(reading.temperature, reading.at)
        is_wanted = self._others.is_passed(reading.gpu_used_by_others, reading.at)  # both keep state at each reading
        if (schedule := limits.schedule) is not None and not schedule.allows(reading.now):
            until = schedule.next_change(reading.now).strftime("%A %H:%M")
            return Rest(WhyIdle.OUTSIDE_HOURS, f"rests until {until}: these are not its hours ({schedule.text})")
        if reading.plugged is False and not limits.on_battery:
            end = "resumes when it is plugged in, or with `peer config on_battery yes`"
            return Rest(WhyIdle.ON_BATTERY, f"on battery: {end}")
        if limits.unused_for is not None and reading.unused_s is not None and reading.unused_s < limits.unused_for:
            end = f"resumes {duration(limits.unused_for)} after the last key (unused_for)"
            return Rest(WhyIdle.IN_USE, f"somebody uses this computer: {end}")
        if is_hot:
            return Rest(WhyIdle.TOO_HOT, f"a GPU was hotter than {heat.most:.0f} °C: resumes at {heat.enough:.0f} °C")
        if is_wanted:
            end = f"resumes when they use less than {FREE_PERCENT:.0f} % of it (yield_gpu)"
            return Rest(WhyIdle.GPU_WANTED, f"other programs use the GPU: {end}")
        return None


# ------------------------------------------------------------------------------------------------------------------------


LOOK_S = 2.0
READ_TIMEOUT_S = 10.0
"""Seconds for a reading, because a driver may hang."""

T = TypeVar("T")
Ask = Callable[[], Awaitable[SensorReading | None]]


def in_a_thread(read: Callable[[], T]) -> Callable[[], Awaitable[T | None]]:
    """Return a function that calls `read` in a thread, one call at a time; None after `READ_TIMEOUT_S`."""
    one_at_a_time = trio.CapacityLimiter(1)

    async def ask() -> T | None:
        with trio.move_on_after(READ_TIMEOUT_S):
            wait = partial(trio.to_thread.run_sync, read, limiter=one_at_a_time)
            found: T = await wait(abandon_on_cancel=True)  # type: ignore[call-arg]  # libp2p brings stale stubs of trio
            return found
        return None

    return ask


class RestKeeper:
    """Keeper of one peer's rests, while `run` runs; a reason to rest suspends the permit.

    ask: returns the present reading; None (unknown) is not a reason to rest.
    """

    def __init__(self, judge: RestJudge, ask: Ask, permit: WorkPermit) -> None:
        self._judge, self._ask, self._permit = judge, ask, permit
        self._changed = trio.Event()
        self._reading: SensorReading | None = None

    @property
    def planned(self) -> str:
        """Description of the rests that the limits plan; empty if there are none, and before the first reading."""
        last = self._reading
        return planned_rest(self._judge.limits, last.now, last.plugged is not None) if last is not None else ""

    def change(self, limits: RestLimits) -> None:
        """Judge by these limits, at once."""
        self._judge.change(limits)
        self._changed.set()

    async def run(self) -> None:
        """Suspend and restore the permit, until cancelled."""
        resting: Rest | None = None
        while True:
            self._changed = trio.Event()
            reading = await self._ask()
            rest = self._judge.judge(reading) if reading is not None else None
            self._reading = reading or self._reading
            if rest is not None and rest != resting:
                self._permit.suspend(rest.why, rest.detail)
            if resting is not None and (rest is None or rest.why is not resting.why):
                self._permit.restore(resting.why)  # after the new reason was set, so that no work begins in between
            resting = rest
            with trio.move_on_after(LOOK_S):
                await self._changed.wait()
