"""Sensors of the computer: heat, battery, other programs on its GPUs, and time.

PEER_SENSORS names a JSON file that is read instead, each time: {"temperature": 84, "plugged": false, "gpu_used_by_others":
62, "now": "2026-11-23T18:00", "uptime": 3600.5}, all of them optional.  Tests write it, and so may a program that knows
better.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from peer.rests.keeper import SensorReading

# ------------------------------------------------------------------------------------------------------------------------
# The NVIDIA GPUs of this computer: their temperature, and the load by other programs on GPUs where peers compute.
#
# NVML as documented: `nvmlDeviceGetProcessUtilization` gives, for each process, the share of a second in which one of its
# kernels ran.  Processes are told apart by their IDs, so in a container, which numbers them anew, the load is unknown.


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
        found = [_quietly(nvml.nvmlDeviceGetTemperature, each, nvml.NVML_TEMPERATURE_GPU) for _, each in self._handles()]
        return max((float(each) for each in found if each is not None), default=None)

    def used_by_others(self) -> float | None:
        """Return the load by other programs, in percent of about a second, on the GPU with a trainer that they use most."""
        found = [self._others_on(index, handle) for index, handle in self._handles()]
        return max((each for each in found if each is not None), default=None)

    def _others_on(self, index: int, handle: Any) -> float | None:
        nvml = self._open()
        computing = _quietly(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        if not any(self._is_ours(each.pid) for each in computing):
            return None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._seen.get(index, 0))
        except nvml.NVMLError_NotFound:  # nobody used the GPU
            return 0.0
        except Exception:  # a card that does not count, or is lost
            return None
        self._seen[index] = max((each.timeStamp for each in samples), default=self._seen.get(index, 0))
        return float(min(100, sum(each.smUtil for each in samples if not self._is_ours(each.pid))))

    def _handles(self) -> list[tuple[int, Any]]:
        """Return the GPUs that answer: a lost one must not hide the others."""
        nvml = self._open()
        if nvml is None:
            return []
        indices = range(_quietly(nvml.nvmlDeviceGetCount) or 0)
        found = [(index, _quietly(nvml.nvmlDeviceGetHandleByIndex, index)) for index in indices]
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


def _quietly(ask: Any, *words: Any) -> Any:
    """Return a driver's answer; None if it fails."""
    try:
        return ask(*words)
    except Exception:  # as when a card falls off the bus
        return None


# ------------------------------------------------------------------------------------------------------------------------


SUPPLIES = Path("/sys/class/power_supply")
MAX_FILE_BYTES = 1 << 16


class Sensors:
    """Sensors of this computer.  `read` blocks for milliseconds if all is well, and never raises; None is unknown."""

    def __init__(self, environment: Mapping[str, str] = os.environ, supplies: Path = SUPPLIES) -> None:
        self._file, self._supplies = environment.get("PEER_SENSORS"), supplies
        self._gpus = Gpus()

    def read(self) -> SensorReading:
        """Return the present reading."""
        if self._file:
            return _from_file(Path(self._file))
        gpus = self._gpus
        return SensorReading(
            datetime.now(), time.monotonic(), gpus.hottest(), plugged(self._supplies), gpus.used_by_others()
        )

    def now(self) -> datetime:
        """Return only local time; blocks if a file stands for the sensors."""
        return _from_file(Path(self._file)).now if self._file else datetime.now()


def plugged(supplies: Path) -> bool | None:
    """Return True with power from outside; None if the computer has no battery of its own, or if it is unknown (Linux).

    A battery that is full, or held below that, is not discharging: the computer runs on its supply.
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
    """Read a file that stands for the sensors; an unreadable file, or a special one, gives no values."""
    told: Any = None
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                told = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        pass
    told = told if isinstance(told, dict) else {}
    is_plugged = told.get("plugged")
    return SensorReading(
        _time(told.get("now")),
        time.monotonic() if (uptime := _number(told.get("uptime"))) is None else uptime,
        _number(told.get("temperature")),
        is_plugged if isinstance(is_plugged, bool) else None,
        _number(told.get("gpu_used_by_others")),
    )


def _number(told: object) -> float | None:
    return float(told) if isinstance(told, float) or (type(told) is int and abs(told) < 1e6) else None


def _time(told: object) -> datetime:
    try:
        now = datetime.fromisoformat(told).replace(tzinfo=None) if isinstance(told, str) else datetime.now()
    except ValueError:
        return datetime.now()
    return now if 2000 <= now.year < 3000 else datetime.now()
