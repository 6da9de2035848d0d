"""Sensors of the computer: heat, battery, other programs on its GPUs, people at it, and time.

PEER_SENSORS names a JSON file that replaces the sensors at each reading: {"temperature": 84, "plugged": false,
"gpu_used_by_others": 62, "unused_s": 600, "now": "2026-11-23T18:00", "uptime": 3600.5}, all of them optional.  Tests write
the file; a program with better sensors can write it as well.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from peer.environment import ChildKind, child_environment
from peer.files import read_json
from peer.rests.keeper import SensorReading

# ------------------------------------------------------------------------------------------------------------------------
# Seconds since somebody last used this computer: its desktops, and its terminals, also those of remote logins.
#
# Sources, each of which may be missing:
#
# * logind lists the sessions, and tells for each one whether its desktop reports it as idle, and since when. A desktop that
# never reports anything looks used all the time.  * A desktop of our own user answers queries: GNOME and KDE over the
# session's bus, X11 through the program xprintidle.  * A terminal's time of access is that of its last key press (Linux).
#
# Programs are called with fixed words, and their answers are read as numbers.


ANSWER_S = 2.0
MAX_ANSWER = 1 << 16
MOST_SESSIONS = 64
TERMINALS = (Path("/dev"), Path("/dev/pts"))
_TERMINAL = re.compile(r"tty\d+|\d+")
GRAPHICAL = ("x11", "wayland", "mir")
DESKTOPS = (
    ("org.gnome.Mutter.IdleMonitor", "/org/gnome/Mutter/IdleMonitor/Core", "org.gnome.Mutter.IdleMonitor", "GetIdletime"),
    ("org.kde.ksmserver", "/ScreenSaver", "org.freedesktop.ScreenSaver", "GetSessionIdleTime"),
)
"""Services of desktops that know the milliseconds since the last input, with object, interface and method."""

Run = Callable[[Sequence[str]], str | None]
"""Function that runs a program and returns what it printed; None if it is missing, fails, or takes too long."""


def run_program(words: Sequence[str]) -> str | None:
    """Run a program without a shell, as `Run` describes it.  Blocking."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            timeout=ANSWER_S,
            check=True,
            stdin=subprocess.DEVNULL,
            env=child_environment(ChildKind.DESKTOP_QUERY),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout[:MAX_ANSWER].decode("utf-8", "replace")


class Presence:
    """Sensor of people at this computer.  `unused_s` blocks for milliseconds if all is well, and never raises."""

    def __init__(
        self,
        run: Run = run_program,
        terminals: Iterable[Path] = TERMINALS,
        now: Callable[[], float] = time.time,
        user: int | None = None,
    ) -> None:
        self._run, self._terminals, self._now = run, tuple(terminals), now
        self._user = os.getuid() if user is None else user

    def unused_s(self) -> float:
        """Return the seconds since the last input; infinite if nobody is logged in and no terminal is open."""
        return min((*self._of_sessions(), *self._of_terminals()), default=float("inf"))

    def _of_sessions(self) -> list[float]:
        """Return the seconds since the last input for each desktop; 0 for a desktop that does not tell."""
        listed = (self._run(("loginctl", "list-sessions", "--no-legend")) or "").splitlines()[:MOST_SESSIONS]
        names = [line.split()[0] for line in listed if line.split() and line.split()[0].isalnum()]
        if not names:
            return []
        wanted = "--property=Type,Class,User,IdleHint,IdleSinceHint"
        shown = self._run(("loginctl", "show-session", wanted, *names)) or ""
        sessions = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in shown.split("\n\n")]
        return [
            self._of_desktop(session)
            for session in sessions
            if session.get("Type") in GRAPHICAL and session.get("Class") == "user"
        ]

    def _of_desktop(self, session: dict[str, str]) -> float:
        if session.get("IdleHint") == "yes" and (since := session.get("IdleSinceHint", "")).isdigit():
            return max(0.0, self._now() - int(since) / 1e6)
        if session.get("User") != str(self._user):
            return 0.0
        for service in DESKTOPS:
            answer = re.fullmatch(r"[tu] (\d+)\s*", self._run(("busctl", "--user", "call", *service)) or "")
            if answer:
                return int(answer[1]) / 1e3
        told = self._run(("xprintidle",)) if session.get("Type") == "x11" else None
        return int(told) / 1e3 if told and told.strip().isdecimal() else 0.0

    def _of_terminals(self) -> list[float]:
        """Return the seconds since the last key press in each terminal."""
        now, found = self._now(), list[float]()
        for folder in self._terminals:
            with suppress(OSError):
                for path in folder.iterdir():
                    if _TERMINAL.fullmatch(path.name):
                        with suppress(OSError):
                            found.append(max(0.0, now - path.stat().st_atime))
        return found


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
            except Exception:  # without library, driver or card, each version raises other errors
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
