"""Service of the trainer process, which runs a peer's commands from a socket and reports results.

Commands: configure, initialise, compute, audit, evaluate (each answered with the command's `id`), finish, abandon, pause,
resume, threads, pace; in an RL run also keep_version, use_tasks, generate and verify. A command that fails is answered with
one sentence and ends the process; the peer then starts a new process.  A verification that was abandoned ends nothing if
its file is gone.

A computation or an evaluation that needs a missing block reports the block, and looks for it again.

An evaluation runs between the other jobs: a few windows after each training step but the last, and one batch after another
while there is no other job. If it fails, the failure is reported, but the process goes on.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from protocol.formats.rl import Precision
from trainer.config import TrainingConfig
from trainer.data.corpus import BlockMissing
from trainer.device import OUT_OF_MEMORY, device_speed, is_gpu, pick_devices, use_device
from trainer.environments.task_file import TaskFile
from trainer.evaluation import Evaluation
from trainer.generate.choice import GeneratorName
from trainer.memory import EXIT_NO_MEMORY
from trainer.models.llama.initial import initial_parameters
from trainer.parameters import NotFinite
from trainer.ranks import LeadingRank, RankOrder
from trainer.rl.learner import Learner
from trainer.rl.verification import Assignment
from trainer.rl.worker import RolloutWorker
from trainer.service import frames
from trainer.service.inbox import EXIT_PEER_GONE, Abandoned, CommandInbox, Job
from trainer.worker import AuditPoint, AuditTask, BeyondLimits, Task, Worker

# ------------------------------------------------------------------------------------------------------------------------
# Limits on power and on load: the trainer rests between steps to keep a GPU's average power below a number of watts, and its
# work below a share of the time.
#
# Only an administrator may set a card's own limit (`nvidia-smi -pl`). Resting needs no such right, works in a container, and
# takes account of the power that all programs draw on that card. Power is measured with the card's own energy counter
# (`nvmlDeviceGetTotalEnergyConsumption`, Volta and later).


LOOK_S = 0.05
"""Seconds between two readings of the counter while waiting; cards update it every 20 to 100 ms."""
SMOOTHED_S = 1.0
"""Seconds over which power is averaged; energy that was allowed in this time but not drawn may be drawn later."""
MOST_TIMES = 9.0
"""Longest wait, as a multiple of the time of the work before it: a limit below the card's idle power must not stop the
work."""
MOST_REST_S = 600.0
"""Longest wait in seconds.  The peer ends a trainer that is silent for half an hour, and the step after a wait is silent."""
PIECE_S = 0.5
"""Seconds of generation or verification, which have small steps, between two waits."""
LEAST_WAIT_S = 1e-4

Meter = Callable[[], float | None]
"""Function that returns joules since some fixed moment, or None if they are unknown."""


class WorkPace:
    """Pace of the work under limits on power and load.

    watts: the limit on power; 0 for none.  load: the largest share of the time, up to 1, in which it works.  clock: seconds.
    spent, rested: joules that the device has drawn in work, and seconds of waits, since the owner last set them to 0.
    """

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.monotonic) -> None:
        self._meter, self._clock = meter, clock
        self.watts, self.load = 0.0, 1.0
        self._at, self._joules, self._debt = clock(), meter(), 0.0
        self.spent = self.rested = 0.0

    @property
    def measures(self) -> bool:
        """True if the device has a counter of energy."""
        return self._joules is not None

    @property
    def is_due(self) -> bool:
        """True if there is a limit, and the work since `begin` has taken long enough to wait after it."""
        return bool(self.watts or self.load < 1) and self._clock() - self._at >= PIECE_S

    def begin(self) -> None:
        """Begin to count; energy drawn earlier, without work, does not count."""
        self._at, self._joules = self._clock(), self._meter()

    def keep(self, wait: Callable[[float], bool]) -> None:
        """Wait, after some work, until the average power is at most `watts`, and the share of the work at most `load`.

        wait: waits the given number of seconds; returns True if an urgent command has arrived.
        """
        worked = self._clock() - self._at
        self.spent += self._count()
        end = self._at
        deadline = end + min(MOST_TIMES * worked, MOST_REST_S)
        while self._at < deadline:
            idle = end + worked * (1 / self.load - 1) - self._at
            too_warm = self.watts and self._debt > 0
            if (not too_warm and idle < LEAST_WAIT_S) or wait(LOOK_S if too_warm else min(LOOK_S, idle)):
                break
            self._count()
        self._debt = min(0.0, self._debt) if self._at >= deadline else self._debt
        self.rested += self._at - end

    def slowed(self, seconds: float) -> float:
        """Return the time that work of this many seconds takes with its waits, including future ones."""
        return seconds + max(self.rested, seconds * (1 / self.load - 1))

    def _count(self) -> float:
        """Count the time since the last call; return the joules that were drawn in it."""
        drawn = 0.0
        now, joules = self._clock(), self._meter()
        if joules is None or self._joules is None:
            self._debt = 0.0
        else:
            drawn = joules - self._joules
            self._debt = max(self._debt + drawn - self.watts * (now - self._at), -self.watts * SMOOTHED_S)
        self._at, self._joules = now, joules
        return drawn


def meter_of(*devices: torch.device) -> Meter:
    """Return the energy meter (a mean) of a trainer's GPUs; for a CPU, a meter that always returns None."""
    if not all(is_gpu(device) for device in devices):
        return lambda: None
    try:
        import pynvml

        pynvml.nvmlInit()
        uuids = [f"GPU-{torch.cuda.get_device_properties(device).uuid}" for device in devices]
        handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid.encode()) for uuid in uuids]
    except Exception:  # no library, no driver, a slice of a card: errors differ by version
        return lambda: None
    return lambda: _joules(pynvml, handles)


