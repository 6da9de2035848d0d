"""Inbox of the peer's commands, between the thread that reads the socket and the thread that runs jobs.

The inbox decides what a command may interrupt: `finish`, `pause` and `abandon` take effect after the running step. A thread
always reads the socket, so that any end of the peer ends this process at once: a trainer never outlives its peer. (The
kernel's parent-death signal would follow the thread that started us, not the peer.)
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
"""Exit status of a process that ends because its peer has ended."""


class Abandoned(Exception):
    """Exception raised in a job whose result the peer no longer wants."""


class Job:
    """Command that takes time.

    finish, abandon, applied: set when the peer sends these commands while the job waits or runs.
    """

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
        self.id: int = message["id"]
        self.finish = False
        self.abandon = False
        self.applied = False


class CommandInbox:
    """Inbox of the peer's commands: jobs in order, at most one evaluation besides, and settings that apply at once."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._latest: Job | None = None
        self._evaluation: Job | None = None
        self._changed = threading.Condition()
        self._paused = False
        self._threads = 0
        self.watts = 0.0
        """Limit on the GPU's average power in watts; 0 for none."""
        self.load = 1.0
        """Limit on the share of the time in which the trainer works."""

    def listen(self, connection: socket.socket) -> None:
        """Read commands from `connection` in a thread, and end this process when the peer ends."""
        threading.Thread(target=self._read, args=(connection,), name="commands", daemon=True).start()

    def next_job(self) -> Job | None:
        """Wait for the next job and return it; None if there is only an evaluation to continue.

        A job that was abandoned while it waited is left out.
        """
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or (self._evaluation is not None and not self._paused))
                job = self._jobs.popleft() if self._jobs else None
                if job is None or not job.abandon:
                    return job

    @property
    def evaluation(self) -> Job | None:
        """Evaluation that the peer has asked for, to run between other jobs; None if there is none, or while paused."""
        with self._changed:
            return None if self._paused else self._evaluation

    def evaluated(self, job: Job) -> None:
        """Remove an evaluation that is complete."""
        with self._changed:
            if self._evaluation is job:
                self._evaluation = None

    def is_urgent(self, running: Job | None) -> bool:
        """Return True if an evaluation must give way to a command.  running: the job that waits for the evaluation."""
        with self._changed:
            called_off = running is not None and (running.finish or running.abandon)
            return bool(called_off or self._jobs or self._paused or self._evaluation is None)

    def use_threads(self, ranks: int = 1) -> None:
        """Set the number of CPU threads to this rank's share of the number in the peer's last command."""
        share = max(1, self._threads // ranks)
        if self._threads and share != torch.get_num_threads():
            torch.set_num_threads(share)  # affects the calling thread, so not in the reading thread

    def is_held(self, job: Job) -> bool:
        """Return True if the peer has paused, or abandoned the job: `wait_while_paused` may then wait or raise."""
        with self._changed:
            return self._paused or job.abandon

    def wait_until_abandoned(self, job: Job, seconds: float) -> bool:
        """Wait at most this long until the peer abandons the job; return True if it has."""
        with self._changed:
            return self._changed.wait_for(lambda: job.abandon, seconds)

    def wait_while_paused(self, job: Job) -> None:
        """Wait while paused, unless the job should finish; raise `Abandoned` if the job has been abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: not self._paused or job.finish or job.abandon)
        if job.abandon:
            raise Abandoned

    def wait_until_applied(self, job: Job, seconds: float) -> bool:
        """Wait at most this long until the peer's state has the last round's result; return True if it has.

        Raises `Abandoned`.
        """
        with self._changed:
            self._changed.wait_for(lambda: job.applied or job.abandon, seconds)
        if job.abandon:
            raise Abandoned
        return job.applied

    def wait(self, seconds: float, running: Job | None) -> bool:
        """Wait for `seconds` between two pieces of work; return True early if a command that ends the wait arrives.

        running: the job that waits; None between jobs.
        """
        with self._changed:
            if running is None:
                return self._changed.wait_for(lambda: bool(self._jobs), seconds)
            return self._changed.wait_for(lambda: running.finish or running.abandon, seconds)

    def _read(self, connection: socket.socket) -> None:
        buffer = bytearray()
        try:
            while (message := frames.receive(connection, buffer)) is not None:
                self.take(message)
        finally:
            os._exit(EXIT_PEER_GONE)

    def take(self, message: dict[str, Any]) -> None:
        """Handle a received command."""
        with self._changed:
            match message["do"]:
                case "pause":
                    self._paused = True
                case "resume":
                    self._paused = False
                case "threads":
                    self._threads = message["threads"]
                case "pace":
                    self.watts, self.load = message["watts"], message["load"]
                case "finish" if self._latest is not None:
                    self._latest.finish = True
                case "applied" if self._latest is not None:
                    self._latest.applied = True
                case "finish" | "applied":
                    pass  # no job has arrived yet
                case "abandon":
                    if self._latest is not None and self._latest.id == message["id"]:
                        self._latest.abandon = True
                    if self._evaluation is not None and self._evaluation.id == message["id"]:
                        self._evaluation = None
                case "evaluate":
                    self._evaluation = Job(message)
                case _:
                    self._latest = Job(message)
                    self._jobs.append(self._latest)
            self._changed.notify_all()
