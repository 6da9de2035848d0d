"""Sensors of the computer: heat, battery, other programs on its GPUs, people at it, and time.

PEER_SENSORS names a JSON file that replaces the sensors at each reading: {"temperature": 84, "plugged": false,
"gpu_used_by_others": 62, "unused_s": 600, "now": "2026-11-23T18:00", "uptime": 3600.5}, all of them optional.  Tests write
the file, and so may a program with better sensors.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import trio

from peer.files import read_json, write_atomically
from peer.rests.keeper import Rest, SensorReading
from peer.rests.presence import Presence
from protocol.events.status import WhyIdle
from protocol.formatting import duration, size

# ------------------------------------------------------------------------------------------------------------------------
# Monthly quota: counts the month's traffic, and reports when the quota is used up.


# ------------------------------------------------------------------------------------------------------------------------
# Traffic of this peer in the present calendar month, sent and received, kept in a file of its data directory.
#
# Months are in local time.  The file is written whole or not at all, so it survives any death; a killed process
# loses only the traffic since the last write.


FILE = "month.json"
MAX_COUNT_BYTES = 4096
MOST_BYTES = 1 << 62
_MONTH = re.compile(r"\d{4}-\d{2}")


class MonthTraffic:
    """Traffic of a month.  bytes: in `month`, sent and received together.  Both are as of the last `count`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.month, self.bytes = _read(self._path)
        self._kept = (self.month, self.bytes)

    def count(self, moved: int, now: datetime) -> None:
        """Add `moved` bytes, transferred until `now` (local time)."""
        if self.month != (month := f"{now:%Y-%m}"):
            self.month, self.bytes = month, 0
        self.bytes += moved

    def keep(self) -> None:
        """Write the count if it has changed.  Blocking.  Raises OSError."""
        now = (self.month, self.bytes)
        if now != self._kept:
            write_atomically(self._path, json.dumps({"month": now[0], "bytes": now[1]}).encode())
            self._kept = now


