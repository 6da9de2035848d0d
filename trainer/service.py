"""The trainer process: obeys a peer's commands over a socket, and reports.

Decides what a command may interrupt: `finish`, `pause` and `abandon` take effect after the running step.  A thread reads
the socket all the time, so that the end of the peer, however it ends, ends this process at once: a trainer never
outlives its peer.  (The kernel's parent-death signal would follow the thread that started us, not the peer.)

Commands: configure, initialise, compute, evaluate (each answered, under its `id`), finish, abandon, pause, resume, threads.
Any failure is answered with one sentence and ends the process; the peer starts a fresh one.
"""

from __future__ import annotations

import mmap
import os
import queue
import socket
import threading
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from trainer import frames
from trainer.config import TrainingConfig
from trainer.initial import initial_parameters
from trainer.worker import Abandoned, Task, Worker, contribution_bytes, pick_device

EXIT_PEER_GONE = 0
EXIT_FAILED = 1


class Job:
    """A command that takes time, with what may come in while it runs."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
        self.id: int = message["id"]
        self.finish = False
        self.abandon = False


class Inbox:
    """Reads the socket in a thread.  Ends the process when the peer is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._latest: Job | None = None
        self._changed = threading.Condition()
        self._paused = False
        self._threads = 0
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def next_job(self) -> Job:
        return self._jobs.get()

    def use_threads(self) -> None:
        """Compute with as many CPU threads as the peer said last."""
        if self._threads and self._threads != torch.get_num_threads():
            torch.set_num_threads(self._threads)  # of the calling thread, so not where the command is read

    def wait_while_paused(self, job: Job) -> None:
        """Returns when not paused, or when the job is to finish; raises Abandoned when it has been abandoned."""
        with self._changed:
            self._changed.wait_for(lambda: not self._paused or job.finish or job.abandon)
        if job.abandon:
            raise Abandoned

    def _read(self) -> None:
        buffer = bytearray()
        try:
            while (message := frames.receive(self._connection, buffer)) is not None:
                self._take(message)
        finally:
            os._exit(EXIT_PEER_GONE)

    def _take(self, message: dict[str, Any]) -> None:
        with self._changed:
            match message["do"]:
                case "pause":
                    self._paused = True
                case "resume":
                    self._paused = False
                case "threads":
                    self._threads = message["threads"]
                case "finish" if self._latest is not None:
                    self._latest.finish = True
                case "abandon" if self._latest is not None:
                    self._latest.abandon = True
                case "finish" | "abandon":
                    pass  # nothing has been asked yet
                case _:
                    self._latest = Job(message)
                    self._jobs.put(self._latest)
            self._changed.notify_all()


class Service:
    """Runs jobs one after another on the main thread."""

    def __init__(self, connection: socket.socket, theta_fd: int, contribution_fd: int) -> None:
        self._connection = connection
        self._theta_fd = theta_fd
        self._contribution_fd = contribution_fd
        self._inbox = Inbox(connection)
        self._worker: Worker | None = None

    def run(self) -> int:
        """Until the peer is gone (which ends the process elsewhere) or a job fails."""
        while True:
            job = self._inbox.next_job()
            try:
                answer = self._perform(job)
            except Abandoned:
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, the peer gets a sentence and starts a fresh process
                self._send(job, "failed", reason=_sentence(error))
                return EXIT_FAILED
            self._send(job, job.message["do"], **answer)

    def _perform(self, job: Job) -> dict[str, Any]:
        self._inbox.use_threads()
        match job.message["do"]:
            case "configure":
                return self._configure(job.message)
            case "initialise":
                return self._initialise()
            case "compute":
                return self._compute(job)
            case "evaluate":
                return {"loss": self._ready().evaluate(self._map_theta())}
            case other:
                raise ValueError(f"unknown command {other!r}")

    def _configure(self, message: dict[str, Any]) -> dict[str, Any]:
        device = pick_device(message["device"])
        self._worker = Worker(TrainingConfig.from_sections(message["sections"]), device)
        size = contribution_bytes(self._worker.parameters, self._worker.config.chunk_parameters)
        self._contribution = memoryview(mmap.mmap(self._contribution_fd, size))
        return {
            "device": str(device),
            "parameters": self._worker.parameters,
            "corpus": self._worker.corpus.digest,
        }

    def _initialise(self) -> dict[str, Any]:
        worker = self._ready()
        initial_parameters(worker.config.model, worker.config.seed, self._map_theta(writable=True))
        return {}

    def _compute(self, job: Job) -> dict[str, Any]:
        worker = self._ready()
        task = Task(**job.message["task"])

        def after_step(steps: int, loss: float, tokens: int, tokens_per_s: float) -> bool:
            self._send(job, "progress", steps=steps, loss=loss, tokens=tokens, tokens_per_s=tokens_per_s)
            self._inbox.wait_while_paused(job)
            self._inbox.use_threads()
            return job.finish

        self._inbox.wait_while_paused(job)
        done = worker.compute(task, self._map_theta(), self._contribution, after_step)
        return {**asdict(done), "threads": torch.get_num_threads()}

    def _ready(self) -> Worker:
        if self._worker is None:
            raise ValueError("not configured")
        return self._worker

    def _map_theta(self, *, writable: bool = False) -> np.ndarray:
        """The swarm's parameters, fp32; writable only for the one command that sets them."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        count = self._ready().parameters
        return np.frombuffer(mmap.mmap(self._theta_fd, 4 * count, access=access), dtype="<f4", count=count)

    def _send(self, job: Job, kind: str, **fields: Any) -> None:
        try:
            self._connection.sendall(frames.pack({"id": job.id, "is": kind, **fields}))
        except OSError:
            os._exit(EXIT_PEER_GONE)


def _sentence(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "out of GPU memory even with one sequence at a time"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no details'}"[:300]
