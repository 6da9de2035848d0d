"""The trainer as a process of its own: started, watched, reaped and started again.

Decides when a trainer is alive, dead or given up.  A trainer keeps no state that matters, so every failure has the same
cure: the call in progress raises `TrainerDied`, and a fresh process is started after a pause that doubles with every
failure in a row; after `MAX_FAILURES` of them without one finished piece of work it is given up (`TrainerGaveUp`), with
the reason, instead of a crash loop.

`run` owns the process: when it is cancelled the process is ended and reaped, and when this program dies in any other way
the trainer sees the end of its socket and ends itself.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from kernels.layout import chunk_layout, payload_bytes
from peer.child_process import how_it_ended, reap
from peer.trainer_log import TrainerLog
from peer.trainer_start import start_trainer
from protocol.run.manifest import RunManifest
from protocol.state.shared_memory import SharedRegion
from protocol.trainer_link import ComputeTask, Contribution, NotMeasured, Progress, TrainerDied, TrainerGaveUp
from trainer.service import frames

START_DEADLINE_S = 180.0
"""Importing torch and reading the corpus on a slow, busy computer."""
SILENCE_DEADLINE_S = 1800.0
"""Without a word for so long while it should work, a trainer hangs (a step takes seconds, the first one may compile)."""
END_DEADLINE_S = 2.0
"""Time to go by itself after its socket is closed, before it is killed."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 60.0
MAX_FAILURES = 5
WATCH_EVERY_S = 5.0
STOPPED = "the trainer was stopped"


@dataclass(frozen=True)
class TrainerSettings:
    """How to start a trainer.

    sections: what `trainer.config.TrainingConfig.from_sections` wants.
    threads: CPU threads at first, 0 for torch's choice.
    device: "auto" (CUDA where there is one), or a name that torch knows.
    """

    sections: Mapping[str, Any]
    contribution_bytes: int
    log_path: Path
    threads: int = 0
    device: str = "auto"
    first_backoff_s: float = FIRST_BACKOFF_S
    start_deadline_s: float = START_DEADLINE_S
    silence_deadline_s: float = SILENCE_DEADLINE_S

    @classmethod
    def for_run(cls, manifest: RunManifest, log_path: Path) -> TrainerSettings:
        """For training `manifest`."""
        size = payload_bytes(chunk_layout(manifest.parameters, manifest.chunk_parameters))
        return cls(manifest.trainer_sections(), size, log_path)


@dataclass
class _Call:
    """A command whose answer somebody waits for."""

    on_progress: Callable[[dict[str, Any]], None]
    answered: trio.Event = field(default_factory=trio.Event)
    answer: dict[str, Any] | None = None
    death: str = ""


