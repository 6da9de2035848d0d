"""Process of the peer that the interface starts; the peer leaves when the interface ends.

A pipe from this process to the peer's standard input closes however this process ends (a closed terminal, a lost SSH
connection, kill -9), and then the peer leaves (`peer.daemon.daemon`).  A byte in the pipe tells the peer to keep running.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from peer.environment import ChildKind, child_environment

MAX_LAST_WORDS = 4000
"""Last characters of the peer's standard error that are shown when it has ended."""
END_DEADLINE_S = 5.0


@dataclass(frozen=True)
class Ending:
    """Exit of the peer.  code: exit code, 128 + signal if killed.  words: its standard error; empty without an error."""

    code: int
    words: str


class OwnPeer:
    """Process `peer` with these arguments, in its own session, so that only the interface gets the terminal's signals."""

    def __init__(self, words: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process ends
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peer", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env=child_environment(ChildKind.SAME_PROGRAM),
            start_new_session=True,
        )
        self._asked_to_leave = 0

    @property
    def leaving(self) -> bool:
        """True after `leave` was called."""
        return self._asked_to_leave > 0

    def ending(self) -> Ending | None:
        """Return the peer's exit, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._said.seek(0)
        words = self._said.read(1 << 20).decode("utf-8", "replace").strip()
        return Ending(128 - code if code < 0 else code, words[-MAX_LAST_WORDS:])

    def leave(self) -> None:
        """Ask the peer to leave; the second call asks it to leave at once, and the third kills it."""
        if self._process.poll() is None:
            self._asked_to_leave += 1
            self._process.send_signal(signal.SIGINT if self._asked_to_leave <= 2 else signal.SIGKILL)

    def detach(self) -> None:
        """Let the peer keep running after this process has ended."""
        assert self._process.stdin is not None, "its standard input is a pipe"
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
        except BrokenPipeError:
            return  # the peer has ended; `ending` reports it
