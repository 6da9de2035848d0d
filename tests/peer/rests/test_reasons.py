"""Batteries of all kinds, and what stands for the sensors."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from peer.daemon.requests import Controls
from peer.rests.keeper import Rest
from peer.rests.reasons import (
    FILE,
    FILE_NAME,
    KEEP_S,
    LOOK_S,
    MAX_PAUSE_S,
    MonthlyQuota,
    MonthTraffic,
    TimedPause,
    keep_pause,
    kept_pause,
    next_month,
)
from peer.rests.sensors import Gpus, Sensors, is_trainer, plugged
from protocol.events.status import WhyIdle
from tests.peer.rests.test_keeper import NOON
from tests.protocol.example_status import status

# ------------------------------------------------------------------------------------------------------------------------
# What NVML tells, with cards that are lost, or tell nothing.


OURS = 7


@dataclass
class Process:
    """In either of NVML's lists."""

    pid: int
    smUtil: int = 0
    timeStamp: int = 0


class NotFound(Exception): ...


class Driver:
    """Four cards: one is lost, one tells nothing, on the last two something runs."""

    NVML_TEMPERATURE_GPU = 0
    NVMLError_NotFound = NotFound

    def __init__(self, computing: list[int], *samples: list[Process] | None) -> None:
        self.computing, self.samples, self.asked = computing, list(samples), list[int]()

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 0:
            raise RuntimeError("GPU is lost")
        return index

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        if handle == 1:
            raise RuntimeError("not supported")
        return 40 + handle

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Process]:
        return [Process(pid) for pid in self.computing] if handle == 3 else [Process(99)]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[Process]:
        assert handle == 3, "on the others we do not compute"
        self.asked.append(since)
        told = self.samples.pop(0)
        if told is None:
            raise NotFound
        return told


def gpus(driver: Driver) -> Gpus:
    return Gpus(driver, lambda pid: pid == OURS)


def test_a_card_that_is_lost_does_not_hide_the_others() -> None:
    assert gpus(Driver([])).hottest() == 43.0


def test_what_others_use_of_the_card_on_which_we_compute() -> None:
    driver = Driver([OURS, 99], [Process(OURS, 90, 5), Process(99, 30, 5), Process(98, 20, 6)], None, [])
    asked = gpus(driver)
    assert [asked.used_by_others() for _ in range(3)] == [50.0, 0.0, 0.0]
    assert driver.asked == [0, 6, 6], "each sample counts once"


def test_where_we_are_not_seen_nobody_can_tell() -> None:
    assert gpus(Driver([99])).used_by_others() is None, "in a container processes have other numbers"
    assert gpus(Driver([OURS])).used_by_others() is None, "no counter: the fourth card raises"


def test_a_trainer_is_told_by_its_command_line() -> None:
    assert not is_trainer(os.getpid()) and not is_trainer(1 << 30)


# ------------------------------------------------------------------------------------------------------------------------
# What is counted in a month, what survives, and when the quota is used up.


NOVEMBER = datetime(2026, 11, 23, 12, 0)
DECEMBER = datetime(2026, 12, 1, 0, 0)
GB = 10**9


def test_a_month_is_counted_from_its_first_day_to_its_last(tmp_path: Path) -> None:
    traffic = MonthTraffic(tmp_path)
    for moved, now in ((5, NOVEMBER), (7, NOVEMBER.replace(day=30, hour=23, minute=59)), (11, DECEMBER)):
        traffic.count(moved, now)
    assert (traffic.month, traffic.bytes) == ("2026-12", 11)
    assert next_month(NOVEMBER) == DECEMBER and next_month(DECEMBER) == datetime(2027, 1, 1)


