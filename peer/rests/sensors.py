"""What the computer tells of heat, battery and time.

PEER_SENSORS names a JSON file that is read instead, each time: {"temperature": 84, "plugged": false, "now":
"2026-11-23T18:00"}, all of them optional.  Tests write it, and so may a program that knows better.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from peer.rests.judge import Reading

SUPPLIES = Path("/sys/class/power_supply")
MAX_FILE_BYTES = 1 << 16


class Sensors:
    """`read` blocks, for some milliseconds where all is well, and never raises: what cannot be read is not known."""

    def __init__(self, environment: Mapping[str, str] = os.environ, supplies: Path = SUPPLIES) -> None:
        self._file, self._supplies = environment.get("PEER_SENSORS"), supplies
        self._nvml: Any = None
        self._tried = False

    def read(self) -> Reading:
        """What is so now."""
        if self._file:
            return _from_file(Path(self._file))
        return Reading(datetime.now(), time.monotonic(), self._hottest(), plugged(self._supplies))

    def now(self) -> datetime:
        """Local time alone; blocks where a file stands for the sensors."""
        return _from_file(Path(self._file)).now if self._file else datetime.now()

    def _hottest(self) -> float | None:
        """Of all NVIDIA GPUs of this computer that tell it."""
        nvml = self._open()
        if nvml is None:
            return None
        found = []
        for index in range(_quietly(nvml.nvmlDeviceGetCount) or 0):
            handle = _quietly(nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is not None:
                found.append(_quietly(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU))
        return max((float(each) for each in found if each is not None), default=None)

    def _open(self) -> Any:
        """The library, or None where it does not work."""
        if not self._tried:
            self._tried = True
            try:
                import pynvml

                pynvml.nvmlInit()
                self._nvml = pynvml
            except Exception:  # no library, no driver, no card: each version of it says so in its own way
                self._nvml = None
        return self._nvml


def _quietly(ask: Any, *words: Any) -> Any:
    """What a driver answers; None when it cannot."""
    try:
        return ask(*words)
    except Exception:  # one card that is lost must not hide the others
        return None


def plugged(supplies: Path) -> bool | None:
    """Whether there is power from outside; None where the computer has no battery of its own, or nobody can tell (Linux).

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
    """Its attributes; empty where there is none of that name.  A mouse's battery has the scope Device."""
    told = {}
    for name in ("type", "online", "status", "scope"):
        try:
            told[name] = (folder / name).read_text(encoding="utf-8", errors="replace")[:64].strip()
        except OSError:
            told[name] = ""
    return told


def _from_file(path: Path) -> Reading:
    """A file that cannot be read, or is no ordinary one, says nothing."""
    told: Any = None
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                told = json.loads(file.read(MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        pass
    told = told if isinstance(told, dict) else {}
    temperature, is_plugged = told.get("temperature"), told.get("plugged")
    return Reading(
        _time(told.get("now")),
        time.monotonic(),
        temperature if isinstance(temperature, float) or type(temperature) is int and abs(temperature) < 1e6 else None,
        is_plugged if isinstance(is_plugged, bool) else None,
    )


def _time(told: object) -> datetime:
    try:
        now = datetime.fromisoformat(told).replace(tzinfo=None) if isinstance(told, str) else datetime.now()
    except ValueError:
        return datetime.now()
    return now if 2000 <= now.year < 3000 else datetime.now()
