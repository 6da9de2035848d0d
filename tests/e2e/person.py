"""Somebody at a shell, who types commands as they stand in the guides."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence

from tests.e2e.swarm import PATIENCE_S, Swarm
from tests.e2e.terminal import Terminal


class Person:
    """Types commands in a folder of its own, on a computer that knows nothing of Manyhands.

    peer: what stands for the command of that name.  terminals: opened so far.
    """

    def __init__(self, swarm: Swarm, name: str, peer: Sequence[str] = (sys.executable, "-m", "peer")) -> None:
        self.swarm, self.folder, self.terminals = swarm, swarm.place(name), 0
        self.peer = list(peer)
        self.environment = {**swarm.environment, "PEER_DATA_DIR": str(self.folder / "data")}
        self.environment["PEER_CONFIG"] = str(self.folder / "peer.toml")
        evening = self.folder / "sensors.json"
        evening.write_text('{"now": "2026-11-23T19:00"}')
        self.environment["PEER_SENSORS"] = str(evening)

    def types(self, words: list[str], code: int = 0) -> str:
        """To the end of the command; what it printed."""
        done = subprocess.run(
            self.command(words), env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout

    def command(self, words: list[str]) -> list[str]:
        assert words[0] == "peer"
        local = ["--local"] if words[1] in ("join", "doctor") else []
        return [*self.peer, *words[1:], *local]

    def opens(self, words: list[str]) -> Terminal:
        """In a terminal of its own, with the interface."""
        shell = f"cd {shlex.quote(str(self.folder))}; {shlex.join(self.command(words))}; echo exit code $?; cat"
        self.terminals += 1
        place = self.swarm.place(f"{self.folder.name}-{self.terminals}")
        return Terminal(place, ("sh", "-c", shell), self.environment, (120, 40))

    def looks(self, words: list[str], text: str) -> None:
        """Opens a view, until `text` is in it."""
        with self.opens(words) as terminal:
            terminal.until(text)
            terminal.type("q")
            terminal.until("exit code 0")