class TrainerProcess:
    """A `protocol.trainer_link.TrainerLink` to a real process.

    theta: shared memory that begins with the outer parameters, owned by the caller.
    on_started(pid), on_stopped(reason): for events; called from `run`.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        theta: SharedRegion,
        *,
        on_started: Callable[[int], None] = lambda pid: None,
        on_stopped: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._settings = settings
        self._theta = theta
        self._contribution = SharedRegion(settings.contribution_bytes, "contribution")
        self._on_started, self._on_stopped = on_started, on_stopped
        self._log = TrainerLog(settings.log_path)
        self._scope = trio.CancelScope()
        self._began = False
        self._stopped = trio.Event()
        self._process: trio.Process | None = None
        self._socket: socket.socket | None = None
        self._changed = trio.Event()
        self._ready = False
        self._gave_up = ""
        self._failures = 0
        self._threads = settings.threads
        self._paused = False
        self._busy = False
        self._calls: dict[int, _Call] = {}
        self._reason = ""
        self._heard_at = 0.0
        self._last_id = 0
        self._doing = ""
        self._obstacle = "the trainer process to be started"
        self.threads = 0
        """CPU threads that the last finished round used at its end."""
        self.device = ""
        self.corpus_digest = ""

    @property
    def pid(self) -> int | None:
        """The process's ID while it is ready for work."""
        return self._process.pid if self._process is not None and self._ready else None

    @property
    def waiting_for(self) -> str:
        """What this link waits for now, for a person; empty when for nothing."""
        return self._doing if self._ready else self._gave_up or self._obstacle

    async def start(self, nursery: trio.Nursery) -> None:
        """Run in `nursery`; returns when the trainer is ready.  Raises TrainerDied when it cannot be started."""
        nursery.start_soon(self.run)
        await self._until_ready()

    async def stop(self) -> None:
        """End and reap the process; returns when it is gone.  Calls in progress raise TrainerDied."""
        self._scope.cancel()
        if self._began:
            await self._stopped.wait()

    async def run(self) -> None:
        """Keep a trainer process alive until cancelled, or until it has failed too often in a row."""
        assert not self._began, "a trainer is run once"
        self._began = True
        try:
            with self._scope:
                await self._keep_alive()
        finally:
            if not self._gave_up:
                self._gave_up = STOPPED
                self._on_stopped(STOPPED)
            self._fail_calls(self._gave_up)
            self._wake()
            self._contribution.close()
            self._stopped.set()

    async def initialise(self, theta: memoryview) -> None:
        self._check_theta(theta)
        await self._ask("initialise", "initial parameters")

    async def compute(
        self, task: ComputeTask, theta: memoryview, on_progress: Callable[[Progress], None]
    ) -> Contribution:
        self._check_theta(theta)

        def progress(message: dict[str, Any]) -> None:
            on_progress(
                Progress(task.round, message["steps"], message["loss"], message["tokens"], message["tokens_per_s"])
            )

        answer = await self._ask("compute", f"round {task.round}", progress, task=vars(task))
        self._failures, self.threads = 0, answer["threads"]
        data = self._contribution.view.toreadonly()
        return Contribution(task.round, answer["tokens"], answer["steps"], answer["loss"], answer["norm"], data)

    async def evaluate(self, theta: memoryview, on_progress: Callable[[int, int], None]) -> float:
        self._check_theta(theta)
        await self._until_ready()
        answer = await self._exchange("evaluate", lambda message: on_progress(message["done"], message["total"]))
        if answer["loss"] is None:
            raise NotMeasured(answer["reason"])
        return float(answer["loss"])

    def finish(self) -> None:
        self._send({"do": "finish"})

    def use_threads(self, threads: int) -> None:
        """From the next step on, and in every process to come."""
        if threads != self._threads:
            self._threads = threads
            self._send({"do": "threads", "threads": threads})

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        self._paused = True
        self._send({"do": "pause"})

    def resume(self) -> None:
        self._paused = False
        self._send({"do": "resume"})

    async def _ask(
        self,
        command: str,
        what: str,
        on_progress: Callable[[dict[str, Any]], None] = lambda message: None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Wait for a trainer, send it a command and wait for the answer; cancelling abandons it."""
        assert not self._busy, "the trainer does one thing at a time, and an evaluation beside it"
        self._busy = True
        try:
            await self._until_ready()
            self._doing = what
            return await self._exchange(command, on_progress, **fields)
        finally:
            self._busy = False
            self._doing = ""

    async def _exchange(
        self, command: str, on_progress: Callable[[dict[str, Any]], None], **fields: Any
    ) -> dict[str, Any]:
        id = self._last_id = self._last_id + 1
        call = self._calls[id] = _Call(on_progress)
        try:
            self._send({"do": command, "id": id, **fields})
            await call.answered.wait()
        except trio.Cancelled:
            self._send({"do": "abandon", "id": id})
            raise
        finally:
            self._calls = {key: other for key, other in self._calls.items() if other is not call}
        if call.answer is None:
            raise TrainerDied(call.death)
        return call.answer

    async def _until_ready(self) -> None:
        while not self._ready:
            if self._gave_up:
                raise TrainerGaveUp(self._gave_up)
            await self._changed.wait()

    def _check_theta(self, theta: memoryview) -> None:
        assert theta.nbytes <= self._theta.size, "the trainer reads the region it was given at its start"

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _fail_calls(self, reason: str) -> None:
        for call in self._calls.values():
            call.death = reason
            call.answered.set()

    def _send(self, message: dict[str, Any]) -> None:
        """Commands are far smaller than the socket's buffer, and the trainer always reads: this never blocks."""
        if self._socket is None:
            return
        data = frames.pack(message)
        try:
            sent = self._socket.send(data)
        except OSError:
            sent = 0
        if sent != len(data) and self._process is not None:
            self._process.kill()  # it is gone or does not read; its end is noticed where its socket is read

    async def _keep_alive(self) -> None:
        while True:
            self._reason = ""
            reason = await self._one_life()
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                self._gave_up = f"the trainer failed {self._failures} times in a row, last: {reason}"
            self._fail_calls(reason)
            self._wake()
            self._on_stopped(self._gave_up or reason)
            if self._gave_up:
                return
            self._obstacle = f"a new trainer process ({reason})"
            await trio.sleep(min(MAX_BACKOFF_S, self._settings.first_backoff_s * 2 ** (self._failures - 1)))

    async def _one_life(self) -> str:
        """Start a process, serve it until its end of the socket is closed, reap it.  Returns why it died."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    process = await start_trainer((theirs.fileno(), self._theta.fd, self._contribution.fd))
                except OSError as error:
                    return f"the trainer could not be started: {error}"
            try:
                self._process, self._socket, self._heard_at = process, ours, trio.current_time()
                async with trio.open_nursery() as nursery:
                    assert process.stdout is not None
                    nursery.start_soon(self._log.drain, process.stdout)
                    nursery.start_soon(self._watch, process)
                    nursery.start_soon(self._configure, process)
                    try:
                        await self._listen(ours)
                    except (ValueError, TypeError, KeyError) as error:
                        self._reason = f"the trainer spoke nonsense: {error}"
                        process.kill()
                    self._ready = False
                    await reap(process, END_DEADLINE_S)
                    await self._log.drained()
                    nursery.cancel_scope.cancel()
            finally:
                self._ready, self._process, self._socket = False, None, None
                ours.close()  # which ends the trainer
                with trio.CancelScope(shield=True):
                    await reap(process, END_DEADLINE_S)
        return self._reason or f"the trainer {how_it_ended(process.returncode, self._log.last_line)}"

    async def _configure(self, process: trio.Process) -> None:
        settings = self._settings
        self._obstacle = "the trainer process to get ready"
        fields = {"sections": dict(settings.sections), "device": settings.device}
        if self._threads:
            self._send({"do": "threads", "threads": self._threads})
        try:
            answer = await self._exchange("configure", lambda message: None, **fields)
        except TrainerDied:
            return  # told by _one_life
        if 4 * answer["parameters"] > self._theta.size:
            self._reason = f"the trainer's model has {answer['parameters']} parameters, more than fit into the state"
            process.kill()
            return
        self.device, self.corpus_digest = answer["device"], answer["corpus"]
        self._ready = True
        if self._paused:
            self._send({"do": "pause"})
        self._on_started(process.pid)
        self._wake()

    async def _listen(self, ours: socket.socket) -> None:
        """Deliver what the trainer says, until it says nothing ever more."""
        buffer = bytearray()
        while True:
            await trio.lowlevel.wait_readable(ours.fileno())
            try:
                data = ours.recv(frames.MAX_FRAME_BYTES)
            except BlockingIOError:
                continue
            except ConnectionError:
                return
            if not data:
                return
            buffer += data
            self._heard_at = trio.current_time()
            while (message := frames.take(buffer)) is not None:
                self._deliver(message)

    def _deliver(self, message: dict[str, Any]) -> None:
        call = self._calls.get(message["id"])
        match message["is"]:
            case "failed":
                self._reason = message["reason"]  # its end follows, and is what the caller waits for
            case "progress" if call is not None:
                call.on_progress(message)
            case "progress":
                pass  # of something abandoned
            case _ if call is not None:
                call.answer = message
                call.answered.set()

    async def _watch(self, process: trio.Process) -> None:
        """Kill a trainer that has been silent for too long while it has something to do."""
        while True:
            await trio.sleep(WATCH_EVERY_S)
            limit_s = self._settings.silence_deadline_s if self._ready else self._settings.start_deadline_s
            if not self._calls or (self._paused and self._ready):
                self._heard_at = trio.current_time()
            elif trio.current_time() - self._heard_at > limit_s:
                self._reason = f"the trainer said nothing for {limit_s:.0f} s"
                process.kill()