def test_it_is_kept_and_a_file_that_is_none_says_nothing(tmp_path: Path) -> None:
    traffic = MonthTraffic(tmp_path)
    traffic.count(5 * GB, NOVEMBER)
    traffic.keep()
    again = MonthTraffic(tmp_path)
    assert (again.month, again.bytes) == ("2026-11", 5 * GB)
    written = (tmp_path / FILE).stat().st_mtime_ns
    again.keep()
    assert (tmp_path / FILE).stat().st_mtime_ns == written, "nothing has changed"
    for wrong in (
        "",
        "[]",
        "[" * 5000,
        '{"month": "2026-11", "bytes": -1}',
        '{"month": 3, "bytes": 1}',
        '{"month": "2026-11"}',
    ):
        (tmp_path / FILE).write_text(wrong)
        assert MonthTraffic(tmp_path).bytes == 0


@pytest.fixture(autouse=True)
def _at_once(no_threads: None) -> None:
    """The count is written in a thread."""


class Table:
    """now, moved, quota: what the clock, the network and the person say."""

    def __init__(self, folder: Path, quota: int | None) -> None:
        self.now, self.moved, self.limit, self.told = NOVEMBER, 0, quota, list[Rest]()
        self.traffic = MonthTraffic(folder)
        self.quota = MonthlyQuota(self.traffic, self.clock, lambda: self.limit)

    async def clock(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self.now

    def live(self, then: Callable[[], None], seconds: float = 10 * LOOK_S) -> None:
        """Some seconds; `then` happens in their middle."""

        async def main() -> None:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.quota.watch, lambda: self.moved, self.told.append)
                    await trio.sleep(seconds / 2)
                    then()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_at_the_quota_it_rests_and_says_until_when(tmp_path: Path) -> None:
    table = Table(tmp_path, 2 * GB)
    table.live(lambda: setattr(table, "moved", 2 * GB))
    (rest,) = table.told
    assert rest.why is WhyIdle.MONTHLY_QUOTA
    assert "2.0 GB (monthly_quota)" in rest.detail and "resumes at 2026-12-01, or with a larger quota" in rest.detail
    assert MonthTraffic(tmp_path).bytes == 2 * GB
    later = Table(tmp_path, 2 * GB)
    assert trio.run(later.quota.rest) == rest, "also after a restart"
    later.limit = 3 * GB
    assert trio.run(later.quota.rest) is None
    later.limit, later.now = 2 * GB, DECEMBER
    assert trio.run(later.quota.rest) is None


def test_the_count_is_written_once_a_minute_at_the_quota_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, written = Table(tmp_path, None), list[int]()
    monkeypatch.setattr("peer.rests.reasons.write_atomically", lambda path, data: written.append(json.loads(data)["bytes"]))

    def live(seconds: float) -> None:
        async def main() -> None:
            moved = itertools.count()
            with trio.move_on_after(seconds + LOOK_S / 2):
                await table.quota.watch(lambda: next(moved), table.told.append)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    live(600.0)
    assert len(written) == 11, "ten minutes, and the end"
    table.limit = table.traffic.bytes + 30
    written.clear()
    live(40.0)
    assert len(table.told) == 1 and len(written) == 2 and written[0] == table.limit


def test_a_disk_that_takes_nothing_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("peer.rests.reasons.write_atomically", full)
    table = Table(tmp_path, 2 * GB)
    table.live(lambda: setattr(table, "moved", 2 * GB), 4 * KEEP_S)
    assert len(table.told) == 1


# ------------------------------------------------------------------------------------------------------------------------
# A pause with its end: told, kept in the data directory, and over when its hour has come.


NOW = 1_700_000_000.0


def test_a_pause_says_when_it_ends() -> None:
    clock = time.strftime("%H:%M", time.localtime(NOW + 1500))
    assert TimedPause(NOW + 1500).end(NOW) == f"until {clock} (in 25 min)"
    assert TimedPause(NOW + 1500).detail(NOW) == f"paused by you until {clock}; `peer resume` ends the pause early"
    assert TimedPause().end(NOW) == "until `peer resume`"
    assert TimedPause().detail(NOW) == "paused by you; `peer resume` ends the pause"
    day = time.strftime("%A", time.localtime(NOW + 3 * 86_400))
    assert TimedPause(NOW + 3 * 86_400).end(NOW).startswith(f"until {day} ")