def _joules(nvml: Any, handles: Sequence[Any]) -> float | None:
    try:
        return sum(float(nvml.nvmlDeviceGetTotalEnergyConsumption(each)) for each in handles) / len(handles) / 1000
    except Exception:  # an older card, or one that is no longer available
        return None


# ------------------------------------------------------------------------------------------------------------------------


PRECISIONS = {torch.bfloat16: "bf16", torch.float32: "fp32"}
EXIT_FAILED = 1
"""Exit status of a process that stops because a job failed."""
IDLE_OPPORTUNITIES = 1 << 20
"""Opportunities assumed while no other job runs. The number is so large that an evaluation continues in the smallest pieces,
because a command may arrive at any time."""
VERDICTS_AT_ONCE = 32
"""Verdicts in one frame to the peer; they fit even if all details have the maximum length in any script."""
BLOCK_WAIT_S = 0.25
"""Seconds between two checks for a missing block."""


ABANDON_S = 1.0
"""Longest wait for the command that abandons a verification whose file is gone; it was sent before the removal."""


class Service:
    """Service that runs jobs one after another on the main thread."""

    def __init__(self, connection: socket.socket, theta_fd: int, contribution_fd: int) -> None:
        self._connection = connection
        self._theta_fd = theta_fd
        self._contribution_fd = contribution_fd
        self._inbox = CommandInbox()
        self._config: TrainingConfig | None = None
        self._worker: Worker | None = None
        self._ranks: LeadingRank | None = None
        self._pace = WorkPace(lambda: None)
        self._rollout_worker: RolloutWorker | None = None
        self._evaluation: tuple[Job, Evaluation] | None = None

    def run(self) -> NoReturn:
        """Run jobs until one fails, which ends the process; `CommandInbox` ends it if the peer ends."""
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
            except Exception as error:  # noqa: BLE001 - the peer gets a sentence for any error
                may_be_removed = job.message["do"] == "verify" and isinstance(error, FileNotFoundError)
                if may_be_removed and self._inbox.wait_until_abandoned(job, ABANDON_S):
                    continue  # the peer removes the file of a batch that it no longer wants to check
                self._fail(job, error)
            self._send(job, job.message["do"], **answer)
            if job.message["do"] == "compute" and self._worker is not None:
                self._worker.work.store_moments()  # while the peer exchanges the round's result

    def _fail(self, job: Job, error: Exception) -> NoReturn:
        """End the process with a sentence.

        If another rank has ended, its end is the reason, and its watcher ends this process.
        """
        if self._ranks is not None:
            self._ranks.settle()
        if isinstance(error, NotFinite) and self._worker is not None:
            self._worker.work.remove_moments()
        self._send(job, "failed", reason=_sentence(error), beyond_limits=isinstance(error, BeyondLimits))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_NO_MEMORY if isinstance(error, OUT_OF_MEMORY) else EXIT_FAILED)

    def _perform(self, job: Job) -> dict[str, Any]:
        self._use_threads()
        self._limit_pace()
        self._pace.begin()
        match job.message["do"]:
            case "configure":
                return self._configure(job.message)
            case "initialise":
                config = self._configured()
                initial_parameters(config.model, config.seed, self._map_theta(writable=True), config.adapter)
                return {}
            case "compute":
                return self._compute(job)
            case "audit":
                return self._audit(job)
            case "keep_version":
                self._rollouts.keep_version(job.message["version"], self._map_theta())
                return {}
            case "use_tasks":
                files = [TaskFile(**each) for each in job.message["sets"]]
                return {"unusable": [*self._rollouts.use_tasks(files).items()]}
            case "generate":
                return self._generate(job)
            case "verify":
                judged = self._rollouts.verify(*_batch(job.message), lambda: self._rest(job))
                for start in range(0, len(judged), VERDICTS_AT_ONCE):
                    verdicts = [each.fields() for each in judged[start : start + VERDICTS_AT_ONCE]]
                    self._send(job, "progress", verdicts=verdicts)
                return {}
            case other:
                raise ValueError(f"unknown command {other!r}")

    def _use_threads(self) -> None:
        self._inbox.use_threads(self._ranks.count if self._ranks is not None else 1)

    def _configure(self, message: dict[str, Any]) -> dict[str, Any]:
        devices = pick_devices(message["device"], message.get("gpus", ""), message.get("processes", 1))
        device = devices[0]
        use_device(device)
        speed = device_speed(device)
        config = TrainingConfig.from_sections(message["sections"])
        self._config = config
        folder = Path(message["moments"]) if message.get("moments") else None
        if message["trains"]:
            if len(devices) > 1 or config.is_sharded_alone:
                if not is_gpu(device):  # the ranks divide the threads of this process
                    torch.set_num_threads(max(1, torch.get_num_threads() // len(devices)))
                order = RankOrder(0, config, tuple(map(str, devices)), speed.dtype, folder)
                self._ranks = LeadingRank(order, (self._theta_fd, self._contribution_fd), _end_with)
            self._worker = Worker(config, device, folder, speed.dtype, self._ranks)
        generator = GeneratorName(message.get("generator", GeneratorName.BUILTIN))
        if config.rl is not None:
            own = self._worker
            tokenizer, base = (own.tokenizer, own.model.base) if own is not None else (None, None)
            self._rollout_worker = RolloutWorker.of(config, device, tokenizer, generator, base)
        self._pace = WorkPace(meter_of(*devices))
        if self._worker is not None:
            size = self._worker.layout.payload_bytes
            region = memoryview(mmap.mmap(self._contribution_fd, size + config.receipt_bytes))
            self._contribution, self._receipts = region[:size], region[size:]
        return {
            "device": f"{len(devices)} x {device}" if devices.count(device) > 1 else ", ".join(map(str, devices)),
            "precision": PRECISIONS[speed.dtype],
            "matmul_flops": speed.flops * (len(devices) if is_gpu(device) else 1),
            "flops_per_token": config.flops_per_token,
            "parameters": config.parameters,
            "corpus": self._worker.reading.digest if self._worker is not None else "",
            "measures_power": self._pace.measures,
            "audits": self._worker is not None and self._worker.audits,
        }

    def _generate(self, job: Job) -> dict[str, Any]:
        def on_progress(done: int, total: int) -> None:
            self._send(job, "progress", done=done, total=total)
            self._rest(job)

        assignment, path = _batch(job.message)
        tokens = self._rollouts.generate(assignment, path, on_progress, lambda: self._rest(job))
        rollouts = len(assignment.problems) * assignment.copies
        return {"rollouts": rollouts, "tokens": tokens, "precision": self._rollouts.precision.value}

    def _compute(self, job: Job) -> dict[str, Any]:
        worker = self._ready()
        task = Task(**job.message["task"])

        def after_step(steps: int, loss: float, tokens: int, tokens_per_s: float) -> bool:
            self._limit_pace()
            if tokens_per_s > 0 and not task.rollouts:  # there the rate includes the waits
                tokens_per_s = tokens / self._pace.slowed(tokens / tokens_per_s)
            self._send(job, "progress", steps=steps, loss=loss, tokens=tokens, tokens_per_s=tokens_per_s)
            if steps < task.steps:
                self._evaluate_some(job, task.steps - steps)
            self._keep_pace(job)
            self._begin(job)
            return job.finish

        def between(missing: BlockMissing | None) -> bool:
            if missing is not None:
                self._send(job, "progress", waiting=_block(missing))
                if self._inbox.wait(BLOCK_WAIT_S, job) and not job.abandon:
                    time.sleep(BLOCK_WAIT_S)  # told to finish, perhaps before its first step
            self._begin(job)
            return job.finish

        def applied(needed: bool) -> bool:
            if needed and not job.applied:
                self._send(job, "progress", waits=True)
                while not self._inbox.wait_until_applied(job, BLOCK_WAIT_S):
                    self._pace.begin()
                    self._evaluate_some(job, IDLE_OPPORTUNITIES)
                    self._keep_pace(job)
                    self._send(job, "progress", waits=True)  # the peer ends a process that is silent for long
                self._begin(job)
                self._send(job, "progress", waits=False)
            return job.applied

        if task.continues:
            self._send(job, "progress", waits=False)
        self._begin(job)
        self._pace.spent = self._pace.rested = 0.0
        receipts = b""
        if task.rollouts:
            tell = lambda tried: self._send(job, "progress", tried=tried)  # noqa: E731
            learner = Learner(self._rollouts.config, worker.work)
            done = self._rollouts.learn(task, learner, self._map_theta(), self._contribution, after_step, tell)
        else:
            done = worker.compute(task, self._map_theta(), self._contribution, after_step, between, applied)
            receipts = worker.receipts.tobytes()
            self._receipts[: len(receipts)] = receipts
        task.check(done.loss, done.norm)
        ranks = self._ranks.count if self._ranks is not None else 1
        joules = ranks * self._pace.spent if self._pace.measures else None
        threads = ranks * torch.get_num_threads()
        told = {"threads": threads, "joules": joules, "rested": self._pace.rested, "receipts": len(receipts)}
        return {**asdict(done), **told}

    def _audit(self, job: Job) -> dict[str, Any]:
        def between(missing: BlockMissing | None) -> bool:
            if missing is not None:
                self._send(job, "progress", waiting=_block(missing))
                self._inbox.wait(BLOCK_WAIT_S, job)
            self._rest(job)
            self._begin(job)
            return False

        fields = job.message["task"]
        points = [
            AuditPoint(point["share"], point["rows"], bytes.fromhex(point["claimed"])) for point in fields.pop("points")
        ]
        try:
            return {"cosines": self._ready().audit(AuditTask(**fields, points=points), self._map_state(), between)}
        except Abandoned:
            raise
        except Exception as error:  # noqa: BLE001 - training matters more than an audit
            return {"cosines": None, "reason": _sentence(error)}

    def _begin(self, job: Job) -> None:
        """Wait while paused, and begin the next piece of a job.  Raises `Abandoned` if the job was abandoned."""
        self._inbox.wait_while_paused(job)
        self._use_threads()
        self._pace.begin()

    def _rest(self, job: Job) -> None:
        """Wait while paused, or as the pace demands, between the steps of a job other than training.

        Raises `Abandoned` if the job was abandoned.
        """
        self._limit_pace()
        if self._pace.is_due or self._inbox.is_held(job):
            self._keep_pace(job)
            self._begin(job)

    def _evaluate_some(self, running: Job | None, opportunities: int) -> None:
        """Continue the evaluation that the peer asked for, if any, while the `running` job waits.

        opportunities: number of calls, including this one, in which the evaluation should be completed.
        """
        job = self._inbox.evaluation
        if job is None:
            return
        try:
            if self._evaluation is None or self._evaluation[0] is not job:
                row, reference = job.message.get("row", 0), job.message.get("reference", "")
                samples = job.message.get("samples", False)
                evaluation = self._ready().evaluation(self._map_theta(), row=row, reference=reference, samples=samples)
                self._evaluation = job, evaluation
            evaluation = self._evaluation[1]
            evaluation.advance(evaluation.share(opportunities), lambda: self._inbox.is_urgent(running))
        except BlockMissing as missing:
            done, total = (self._evaluation[1].done, self._evaluation[1].total) if self._evaluation else (0, 1)
            self._send(job, "progress", done=done, total=total, waiting=_block(missing))
            if running is None:
                self._inbox.wait(BLOCK_WAIT_S, None)
            return
        except Exception as error:  # noqa: BLE001 - training matters more than an evaluation
            lacks = isinstance(error, OUT_OF_MEMORY) and not self._configured().spares_memory
            if lacks or not (self._ranks is None or self._ranks.are_together):
                self._fail(job, error)  # the process starts again with less memory, or another rank waits for this one
            self._end_evaluation(job, loss=None, reason=_sentence(error))
            return
        if evaluation.done == evaluation.total:
            totals = evaluation.totals
            told = {"losses": [asdict(each) for each in totals.losses], "samples": list(evaluation.texts)}
            self._end_evaluation(job, loss=evaluation.loss, margin=totals.margin, accuracy=totals.accuracy, **told)
        else:
            self._send(job, "progress", done=evaluation.done, total=evaluation.total)

    def _limit_pace(self) -> None:
        self._pace.watts, self._pace.load = self._inbox.watts, self._inbox.load

    def _keep_pace(self, running: Job | None) -> None:
        """Wait, after some work, as long as the limits on power and load require; they may change meanwhile."""

        def wait(seconds: float) -> bool:
            is_over = self._inbox.wait(seconds, running)
            self._limit_pace()
            return is_over

        self._limit_pace()
        self._pace.keep(wait)

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
    def _rollouts(self) -> RolloutWorker:
        if self._rollout_worker is None:
            raise ValueError("this run has no rollouts")
        return self._rollout_worker

    def _map_theta(self, *, writable: bool = False) -> np.ndarray:
        """Map the swarm's parameters, fp32; writable only for the one command that sets them."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        count = self._configured().parameters
        return np.frombuffer(mmap.mmap(self._theta_fd, 4 * count, access=access), dtype="<f4", count=count)

    def _map_state(self) -> np.ndarray:
        """Map the swarm's parameters and their momentum, fp32, one behind the other."""
        count = 2 * self._configured().parameters
        return np.frombuffer(mmap.mmap(self._theta_fd, 4 * count, access=mmap.ACCESS_READ), dtype="<f4", count=count)

    def _send(self, job: Job, kind: str, **fields: Any) -> None:
        try:
            self._connection.sendall(frames.pack({"id": job.id, "is": kind, **fields}))
        except OSError:
            os._exit(EXIT_PEER_GONE)


def _end_with(sentence: str, status: int) -> None:
    """End the process because another rank has ended with a status.  The peer shows the last line."""
    print(sentence, file=sys.stderr, flush=True)
    os._exit(status if status == EXIT_NO_MEMORY else EXIT_FAILED)


def _batch(message: dict[str, Any]) -> tuple[Assignment, Path]:
    """Return the assignment of a batch, and the path of its file."""
    task = message["task"]
    assignment = Assignment(
        bytes.fromhex(task["run"]),
        task["version"],
        task["peer"],
        tuple(task["problems"]),
        task["copies"],
        task["number"],
        Precision(task["precision"]),
    )
    return assignment, Path(message["path"])


def _block(missing: BlockMissing) -> dict[str, Any]:
    return {"shard": missing.shard, "number": missing.number}


def _sentence(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU does not have enough memory; close other programs that use it, or join a smaller run"
    if isinstance(error, NotFinite):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no details'}"[:300]