def next_month(now: datetime) -> datetime:
    """Return the beginning of the month after `now`."""
    return datetime(now.year + now.month // 12, now.month % 12 + 1, 1)


def _read(path: Path) -> tuple[str, int]:
    """Return the stored month and bytes; ("", 0) if the file is missing or malformed."""
    told = read_json(path, MAX_COUNT_BYTES)
    month, moved = (told.get("month"), told.get("bytes")) if isinstance(told, dict) else (None, None)
    if isinstance(month, str) and _MONTH.fullmatch(month) and type(moved) is int and 0 <= moved <= MOST_BYTES:
        return month, moved
    return "", 0


# ------------------------------------------------------------------------------------------------------------------------


LOOK_S = 1.0
KEEP_S = 60.0
"""Seconds between two writes of the count: a killed process loses at most the traffic of this time."""

Clock = Callable[[], Awaitable[datetime | None]]
"""Function that returns local time; None if it is unknown."""


class MonthlyQuota:
    """Monthly quota of a peer.  quota: bytes, sent and received together; None for no quota."""

    def __init__(self, traffic: MonthTraffic, clock: Clock, quota: Callable[[], int | None]) -> None:
        self.traffic, self._clock, self._quota = traffic, clock, quota

    async def rest(self) -> Rest | None:
        """Return the reason to rest now, with its end; None while part of this month's quota is left."""
        return self._judge(await self._now())

    async def watch(self, moved: Callable[[], int], spent: Callable[[Rest], None]) -> None:
        """Count traffic until cancelled.  moved: returns the bytes since the start of the network, which has just begun.

        spent: called once, with the reason to rest, when the quota is used up.
        """
        counted, kept_at, was_spent = 0, trio.current_time(), False
        try:
            while True:
                now, total = await self._now(), moved()
                self.traffic.count(total - counted, now)
                counted = total
                rest = self._judge(now)
                if rest is not None and not was_spent:
                    was_spent, kept_at = True, -math.inf  # a process killed now must not begin the month's rest anew
                    spent(rest)
                if trio.current_time() - kept_at >= KEEP_S:
                    kept_at = trio.current_time()
                    with suppress(OSError):  # the store reports a full disk
                        await trio.to_thread.run_sync(self.traffic.keep)
                await trio.sleep(LOOK_S)
        finally:
            self.traffic.bytes += moved() - counted
            with suppress(OSError):
                self.traffic.keep()

    async def _now(self) -> datetime:
        return await self._clock() or datetime.now()

    def _judge(self, now: datetime) -> Rest | None:
        self.traffic.count(0, now)
        quota = self._quota()
        if quota is None or self.traffic.bytes < quota:
            return None
        begins = f"{next_month(now):%Y-%m-%d}"
        return Rest(
            WhyIdle.MONTHLY_QUOTA,
            f"this month's {size(quota)} (monthly_quota) are used up: resumes at {begins}, or with a larger quota",
        )


# ------------------------------------------------------------------------------------------------------------------------
# Pause that a person asked for: its end is on disk, so that a restarted peer continues the pause.
#
# Times are wall clock, in unix seconds: a pause ends at the time that was shown to the person, also across restarts.


FILE_NAME = "pause.json"
MAX_PAUSE_BYTES = 1024
MAX_PAUSE_S = 366 * 86_400.0


@dataclass(frozen=True)
class TimedPause:
    """A pause.  until: unix seconds, infinite for a pause that only `peer resume` ends."""

    until: float = math.inf

    def left_s(self, now: float) -> float:
        """Return the seconds until the pause ends by itself; at most the longest pause, in case the clock was set back."""
        return min(max(0.0, self.until - now), MAX_PAUSE_S) if math.isfinite(self.until) else math.inf

    def end(self, now: float) -> str:
        """Describe the end, such as "until `peer resume`" or "until 18:30 (in 25 min)"."""
        if not math.isfinite(self.until):
            return "until `peer resume`"
        left = self.left_s(now)
        clock = time.strftime("%H:%M" if left < 86_400 else "%A %d %B, %H:%M", time.localtime(now + left))
        return f"until {clock} (in {duration(left)})"

    def detail(self, now: float) -> str:
        """Return the sentence of a paused peer."""
        if not math.isfinite(self.until):
            return "paused by you; `peer resume` ends the pause"
        return f"paused by you {self.end(now).partition(' (')[0]}; `peer resume` ends the pause early"


def keep_pause(folder: Path, pause: TimedPause | None) -> None:
    """Write the pause into the data directory; None removes it.  Blocking.  Raises OSError."""
    if pause is None:
        (folder / FILE_NAME).unlink(missing_ok=True)
    else:
        until = pause.until if math.isfinite(pause.until) else None
        write_atomically(folder / FILE_NAME, json.dumps({"until": until}).encode())


def kept_pause(folder: Path, now: float) -> TimedPause | None:
    """Return the pause that an earlier process stored; None if it is missing or over, or the file is damaged.  Blocking."""
    try:
        until = read_json(folder / FILE_NAME, MAX_PAUSE_BYTES)["until"]
        pause = TimedPause(math.inf if until is None else float(until))
        if until is not None and not math.isfinite(pause.until):
            return None
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return pause if pause.left_s(now) > 0 else None


# ------------------------------------------------------------------------------------------------------------------------
# The NVIDIA GPUs of this computer: their temperature, and the load by other programs on GPUs where peers compute.
#
# NVML as documented: `nvmlDeviceGetProcessUtilization` gives, for each process, the share of a second in which one of its
# kernels ran.  Processes are identified by their IDs; a container renumbers them, so the load is unknown there.


TRAINER = b"\0-m\0trainer\0"
"""Part of a trainer's command line, as in /proc."""
MAX_COMMAND_BYTES = 4096


def is_trainer(pid: int) -> bool:
    """Return True for a trainer's process: ours, or another peer's, which has as much right to the GPU (Linux)."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            return TRAINER in file.read(MAX_COMMAND_BYTES)
    except OSError:
        return False


class Gpus:
    """Queries of the GPUs.  Each blocks for milliseconds if all is well, and never raises: None if the answer is unknown."""

    def __init__(self, nvml: Any = None, is_ours: Callable[[int], bool] = is_trainer) -> None:
        self._nvml, self._tried = nvml, nvml is not None
        self._is_ours = is_ours
        self._seen: dict[int, int] = {}
        """Time of the newest sample (µs), by GPU."""

    def hottest(self) -> float | None:
        """Return the temperature of the hottest GPU in Celsius."""
        nvml = self._open()
        found = [quietly(nvml.nvmlDeviceGetTemperature, each, nvml.NVML_TEMPERATURE_GPU) for _, each in self._handles()]
        return max((float(each) for each in found if each is not None), default=None)

    def used_by_others(self) -> float | None:
        """Return the load by other programs, in percent of about a second, on the GPU with a trainer that they use most."""
        found = [self._others_on(index, handle) for index, handle in self._handles()]
        return max((each for each in found if each is not None), default=None)

    def _others_on(self, index: int, handle: Any) -> float | None:
        nvml = self._open()
        computing = quietly(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        if not any(self._is_ours(each.pid) for each in computing):
            return None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen.get(index, 0))
        except nvml.NVMLError_NotFound:  # no process used the GPU
            return 0.0
        except Exception:  # a card without this counter, or a lost one
            return None
        self._seen[index] = max((each.timeStamp for each in samples), default=self._seen.get(index, 0))
        return float(min(100, sum(each.smUtil for each in samples if not self._is_ours(each.pid))))

    def _handles(self) -> list[tuple[int, Any]]:
        """Return the GPUs that answer: a lost GPU must not hide the others."""
        nvml = self._open()
        if nvml is None:
            return []
        indices = range(quietly(nvml.nvmlDeviceGetCount) or 0)
        found = [(index, quietly(nvml.nvmlDeviceGetHandleByIndex, index)) for index in indices]
        return [(index, handle) for index, handle in found if handle is not None]

    def _open(self) -> Any:
        """Return the library; None if it does not work."""
        if not self._tried:
            self._tried = True
            try:
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml
            except Exception:  # no library, no driver, no card: each version raises other errors
                self._nvml = None
        return self._nvml


def quietly(ask: Callable[..., Any], *words: Any) -> Any:
    """Return a driver's answer; None if it fails."""
    try:
        return ask(*words)
    except Exception:  # a counter that the card lacks, or a lost card: each version raises other errors
        return None


# ------------------------------------------------------------------------------------------------------------------------


SUPPLIES = Path("/sys/class/power_supply")
MAX_FILE_BYTES = 1 << 16


PEOPLE_S = 10.0
"""Seconds for which an answer about people counts, because it takes several programs."""


class Sensors:
    """Sensors of this computer.  `read` blocks for milliseconds if all is well, and never raises; None means unknown.

    asks_for_people: True while a reading has to say when somebody last used the computer.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        supplies: Path = SUPPLIES,
        asks_for_people: Callable[[], bool] = lambda: False,
        presence: Callable[[], float] | None = None,
    ) -> None:
        self._file, self._supplies = environment.get("PEER_SENSORS"), supplies
        self._gpus = Gpus()
        self._asks_for_people, self._presence = asks_for_people, presence or Presence().unused_s
        self._unused: tuple[float, float] | None = None
        """Time of the last answer about people, and the answer."""

    def read(self) -> SensorReading:
        """Return the present reading."""
        if self._file:
            return _from_file(Path(self._file))
        gpus = self._gpus
        return SensorReading(
            datetime.now(),
            time.monotonic(),
            gpus.hottest(),
            plugged(self._supplies),
            gpus.used_by_others(),
            self._unused_s(),
        )

    def _unused_s(self) -> float | None:
        if not self._asks_for_people():
            self._unused = None
            return None
        now = time.monotonic()
        if self._unused is None or now - self._unused[0] >= PEOPLE_S:
            self._unused = now, self._presence()
        return self._unused[1] + now - self._unused[0]

    def now(self) -> datetime:
        """Return local time alone; blocks if a file replaces the sensors."""
        return _from_file(Path(self._file)).now if self._file else datetime.now()


def plugged(supplies: Path) -> bool | None:
    """Return True on external power; None if the computer has no battery of its own, or if this is unknown (Linux).

    A battery that is full, or held below full charge, does not discharge: the computer runs on external power.
    """
    try:
        found = [_supply(path) for path in supplies.iterdir()]
    except OSError:
        return None
    if any(each["type"] != "Battery" and each["online"] == "1" for each in found):
        return True
    states = {each["status"] for each in found if each["type"] == "Battery" and each["scope"] != "Device"}
    return None if not states else "Discharging" not in states


def _supply(folder: Path) -> dict[str, str]:
    """Return a supply's attributes; empty for missing ones.  A mouse's battery has the scope Device."""
    told = {}
    for name in ("type", "online", "status", "scope"):
        try:
            told[name] = (folder / name).read_text(encoding="utf-8", errors="replace")[:64].strip()
        except OSError:
            told[name] = ""
    return told


def _from_file(path: Path) -> SensorReading:
    """Read a file that replaces the sensors; an unreadable or special file gives no values."""
    told = read_json(path, MAX_FILE_BYTES)
    told = told if isinstance(told, dict) else {}
    is_plugged = told.get("plugged")
    return SensorReading(
        _time(told.get("now")),
        time.monotonic() if (uptime := _number(told.get("uptime"))) is None else uptime,
        _number(told.get("temperature")),
        is_plugged if isinstance(is_plugged, bool) else None,
        _number(told.get("gpu_used_by_others")),
        _number(told.get("unused_s")),
    )


def _number(told: object) -> float | None:
    return float(told) if isinstance(told, float) or (type(told) is int and abs(told) < 1e6) else None


def _time(told: object) -> datetime:
    try:
        now = datetime.fromisoformat(told).replace(tzinfo=None) if isinstance(told, str) else datetime.now()
    except ValueError:
        return datetime.now()
    return now if 2000 <= now.year < 3000 else datetime.now()
