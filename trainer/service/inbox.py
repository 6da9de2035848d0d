"""The peer's commands, on their way from the thread that reads the socket to the one that works.

Decides what a command may interrupt: `finish`, `pause` and `abandon` take effect after the running step.  A thread reads
the socket all the time, so that the end of the peer, however it ends, ends this process at once: a trainer never
outlives its peer.  (The kernel's parent-death signal would follow the thread that started us, not the peer.)
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from typing import Any

import torch

from trainer.service import frames

EXIT_PEER_GONE = 0
"""Status of a process that ends because its peer did."""


class Abandoned(Exception):
    """The peer does not want the result any more."""


class Job:
    """A command that takes time, with what may come in while it runs."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
        self.id: int = message["id"]
        self.finish = False
        self.abandon = False


class Inbox:
    """The peer's commands: jobs in their order, at most one evaluation beside them, and settings that hold at once."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._latest: Job | None = None
        self._evaluation: Job | None = None
        self._changed = threading.Condition()
        self._paused = False
        self._threads = 0
        self.watts = 0.0
        """What the GPU may draw, on average; 0 for anything."""

    def listen(self, connection: socket.socket) -> None:
        """Read commands from `connection` in a thread, and end this process when the peer is gone."""
        threading.Thread(target=self._read, args=(connection,), name="commands", daemon=True).start()

    def next_job(self) -> Job | None:
        """Wait for the next job; None when there is only an evaluation to get on with."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or (self._evaluation is not None and not self._paused))
            return self._jobs.popleft() if self._jobs else None

    @property
    def evaluation(self) -> Job | None:
        """The evaluation that is wanted now, beside whatever else is done."""
        with self._changed:
            return None if self._paused else self._evaluation

    def evaluated(self, job: Job) -> None:
        """This evaluation needs nothing more."""
        with self._changed:
            if self._evaluation is job:
                self._evaluation = None

    def is_urgent(self, running: Job | None) -> bool:
        """Whether something has come in that an evaluation makes way for.  running: what it is done beside."""
        with self._changed:
            called_off = running is not None and (running.finish or running.abandon)
            return bool(called_off or self._jobs or self._paused or self._evaluation is None)

    def use_threads(self) -> None:
        """Compute with as many CPU threads as the peer said last."""
        if self._threads and self._threads != torch.get_num_threads():
            torch.set_num_threads(self._threads)  # of the calling thread, so not where the command is read

    def is_held(self, job: Job) -> bool:
        """Whether `wait_while_paused` would wait, or raise."""
        with self._changed:
            return self._paused or job.abandon

    def wait_while_paused(self, job: Job) -> None:
        """Returns when not paused, or when the job is to finish; raises Abandoned when it has been abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: not self._paused or job.finish or job.abandon)
        if job.abandon:
            raise Abandoned

    def wait(self, seconds: float, running: Job | None) -> bool:
        """Whether something came in within this time for which a trainer that saves power stops waiting.

        running: the job in the midst of which it waits; None between jobs.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._is_due(running), seconds)

    def _is_due(self, running: Job | None) -> bool:
        return bool(self._jobs) if running is None else running.finish or running.abandon

    def _read(self, connection: socket.socket) -> None:
        buffer = bytearray()
        try:
            while (message := frames.receive(connection, buffer)) is not None:
                self.take(message)
        finally:
            os._exit(EXIT_PEER_GONE)

    def take(self, message: dict[str, Any]) -> None:
        """A command came in."""
        with self._changed:
            match message["do"]:
                case "pause":
                    self._paused = True
                case "resume":
                    self._paused = False
                case "threads":
                    self._threads = message["threads"]
                case "power":
                    self.watts = message["watts"]
                case "finish" if self._latest is not None:
                    self._latest.finish = True
                case "finish":
                    pass  # nothing has been asked yet
                case "abandon":
                    self._abandon(message["id"])
                case "evaluate":
                    self._evaluation = Job(message)
                case _:
                    self._latest = Job(message)
                    self._jobs.append(self._latest)
            self._changed.notify_all()

    def _abandon(self, id: int) -> None:
        if self._latest is not None and self._latest.id == id:
            self._latest.abandon = True
        if self._evaluation is not None and self._evaluation.id == id:
            self._evaluation = None
