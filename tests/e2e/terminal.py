"""A terminal without a screen, in which real programs draw: keys go in, the text on it is read."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_S = 300.0
"""Says nothing about time, only ends a test that hangs."""
LOOK_S = 0.1


def why_not() -> str:
    """Why there is no such terminal here; empty where there is."""
    return "" if shutil.which("tmux") else "tmux is not installed"


def unwrapped(text: str) -> str:
    """Without spaces and ends of lines: where a line breaks depends on how long paths are."""
    return "".join(text.split())


class Terminal:
    """Runs `command` in a window of its own.  A context: what runs in it ends with it."""

    def __init__(self, folder: Path, command: Sequence[str], environment: Mapping[str, str], size: tuple[int, int]) -> None:
        self._socket, self._size = str(folder / "tmux"), size
        self._command, self._environment = list(command), dict(environment)

    def __enter__(self) -> Self:
        columns, rows = self._size
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), *self._command)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._tmux("kill-server", check=False)

    def type(self, *keys: str) -> None:
        """Keys by tmux's names: "p", "Escape", "C-c"."""
        for key in keys:
            self._tmux("send-keys", key)

    def screen(self) -> str:
        """The text on it; empty when the program has ended."""
        return self._tmux("capture-pane", "-p", check=False)

    def until(self, text: str) -> str:
        """Wait until `text` is on the screen; the whole of it then."""
        end = time.monotonic() + PATIENCE_S
        while text not in (screen := self.screen()):
            assert time.monotonic() < end, f"not on the screen within {PATIENCE_S:.0f} s: {text}\n{screen}"
            time.sleep(LOOK_S)
        return screen

    def until_ended(self) -> None:
        """Wait until the program has ended."""
        end = time.monotonic() + PATIENCE_S
        while self._tmux("list-sessions", check=False):
            assert time.monotonic() < end, f"still there\n{self.screen()}"
            time.sleep(LOOK_S)

    def _tmux(self, *words: str, check: bool = True) -> str:
        environment = {**self._environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            ["tmux", "-S", self._socket, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout if done.returncode == 0 else ""
