"""The conversation with one trainer process: commands, their answers and progress, over a socket.

A trainer that does not take a command, or says what cannot be understood, is killed: its end is the caller's answer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from protocol.trainer_link import TrainerDied
from trainer.service import frames

Listener = Callable[[dict[str, Any]], None]
"""Hears the progress of a command."""


def unheard(message: dict[str, Any]) -> None:
    """A listener for commands that tell no progress."""


@dataclass
class _Call:
    """A command whose answer somebody waits for.  death: why none will come."""

    on_progress: Listener
    answered: trio.Event = field(default_factory=trio.Event)
    answer: dict[str, Any] | None = None
    death: str = ""


class TrainerChannel:
    """Our end of the socket to `process`.

    heard_at: trio time of its last word.  fault: why it ends, where that is known before it has ended; a sentence.
    """

    def __init__(self, connection: socket.socket, process: trio.Process) -> None:
        connection.setblocking(False)
        self.process = process
        self.heard_at = trio.current_time()
        self.fault = ""
        self._connection = connection
        self._calls: dict[int, _Call] = {}
        self._last_id = 0

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._calls)

    async def ask(self, command: str, on_progress: Listener = unheard, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; cancelling abandons it.  Raises TrainerDied."""
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
            raise TrainerDied(call.death)
        return call.answer

    def send(self, message: dict[str, Any]) -> None:
        """Commands are far smaller than the socket's buffer, and the trainer always reads: this never blocks."""
        if self._connection.fileno() < 0:
            return  # closed: the process is being reaped
        data = frames.pack(message)
        try:
            sent = self._connection.send(data)
        except OSError:
            sent = 0
        if sent != len(data):
            self.process.kill()  # it is gone or does not read; `listen` notices its end

    def kill(self, fault: str) -> None:
        """End the process for a reason of ours."""
        self.fault = fault
        self.process.kill()

    def fail(self, reason: str) -> None:
        """The process has ended: no call gets an answer any more."""
        for call in self._calls.values():
            call.death = reason
            call.answered.set()

    async def listen(self) -> None:
        """Deliver what the trainer says, until it says nothing ever more."""
        try:
            await self._receive()
        except (ValueError, TypeError, KeyError) as error:
            self.kill(f"the trainer spoke nonsense: {error}")

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
                self.fault = message["reason"]  # its end follows, and is what the caller waits for
            case "progress" if call is not None:
                call.on_progress(message)
            case "progress":
                pass  # of something abandoned
            case _ if call is not None:
                call.answer = message
                call.answered.set()
