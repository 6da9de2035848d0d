"""Seconds since somebody last used this computer: its desktops, and its terminals, also those of remote logins.

Sources, each of which may be missing:

* logind lists the sessions, and says of each whether its desktop reports it as idle, and since when. A desktop that never
  reports anything looks used all the time.
* A desktop of our own user is asked itself: GNOME and KDE over the session's bus, X11 through the program xprintidle.
* A terminal's time of access is that of its last key press (Linux).

Programs are called with fixed words, and their answers are read as numbers.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from peer.environment import ChildKind, child_environment

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
        """Return the seconds for each desktop; 0 for a desktop that says nothing."""
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
