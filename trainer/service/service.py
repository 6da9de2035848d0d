"""Service of the trainer process: obeys a peer's commands over a socket, and reports.

Commands: configure, initialise, compute, evaluate (each answered, under its `id`), finish, abandon, pause, resume, threads,
power; in an RL run also keep_version, use_tasks, generate and verify.
Any failure is answered with one sentence and ends the process; the peer starts a fresh one.

An evaluation is done beside the other jobs: a few windows after each training step but the last, and one batch after
another while there is no other job.  Its failure is reported, but does not end the process.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.layout import payload_bytes
from trainer.config import TrainingConfig
from trainer.evaluation import Evaluation
from trainer.generate.choice import GeneratorName
from trainer.models.llama.initial import initial_parameters
from trainer.optim.moments import ROLLOUTS, TEXT, MomentsFile
from trainer.power import PowerPace, meter_of
from trainer.service import frames
from trainer.service.inbox import EXIT_PEER_GONE, Abandoned, CommandInbox, Job
from trainer.service.rollout_jobs import RolloutJobs
from trainer.worker import Task, Worker, pick_device

EXIT_FAILED = 1
"""Exit status of a process that ends because a job failed."""
IDLE_OPPORTUNITIES = 1 << 20
"""Opportunities assumed while there is no other job: so many that an evaluation continues in the smallest pieces, as a
command may come at any time."""


class Service:
    """Service that runs jobs one after another on the main thread."""

    def __init__(self, connection: socket.socket, theta_fd: int, contribution_fd: int) -> None:
        self._connection = connection
        self._theta_fd = theta_fd
        self._contribution_fd = contribution_fd
        self._inbox = CommandInbox()
        self._config: TrainingConfig | None = None
        self._worker: Worker | None = None
        self._pace = PowerPace(lambda: None)
        self._jobs: RolloutJobs | None = None
        self._evaluation: tuple[Job, Evaluation] | None = None

    def run(self) -> int:
        """Run jobs until one fails; return the exit status.  The end of the peer ends the process in `CommandInbox`."""
        self._inbox.listen(self._connection)
        while True:
            job = self._inbox.next_job()
            if job is None:
                self._pace.begin()
                self._evaluate_some(None, IDLE_OPPORTUNITIES)
                self._keep_pace(None)
                continue
            try:
                answer = self._perform(job)
            except Abandoned:
                continue
            except Exception as error:  # noqa: BLE001 - the peer gets a sentence for any error, and starts a fresh process
                self._send(job, "failed", reason=_sentence(error))
                return EXIT_FAILED
            self._send(job, job.message["do"], **answer)
            if job.message["do"] == "compute":
                self._store_moments()

    def _perform(self, job: Job) -> dict[str, Any]:
        self._inbox.use_threads()
        match job.message["do"]:
            case "configure":
                return self._configure(job.message)
            case "initialise":
                return self._initialise()
            case "compute":
                return self._compute(job)
            case "keep_version":
                self._rollouts.keep_version(job.message["version"], self._map_theta())
                return {}
            case "use_tasks":
                return {"unusable": self._rollouts.use_tasks(job.message["sets"])}
            case "generate":
                return self._rollouts.generate(
                    job.message["task"], job.message["path"], self._after_each(job), lambda: self._rest(job)
                )
            case "verify":
                return self._rollouts.verify(
                    job.message["task"],
                    job.message["path"],
                    lambda verdicts: self._send(job, "progress", verdicts=verdicts),
                    lambda: self._rest(job),
                )
            case other:
                raise ValueError(f"unknown command {other!r}")

    def _configure(self, message: dict[str, Any]) -> dict[str, Any]:
        device = pick_device(message["device"])
        config = TrainingConfig.from_sections(message["sections"])
        self._config = config
        folder = Path(message["moments"]) if message.get("moments") else None
        text, rollouts = (MomentsFile(folder / name) if folder else None for name in (TEXT, ROLLOUTS))
        self._worker = Worker(config, device, moments=text) if message["trains"] else None
        generator = GeneratorName(message.get("generator", GeneratorName.BUILTIN))
        self._jobs = (
            RolloutJobs(config, config.rl, self._worker, device, rollouts, generator) if config.rl is not None else None
        )
        self._pace = PowerPace(meter_of(device))
        if self._worker is not None:
            self._contribution = memoryview(mmap.mmap(self._contribution_fd, payload_bytes(self._worker.layout)))
        return {
            "device": str(device),
            "parameters": config.model.parameters,
            "corpus": self._worker.reading.digest if self._worker is not None else "",
            "measures_power": self._pace.measures,
        }

    def _initialise(self) -> dict[str, Any]:
        config = self._configured()
        initial_parameters(config.model, config.seed, self._map_theta(writable=True))
        return {}

    def _compute(self, job: Job) -> dict[str, Any]:
        worker = self._ready()
        task = Task(**job.message["task"])

        def after_step(steps: int, loss: float, tokens: int, tokens_per_s: float) -> bool:
            self._send(job, "progress", steps=steps, loss=loss, tokens=tokens, tokens_per_s=tokens_per_s)
            if steps < task.steps:
                self._evaluate_some(job, task.steps - steps)
            self._keep_pace(job)
            self._inbox.wait_while_paused(job)
            self._inbox.use_threads()
            self._pace.begin()
            return job.finish

        self._inbox.wait_while_paused(job)
        self._pace.begin()
        if task.rollouts:
            tell = lambda tried: self._send(job, "progress", tried=tried)  # noqa: E731
            done = self._rollouts.learn(task, self._map_theta(), self._contribution, after_step, tell)
        else:
            done = worker.compute(task, self._map_theta(), self._contribution, after_step)
        return {**asdict(done), "threads": torch.get_num_threads()}

    def _store_moments(self) -> None:
        """Write the optimisers' moments while the peer exchanges the round's result."""
        if self._worker is not None:
            self._worker.store_moments()
        if self._jobs is not None:
            self._jobs.store_moments()

    def _after_each(self, job: Job) -> Callable[[int, int], None]:
        """Return the function to call after each rollout."""

        def tell(done: int, total: int) -> None:
            self._send(job, "progress", done=done, total=total)
            self._keep_pace(job)
            self._inbox.use_threads()
            self._pace.begin()

        return tell

    def _rest(self, job: Job) -> None:
        """Wait while paused, between the steps of a job other than training; raise Abandoned if it was abandoned."""
        if self._inbox.is_held(job):
            self._keep_pace(job)
            self._inbox.wait_while_paused(job)
            self._inbox.use_threads()
            self._pace.begin()

    def _evaluate_some(self, running: Job | None, opportunities: int) -> None:
        """Continue the evaluation that the peer wants, if any, beside the `running` job.

        opportunities: number of calls, this one included, after which it should be done.
        """
        job = self._inbox.evaluation
        if job is None:
            return
        try:
            if self._evaluation is None or self._evaluation[0] is not job:
                self._evaluation = job, self._ready().evaluation(self._map_theta())
            evaluation = self._evaluation[1]
            evaluation.advance(evaluation.share(opportunities), lambda: self._inbox.is_urgent(running))
        except Exception as error:  # noqa: BLE001 - training is worth more than the number
            self._end_evaluation(job, loss=None, reason=_sentence(error))
            return
        if evaluation.done == evaluation.total:
            self._end_evaluation(job, loss=evaluation.loss)
        else:
            self._send(job, "progress", done=evaluation.done, total=evaluation.total)

    def _keep_pace(self, running: Job | None) -> None:
        """Wait, after some work, as long as the power limit demands."""
        self._pace.watts = self._inbox.watts
        self._pace.keep(lambda seconds: self._inbox.wait(seconds, running))

    def _end_evaluation(self, job: Job, **answer: Any) -> None:
        self._evaluation = None
        self._inbox.evaluated(job)
        self._send(job, "evaluate", **answer)

    def _configured(self) -> TrainingConfig:
        if self._config is None:
            raise ValueError("not configured")
        return self._config

    def _ready(self) -> Worker:
        if self._worker is None:
            raise ValueError("not configured to train")
        return self._worker

    @property
    def _rollouts(self) -> RolloutJobs:
        if self._jobs is None:
            raise ValueError("this run has no rollouts")
        return self._jobs

    def _map_theta(self, *, writable: bool = False) -> np.ndarray:
        """Map the swarm's parameters, fp32; writable only for the one command that sets them."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        count = self._configured().model.parameters
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
