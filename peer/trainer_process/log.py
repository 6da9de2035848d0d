"""Output of the trainer process, kept in a file of limited size.

The file is for a person who asks why a trainer died; its last line is also part of the reason that is shown.
"""

from __future__ import annotations

from pathlib import Path

import trio

from peer.files import RotatingFile

MAX_LOG_BYTES = 1 << 20
"""Limit on the bytes of the file, and of the previous file, whose name ends in .1."""
MAX_LINE = 300
DRAIN_DEADLINE_S = 1.0


class TrainerLog:
    """Log that appends to `path` and remembers the last line."""

    def __init__(self, path: Path) -> None:
        self._file = RotatingFile(path.parent, [path.name, f"{path.name}.1"], MAX_LOG_BYTES)
        self._drained = trio.Event()
        self.last_line = ""

    async def drain(self, output: trio.abc.ReceiveStream) -> None:
        """Store a process's output until it ends."""
        self._drained = trio.Event()
        self.last_line = ""
        tail = b""
        async with output:
            async for data in output:
                self._append(data)
                tail = (tail + data)[-4096:]
                lines = [line for line in tail.decode(errors="replace").splitlines() if line.strip()]
                self.last_line = lines[-1].strip()[:MAX_LINE] if lines else ""
        self._drained.set()

    async def drained(self) -> None:
        """Wait at most `DRAIN_DEADLINE_S` for a dead process's last output, because its child may keep the output open."""
        with trio.move_on_after(DRAIN_DEADLINE_S):
            await self._drained.wait()

    def _append(self, data: bytes) -> None:
        try:
            self._file.append(data)
        except OSError:
            return  # a full disk must not stop the training; only the last line is kept
