"""The sandbox's side of a child process: sends its order, reads its output and status, and ends it in time.

The launcher itself keeps the deadline.  The second deadline here is for a launcher that was killed or is stuck.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

GRACE_S = 30.0
"""Seconds beyond the deadline in which the launcher ends everything and reports."""
MAX_STATUS_BYTES = 4096
READ_BYTES = 1 << 16


@dataclass
class ChildExit:
    """End of a child process.  failed: the step of confinement that failed, and why.  late: True if its time ran out."""

    failed: tuple[str, str] | None = None
    started: bool = False
    exit_code: int | None = None
    late: bool = False
    overflowed: bool = False
    output: bytes = b""
    errors: bytes = b""


@contextmanager
def order_file(order: Mapping[str, Any]) -> Iterator[int]:
    """Yield a descriptor, of a file without a name, from which the launcher reads its order."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(order).encode())
        file.seek(0)
        yield file.fileno()


@dataclass
class Child:
    """Launcher process, and our ends of its streams.  Leaving the context kills the launcher, also after an exception."""

    process: subprocess.Popen[bytes]
    status: int
    _read: dict[str, bytearray] = field(
        default_factory=lambda: {"output": bytearray(), "errors": bytearray(), "status": bytearray()}
    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()
        os.close(self.status)

    def watch(self, wall_s: float, output_bytes: int) -> ChildExit:
        """Read until the launcher is done, and return its end."""
        assert self.process.stdout and self.process.stderr
        last = time.monotonic() + wall_s + GRACE_S
        ended = ChildExit()
        with selectors.DefaultSelector() as selector:
            streams = {"output": self.process.stdout.fileno(), "errors": self.process.stderr.fileno(), "status": self.status}
            for name, descriptor in streams.items():
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ, name)
            while "status" in (key.data for key in selector.get_map().values()):
                ready = selector.select(max(0.0, last - time.monotonic()))
                if not ready:
                    ended.late = True
                    break
                for key, _ in ready:
                    if self._take(key.data, key.fd, output_bytes) == 0:
                        selector.unregister(key.fd)
                ended.overflowed = ended.overflowed or self._overflowed(output_bytes)
                if ended.overflowed:
                    self.process.terminate()
            for name in ("output", "errors"):
                while not ended.overflowed and self._take(name, streams[name], output_bytes):
                    ended.overflowed = self._overflowed(output_bytes)
        return self._told(ended, output_bytes)

    def _take(self, name: str, descriptor: int, output_bytes: int) -> int | None:
        """Read available bytes, keep them up to the limit; return their number, 0 at the end, None if none came yet."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return None
        most = MAX_STATUS_BYTES if name == "status" else output_bytes + 1
        self._read[name] += data[: most - len(self._read[name])]
        return len(data)

    def _overflowed(self, output_bytes: int) -> bool:
        return len(self._read["output"]) + len(self._read["errors"]) > output_bytes

    def _told(self, ended: ChildExit, output_bytes: int) -> ChildExit:
        """Complete `ended` with the launcher's status and the program's output."""
        for line in bytes(self._read["status"]).splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue  # a launcher that was killed in the middle of a line
            if "failed" in said:
                ended.failed = (said["failed"], said["why"])
            ended.started = ended.started or "started" in said
            ended.late = ended.late or bool(said.get("late"))
            ended.exit_code = said.get("exit", ended.exit_code)
        ended.output, ended.errors = (bytes(self._read[name][:output_bytes]) for name in ("output", "errors"))
        return ended
