"""What the computer tells of heat, battery, other programs on its GPUs, and time.

PEER_SENSORS names a JSON file that is read instead, each time: {"temperature": 84, "plugged": false,
"gpu_used_by_others": 62, "now": "2026-11-23T18:00", "uptime": 3600.5}, all of them optional.  Tests write it, and so may a
program that knows better.
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

from peer.rests.gpus import Gpus
from peer.rests.judge import Reading

SUPPLIES = Path("/sys/class/power_supply")
MAX_FILE_BYTES = 1 << 16


class Sensors:
    """`read` blocks, for some milliseconds where all is well, and never raises: what cannot be read is not known."""

    def __init__(self, environment: Mapping[str, str] = os.environ, supplies: Path = SUPPLIES) -> None:
        self._file, self._supplies = environment.get("PEER_SENSORS"), supplies
        self._gpus = Gpus()

    def read(self) -> Reading:
        """What is so now."""
        if self._file:
            return _from_file(Path(self._file))
        gpus = self._gpus
        return Reading(datetime.now(), time.monotonic(), gpus.hottest(), plugged(self._supplies), gpus.used_by_others())

    def now(self) -> datetime:
        """Local time alone; blocks where a file stands for the sensors."""
        return _from_file(Path(self._file)).now if self._file else datetime.now()


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
    is_plugged = told.get("plugged")
    return Reading(
        _time(told.get("now")),
        time.monotonic() if (uptime := _number(told.get("uptime"))) is None else uptime,
        _number(told.get("temperature")),
        is_plugged if isinstance(is_plugged, bool) else None,
        _number(told.get("gpu_used_by_others")),
    )


def _number(told: object) -> float | None:
    return float(told) if isinstance(told, float) or type(told) is int and abs(told) < 1e6 else None


def _time(told: object) -> datetime:
    try:
        now = datetime.fromisoformat(told).replace(tzinfo=None) if isinstance(told, str) else datetime.now()
    except ValueError:
        return datetime.now()
    return now if 2000 <= now.year < 3000 else datetime.now()