def test_a_pause_is_kept_until_it_is_over_or_taken_back(tmp_path: Path) -> None:
    keep_pause(tmp_path, TimedPause(NOW + 60))
    assert kept_pause(tmp_path, NOW) == TimedPause(NOW + 60)
    assert kept_pause(tmp_path, NOW + 61) is None
    keep_pause(tmp_path, TimedPause())
    assert kept_pause(tmp_path, NOW + 1e9) == TimedPause(math.inf)
    keep_pause(tmp_path, None)
    keep_pause(tmp_path, None)
    assert kept_pause(tmp_path, NOW) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"until": "soon"}', '{"until": NaN}', '{"until": []}', "[" * 2000, f'{{"until": 1{"0" * 400}}}']
)
def test_a_damaged_file_is_no_pause(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert kept_pause(tmp_path, NOW) is None


def test_a_clock_that_was_set_back_makes_no_pause_endless(tmp_path: Path) -> None:
    assert TimedPause(NOW + 1e12).left_s(NOW) == MAX_PAUSE_S


class Peer:
    """Notes what it is asked."""

    def __init__(self, paused: TimedPause | None = None) -> None:
        self.done, self.paused = list[object](), paused

    async def pause(self, pause: TimedPause) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append(pause)

    async def resume(self) -> None:
        await trio.lowlevel.checkpoint()
        self.paused = None
        self.done.append("resumed")

    def notice(self, level: str, text: str) -> None:
        self.done.append(text)

    def status(self) -> Any:
        return status()


def test_a_pause_that_an_earlier_life_left_ends_at_its_hour() -> None:
    peer: Any = Peer(TimedPause(time.time() + 0.0))

    async def main() -> None:
        controls = Controls(peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(controls.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert peer.done == ["resumed", "the pause is over"]


# ------------------------------------------------------------------------------------------------------------------------


def supply(folder: Path, name: str, **attributes: str) -> None:
    (folder / name).mkdir()
    for attribute, value in attributes.items():
        (folder / name / attribute).write_text(value + "\n")


@pytest.mark.parametrize(
    ("supplies", "is_plugged"),
    [
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, None),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}, "ADP1": {"type": "Mains", "online": "0"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Unknown"}, "ucsi": {"type": "USB", "online": "1"}}, True),
        ({"AC": {"type": "Mains", "online": "1"}}, True),
    ],
)
def test_only_a_battery_of_the_computer_that_discharges_is_a_battery(
    supplies: dict[str, dict[str, str]], is_plugged: bool | None, tmp_path: Path
) -> None:
    for name, attributes in supplies.items():
        supply(tmp_path, name, **attributes)
    assert plugged(tmp_path) is is_plugged


def test_a_file_stands_for_the_sensors_and_says_nothing_when_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "sensors.json"
    sensors = Sensors({"PEER_SENSORS": str(path)})
    path.write_text(json.dumps({"temperature": 84, "plugged": False, "now": NOON.isoformat(), "gpu_used_by_others": 62}))
    reading = sensors.read()
    assert (reading.temperature, reading.plugged, reading.now, reading.gpu_used_by_others) == (84, False, NOON, 62)
    wrong = ["", "{", "[]", "[" * 5000, '{"temperature": "hot", "plugged": 1, "now": "then"}']
    wrong += ['{"temperature": ' + "9" * 500 + "}", '{"now": "9999-12-31T23:59"}', '{"temperature": true, "now": 3}']
    for text in wrong:
        path.write_text(text)
        reading = sensors.read()
        assert (reading.temperature, reading.plugged) == (None, None) and 2000 < reading.now.year < 3000
    path.unlink()
    assert sensors.read().temperature is None
    os.mkfifo(path)
    assert sensors.read().temperature is None, "it does not wait for somebody who writes"
