"""Channel to one trainer process: commands, their answers and progress over a socket, its output, and its end.

The other end of the socket is `trainer.service`.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from peer.files import RotatingFile
from protocol.trainer_link import LimitsExceeded, TrainerDied
from trainer.service import frames

# ------------------------------------------------------------------------------------------------------------------------
# Commands, their answers and progress.
#
# A trainer that does not read a command, or sends an invalid message, is killed; the caller then gets `TrainerDied`.


Listener = Callable[[dict[str, Any]], None]
"""Function called with the progress of a command."""


def unheard(message: dict[str, Any]) -> None:
    """Ignore progress; this is the listener for commands that do not report any."""


@dataclass
class _Call:
    """Command that waits for its answer.  death: the reason if no answer will come."""

    on_progress: Listener
    answered: trio.Event = field(default_factory=trio.Event)
    answer: dict[str, Any] | None = None
    death: str = ""


class TrainerChannel:
    """Our end of the socket to `process`.

    heard_at: trio time of the process's last message.  fault: sentence with the reason for its end, if known beforehand.
    beyond_limits: True if it ends because its round exceeded the limits.
    """

    def __init__(self, connection: socket.socket, process: trio.Process) -> None:
        connection.setblocking(False)
        self.process = process
        self.heard_at = trio.current_time()
        self.fault, self.beyond_limits = "", False
        self._connection = connection
        self._calls: dict[int, _Call] = {}
        self._last_id = 0

    @property
    def busy(self) -> bool:
        """True while a command waits for its answer."""
        return bool(self._calls)

    async def ask(self, command: str, on_progress: Listener = unheard, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; cancelling abandons the command.

        Raises TrainerDied; LimitsExceeded if the trainer's round exceeded the limits.
        """
        id = self._last_id = self._last_id + 1
        call = self._calls[id] = _Call(on_progress)
        try:
            self.send({"do": command, "id": id, **fields})
            await call.answered.wait()
        except trio.Cancelled:
            self.send({"do": "abandon", "id": id})
            raise
        finally:
            del self._calls[id]
        if call.answer is None:
            raise (LimitsExceeded if self.beyond_limits else TrainerDied)(call.death)
        return call.answer

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.  Never blocks: commands are far smaller than the socket's buffer, and the trainer always reads."""
        if self._connection.fileno() < 0:
            return  # closed: the process is being reaped
        data = frames.pack(message)
        try:
            sent = self._connection.send(data)
        except OSError:
            sent = 0
        if sent != len(data):
            self.process.kill()  # the process has ended or does not read; `listen` notices its end

    def kill(self, fault: str) -> None:
        """Kill the process because of `fault`."""
        self.fault = fault
        self.process.kill()

    def fail(self, reason: str) -> None:
        """Fail all calls, because the process has ended."""
        for call in self._calls.values():
            call.death = reason
            call.answered.set()

    async def listen(self) -> None:
        """Deliver the trainer's messages until it closes the connection."""
        try:
            await self._receive()
        except (ValueError, TypeError, KeyError) as error:
            self.kill(f"the trainer sent an invalid message: {error}")

    async def _receive(self) -> None:
        buffer = bytearray()
        while True:
            await trio.lowlevel.wait_readable(self._connection.fileno())
            try:
                data = self._connection.recv(frames.MAX_FRAME_BYTES)
            except BlockingIOError:
                continue
            except ConnectionError:
                return
            if not data:
                return
            buffer += data
            self.heard_at = trio.current_time()
            while (message := frames.take(buffer)) is not None:
                self._deliver(message)

    def _deliver(self, message: dict[str, Any]) -> None:
        call = self._calls.get(message["id"])
        match message["is"]:
            case "failed":
                self.fault = message["reason"]  # the process then ends, and the caller waits for that
                self.beyond_limits = message["beyond_limits"]
            case "progress" if call is not None:
                call.on_progress(message)
            case "progress":
                pass  # progress of an abandoned command
            case _ if call is not None:
                call.answer = message
                call.answered.set()


# ------------------------------------------------------------------------------------------------------------------------
# End of a child process: waiting for it, and describing it in words.
#
# A child that does not end before its deadline is killed and reaped, so that we leave nothing behind, not even a zombie.


async def reap(process: trio.Process, deadline_s: float) -> None:
    """Wait for a process that should end by itself; kill it after `deadline_s`."""
    with trio.move_on_after(deadline_s):
        await process.wait()
        return
    process.kill()
    await process.wait()


def how_it_ended(status: int | None, last_line: str) -> str:
    """Return the end of a sentence that begins with the process's name.  status: return code as in `subprocess`."""
    if status is not None and status < 0:
        memory = " (the system may be out of memory)" if -status == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-status).name}{memory}"
    return f"ended with exit code {status}" + (f": {last_line}" if last_line else "")


# ------------------------------------------------------------------------------------------------------------------------
# Output of the process, kept in a file of limited size.
#
# The file is for a person who wants to know why a trainer died; its last line is also part of the displayed reason.


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
                with suppress(OSError):  # a full disk must not stop the training; only the last line is kept
                    self._file.append(data)
                tail = (tail + data)[-4096:]
                lines = [line for line in tail.decode(errors="replace").splitlines() if line.strip()]
                self.last_line = lines[-1].strip()[:MAX_LINE] if lines else ""
        self._drained.set()

    async def drained(self) -> None:
        """Wait at most `DRAIN_DEADLINE_S` for a dead process's last output, because its child may keep the output open."""
        with trio.move_on_after(DRAIN_DEADLINE_S):
            await self._drained.wait()
