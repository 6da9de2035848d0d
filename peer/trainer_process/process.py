"""Supervision of the trainer process: starting, watching, reaping and restarting it.

This module decides whether a trainer is alive, dead or given up.  A trainer keeps no important state, so every failure has
the same remedy.  The call in progress raises `TrainerDied`, and a fresh process is started after a pause that doubles with
every failure in a row.  After `MAX_FAILURES` in a row without one finished piece of work, the trainer is given up
(`TrainerGaveUp`), with the reason, instead of a crash loop.  A death during work on strangers' bytes does not count, because
a few such batches could otherwise end a peer.  A retry library would not help: the pause is one line, and every death is
reported.

`run` owns the process.  When `run` is cancelled, the process is ended and reaped.  When this program dies in any other way,
the trainer sees the end of its socket and ends itself.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import psutil
import trio

from peer.environment import ChildKind, child_environment
from peer.errors import PeerError
from peer.paths import make_private
from peer.trainer_process.channel import Listener, TrainerChannel, TrainerLog, how_it_ended, reap, unheard
from protocol.chain.outer_state import SharedRegion
from protocol.disk import ScratchFolder
from protocol.events.events import Event, Notice, TrainerStarted, TrainerStopped
from protocol.formats.bets import is_growth
from protocol.formats.results import PolicyFigures, RatedAnswer, SourceLoss
from protocol.formats.rl import Precision
from protocol.run.manifest import RunManifest
from protocol.trainer_link import (
    ComputeTask,
    Contribution,
    DeviceFigures,
    EvaluatedLoss,
    Generated,
    NotMeasured,
    Progress,
    ReceiptAudit,
    RolloutTask,
    RolloutVerdict,
    SharedTaskFile,
    TrainerDied,
    TrainerGaveUp,
    Tried,
)
from protocol.wire.hashes import Hash
from protocol.wire.rollouts import Reason, Verdict
from trainer.generate.choice import GeneratorName
from trainer.memory import EXIT_NO_MEMORY
from trainer.silence import LOOK_S, SilenceClock, load_average, usable_cores

# ------------------------------------------------------------------------------------------------------------------------
# Start of a trainer process: its command, inherited files, and environment.


PROGRAM: tuple[str, ...] = ("trainer",)
"""Module to run, and the arguments before its options."""
OPTIONS = ("--fd", "--theta-fd", "--contribution-fd")
COMPILED = "compiled"
"""Folder of the compiled layers, beside the trainer's log."""


async def start_trainer(fds: Sequence[int], folder: Path) -> trio.Process:
    """Start a trainer with its socket, theta and contribution (`OPTIONS`); raises OSError and PeerError.

    folder: folder of its compiled layers.
    """
    options = [text for name, fd in zip(OPTIONS, fds, strict=True) for text in (name, str(fd))]
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", *PROGRAM, *options],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(os.environ, make_private(folder)),
    )


ALLOCATOR = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296"
"""Tunables with which glibc keeps freed memory for the next step and requests large pages.

By default each large tensor is memory that the kernel maps, clears and takes back, which costs a fifth of a step in bf16.
"""


def environment(ours: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return a trainer's environment variables, given the peer's (`ours`) and the folder of compiled layers.

    OpenMP and glibc read their variables when they are loaded, so these have to be set here. OpenMP's idle threads sleep,
    instead of keeping a core busy that another trainer could use. Compiled layers are kept where no other user can write;
    torch would otherwise keep precompiled headers in the temp folder, in which another user may have put such files. CUDA
    numbers GPUs by speed unless it is told to number them as NVIDIA's tools do.
    """
    defaults = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLIBC_TUNABLES": ALLOCATOR,
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    return {**defaults, **child_environment(ChildKind.TRAINER, ours), "PYTHONUNBUFFERED": "1"}


def processor_time(pid: int) -> float:
    """Return the processor time (s) of a process and of its children, such as ranks and sandboxes, that still run.

    0 if the process has ended, or if this system does not tell.
    """
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0.0
    used_s = 0.0
    for each in family:
        with suppress(psutil.Error):
            times = each.cpu_times()
            used_s += times.user + times.system
    return used_s


# ------------------------------------------------------------------------------------------------------------------------
# Share of the last hour in which the trainer was busy.


HOUR_S = 3600.0
MOST_SHIFTS = 4096
"""Largest number of remembered shifts; with more in an hour, the oldest are forgotten, and the share is too low."""


class BusyHour:
    """Record of the shifts of the last hour.

    began: time from which it could have been busy; all times come from one clock.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._shifts: deque[tuple[float, float]] = deque(maxlen=MOST_SHIFTS)
        self._since: float | None = None
        self._is_shift = False

    @contextmanager
    def shift(self, clock: Callable[[], float]) -> Iterator[None]:
        """Count the time in the context as busy."""
        self._since, self._is_shift = clock(), True
        try:
            yield
        finally:
            self.pause(clock())
            self._is_shift = False

    def pause(self, now: float) -> None:
        """Stop counting a shift until `resume`."""
        if self._since is not None:
            self._shifts.append((self._since, now))
            self._since = None

    def resume(self, now: float) -> None:
        """Continue to count a shift that was paused."""
        if self._is_shift and self._since is None:
            self._since = now

    def leave_out(self, seconds: float, now: float) -> None:
        """Count this many seconds of the running shift as not busy."""
        if self._since is not None:
            self._since = min(now, self._since + seconds)

    def share(self, now: float) -> float:
        """Return the share, 0 to 1, of the last hour, or of the time since it began."""
        start = max(self._began, now - HOUR_S)
        while self._shifts and self._shifts[0][1] <= start:
            self._shifts.popleft()
        running = [(self._since, now)] if self._since is not None else []
        busy = sum(end - max(begin, start) for begin, end in [*self._shifts, *running])
        return busy / max(now - start, 1e-9) if now > start else 0.0


# ------------------------------------------------------------------------------------------------------------------------


START_DEADLINE_S = 180.0
"""Seconds for importing torch on a slow computer, by `trainer.silence.SilenceClock`."""
SILENCE_DEADLINE_S = 1800.0
"""Seconds of silence during work after which a trainer counts as hung, by the same clock.

A step takes seconds; the first step may compile.
"""
SHOWN_AFTER_S = 15.0
"""Seconds of silence after which the status says that the computer is too busy."""
END_DEADLINE_S = 2.0
"""Seconds to wait for the process to end by itself after its socket is closed; then it is killed."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 60.0
MAX_FAILURES = 5
STOPPED = "the trainer was stopped"
UNMEASURED = "the trainer's power cannot be measured ({device} has no energy counter), so max_power has no effect"


@dataclass(frozen=True)
class TrainerPlaces:
    """Places of a run's data on this computer.

    files: paths, by name, at which the run's files will lie when the trainer is started.  blocks: folders with blocks of its
    corpora.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    blocks: Sequence[Path] = ()

    @property
    def sections(self) -> dict[str, Any]:
        """Input of `trainer.config.TrainingConfig.from_sections`."""
        here = {name: str(path) for name, path in self.files.items()}
        return {"files": here, "blocks": [str(folder) for folder in self.blocks]}


@dataclass(frozen=True)
class TrainerRanks:
    """Processes of a trainer that share one model.

    gpus: "all", or numbers of GPUs with commas between them, with a process for each; empty for the usual device.
    processes: number of processes on a CPU.  offload: True to keep parameters and optimiser, or beside an adapter the frozen
    layers, in the computer's memory.  offload_later: True to do so in processes after one that ran out of memory.
    """

    gpus: str = ""
    processes: int = 1
    offload: bool = False
    offload_later: bool = False


@dataclass(frozen=True)
class TrainerSettings:
    """Settings for starting a trainer.

    sections: input of `trainer.config.TrainingConfig.from_sections`.
    region_bytes: size of the memory for a contribution, and the receipts behind it, of which there are `receipt_bytes`.
    trains: True if the trainer learns; otherwise it only makes and judges rollouts, and has no optimiser.
    threads: CPU threads at first, 0 for torch's choice.
    device: "auto" (CUDA if there is one), or a name that torch knows.
    moments: folder in which the trainer keeps its optimiser's moments for a later process; None to keep none.
    generator: name of the program that makes rollouts.
    scratch: the folder of the file for the contribution; None to hold it in memory.
    ranks: processes that share the model.
    compiles: "on" or "off" to have torch compile the layers or not; "auto" to compile them on a GPU.
    """

    sections: Mapping[str, Any]
    region_bytes: int
    log_path: Path
    trains: bool = True
    receipt_bytes: int = 0
    threads: int = 0
    device: str = "auto"
    moments: Path | None = None
    generator: GeneratorName = GeneratorName.BUILTIN
    first_backoff_s: float = FIRST_BACKOFF_S
    scratch: ScratchFolder | None = None
    ranks: TrainerRanks = TrainerRanks()
    compiles: str = "auto"

    @classmethod
    def for_run(
        cls,
        manifest: RunManifest,
        log_path: Path,
        places: TrainerPlaces | None = None,
        *,
        trains: bool = True,
        moments: Path | None = None,
        generator: GeneratorName = GeneratorName.BUILTIN,
        ranks: TrainerRanks | None = None,
    ) -> TrainerSettings:
        """Return the settings for the work of `manifest`.  places: places of the run's data; None if it has none."""
        size = manifest.layouts.contribution.payload_bytes + manifest.receipt_bytes
        sections = manifest.trainer_sections() | (places or TrainerPlaces()).sections
        ranks = ranks or TrainerRanks()
        return cls(
            sections,
            size,
            log_path,
            trains,
            receipt_bytes=manifest.receipt_bytes,
            moments=moments,
            generator=generator,
            ranks=ranks,
        )


class TrainerProcess:
    """Implementation of `protocol.trainer_link.TrainerLink` by a real process.

    theta: shared memory that begins with the outer parameters, owned by the caller.
    emit: called with TrainerStarted and TrainerStopped, from `run`.
    """

    def __init__(
        self, settings: TrainerSettings, theta: SharedRegion, emit: Callable[[Event], None] = lambda event: None
    ) -> None:
        self._settings, self._theta, self._emit = settings, theta, emit
        self._contribution = SharedRegion(settings.region_bytes, "contribution", settings.scratch)
        self._log = TrainerLog(settings.log_path)
        self._channel: TrainerChannel | None = None
        self._ready = False
        self._measures_power = True
        self._changed = trio.Event()
        self._gave_up = ""
        self._failures = self._spoilt = self._ends = 0
        self._lacked_memory = self._spares_memory = False
        """True if the last process ran out of memory, and if later ones do with less."""
        self._at_risk = False
        """True during work on strangers' bytes: a death is then the strangers' fault, and only lengthens the pause."""
        self._threads, self._watts, self._load = settings.threads, 0.0, 1.0
        self._paused = False
        self._busy = False
        self._tell_of_load: Callable[[str], None] = lambda sentence: None
        self._report_missing: Callable[[Hash, int], None] = lambda shard, number: None
        self.threads = 0
        """CPU threads in use at the end of the last finished round."""
        self.device = ""
        """Device on which it computes, in torch's words; empty before it was first ready."""
        self.figures: DeviceFigures | None = None
        self.audits = False
        """True if the last process can audit receipts."""
        self.joules_per_token: float | None = None
        self._shifts: BusyHour | None = None
        self._ends, self._last_end = 0, ""
        """Number of processes that have ended, and the reason of the last end."""

    @property
    def busy_share(self) -> float | None:
        """Share of the last hour in which it trained; None before it was first ready."""
        return self._shifts.share(trio.current_time()) if self._shifts is not None else None

    @property
    def pid(self) -> int | None:
        """ID of the process while it is ready for work."""
        return self._channel.process.pid if self._channel is not None and self._ready else None

    @property
    def ended(self) -> str:
        """Sentence on the processes that ended since the last finished piece of work, with a reason; empty if none did."""
        times = "once" if self._ends == 1 else f"{self._ends} times"
        return f"the trainer ended {times} and is started again; last: {self._last_end}" if self._ends else ""

    async def run(self) -> str:
        """Keep a trainer process alive until cancelled or failed too often in a row; return the reason.  Call it once."""
        try:
            return await self._keep_alive()
        finally:
            if not self._gave_up:
                self._gave_up = STOPPED
                self._emit(TrainerStopped(STOPPED))
            self._fail_calls(self._gave_up)
            self._wake()
            self._contribution.close()

    async def until_ready(self) -> None:
        """Wait until a process is ready for work; raises TrainerGaveUp."""
        while not self._ready:
            if self._gave_up:
                raise TrainerGaveUp(self._gave_up)
            await self._changed.wait()

    # -- work ---------------------------------------------------------------------------------------------------------

    async def initialise(self, theta: memoryview) -> None:
        """Write the initial parameters into `theta`; raises TrainerDied."""
        self._check_theta(theta)
        await self._ask_alone("initialise")

    async def compute(
        self,
        task: ComputeTask,
        theta: memoryview,
        on_progress: Callable[[Progress], None],
        applied: trio.Event | None = None,
    ) -> Contribution:
        """Compute as `TrainerLink.compute` describes."""
        assert (applied is not None) == task.continues
        self._check_theta(theta)

        def progress(message: dict[str, Any]) -> None:
            on_progress(Progress(task.round, message["steps"], message["loss"], message["tokens"], message["tokens_per_s"]))

        folders = {str(path.parent) for path in task.rollouts} or {""}
        assert len(folders) == 1, "all batches lie in one folder"
        names = {"rollouts": [path.name for path in task.rollouts], "rollouts_in": folders.pop()}
        fields = {**vars(task), **names, "reference": str(task.reference or "")}
        tried: list[Tried] = []

        def hear(message: dict[str, Any]) -> None:
            if "tried" in message:
                tried.extend(Tried(*each) for each in message["tried"])
            elif "waits" in message:
                begun.set()
                (shifts.pause if message["waits"] else shifts.resume)(trio.current_time())
            elif not self._tell_of_missing(message):
                progress(message)

        begun = trio.Event()
        await self.until_ready()
        shifts = self._shifts = self._shifts or BusyHour(trio.current_time())
        with shifts.shift(trio.current_time):
            if applied is None:
                answer = await self._ask_alone("compute", hear, task=fields)
            else:
                answer = await self._ask_and_tell(hear, fields, begun, applied)
            shifts.leave_out(answer["rested"], trio.current_time())
        self._worked()
        self.threads, joules = answer["threads"], answer["joules"]
        self.joules_per_token = joules / answer["tokens"] if joules is not None else None
        region = self._contribution.view.toreadonly()
        size = len(region) - self._settings.receipt_bytes
        told = ("tokens", "steps", "loss", "norm", "reward", "kl", "margin", "accuracy", "informative")
        return Contribution(
            task.round,
            data=region[:size],
            receipts=region[size : size + answer["receipts"]],
            tried=tuple(tried),
            losses=tuple(SourceLoss(**each) for each in answer["losses"]),
            answers=tuple(RatedAnswer(**each) for each in answer["answers"]),
            policy=PolicyFigures(**answer["policy"]) if answer["policy"] is not None else None,
            **{name: answer[name] for name in told},
        )

    async def _ask_and_tell(
        self, hear: Listener, task: dict[str, Any], begun: trio.Event, applied: trio.Event
    ) -> dict[str, Any]:
        """Have the trainer compute, and tell it when the last round's result is in theta.  begun: set once it computes."""

        async def tell() -> None:
            await begun.wait()
            await applied.wait()
            self._send({"do": "applied"})

        answer, death = dict[str, Any](), None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            try:
                answer = await self._ask_alone("compute", hear, task=task)
            except TrainerDied as error:
                death = error
            nursery.cancel_scope.cancel()
        if death is not None:
            raise death
        return answer

    async def evaluate(
        self, theta: memoryview, on_progress: Callable[[int, int], None], row: int = 0, *, samples: bool = False
    ) -> EvaluatedLoss:
        """Evaluate as `TrainerLink.evaluate` describes."""
        self._check_theta(theta)

        def hear(message: dict[str, Any]) -> None:
            self._tell_of_missing(message)
            on_progress(message["done"], message["total"])

        answer = await self._ask("evaluate", hear, row=row, samples=samples)
        if answer["loss"] is None:
            raise NotMeasured(answer["reason"])
        losses = {str(each["source"]): float(each["loss"]) for each in answer.get("losses", ()) if each["tokens"]}
        return EvaluatedLoss(float(answer["loss"]), losses, tuple(map(str, answer["samples"])))

    async def audit(self, task: ReceiptAudit, state: memoryview) -> list[float]:
        """Audit as `TrainerLink.audit` describes."""
        assert state.nbytes == self._theta.size, "the trainer reads the region it was given at its start"

        def hear(message: dict[str, Any]) -> None:
            self._tell_of_missing(message)

        points = [{"share": each.share, "rows": each.rows, "claimed": each.claimed.hex()} for each in task.points]
        fields = {"result": str(task.result), "rate": task.rate, "momentum": task.momentum, "points": points}
        answer = await self._ask_alone("audit", hear, task=fields)
        if answer["cosines"] is None:
            raise NotMeasured(answer["reason"])
        return [math.nan if each is None else float(each) for each in answer["cosines"]]

    def report_missing(self, report: Callable[[Hash, int], None]) -> None:
        """Report missing blocks as `TrainerLink.report_missing` describes."""
        self._report_missing = report

    def _tell_of_missing(self, message: dict[str, Any]) -> bool:
        """Report the block for which a command waits; return False if the message does not name one."""
        if (waiting := message.get("waiting")) is None:
            return False
        self._report_missing(Hash(bytes.fromhex(waiting["shard"])), waiting["number"])
        return True

    def report_load(self, report: Callable[[str], None]) -> None:
        """Call `report` with a sentence while this computer is so busy that the trainer is late, then with an empty one."""
        self._tell_of_load = report

    def finish(self) -> None:
        """Stop the running compute after its current step, and contribute its work so far."""
        self._send({"do": "finish"})

    def use_threads(self, threads: int) -> None:
        """Use this many threads from the next step on, also in later processes."""
        if threads != self._threads:
            self._threads = threads
            self._send({"do": "threads", "threads": threads})

    def limit_pace(self, watts: float | None, load: float | None) -> None:
        """Limit the average power of the GPU, and the share of the time with work, also in later processes; None: no limit.

        A running wait ends at once if the new limits allow it.
        """
        before, self._watts, self._load = (self._watts, self._load), watts or 0.0, load or 1.0
        if before == (self._watts, self._load):
            return
        self._send({"do": "pace", "watts": self._watts, "load": self._load})
        if self._ready and before[0] != self._watts:
            self._tell_power()

    def _tell_power(self) -> None:
        if self._watts and not self._measures_power:
            self._emit(Notice("warning", UNMEASURED.format(device=self.device)))

    @property
    def paused(self) -> bool:
        """True after `pause`, until `resume`."""
        return self._paused

    def pause(self) -> None:
        """Compute nothing after the current step, also in later processes."""
        self._paused = True
        if self._shifts is not None:
            self._shifts.pause(trio.current_time())
        self._send({"do": "pause"})

    def resume(self) -> None:
        """Compute again after `pause`."""
        self._paused = False
        if self._shifts is not None:
            self._shifts.resume(trio.current_time())
        self._send({"do": "resume"})

    def _worked(self) -> None:
        """Reset the counts of failures, after a finished piece of work."""
        self._failures = self._spoilt = self._ends = 0

    def _check_theta(self, theta: memoryview) -> None:
        assert theta.nbytes <= self._theta.size, "the trainer reads the region it was given at its start"

    async def _ask_alone(self, command: str, on_progress: Listener = unheard, **fields: Any) -> dict[str, Any]:
        """Ask as `_ask` does, for work of which the trainer does one piece at a time."""
        assert not self._busy, "the trainer does one thing at a time, apart from an evaluation"
        self._busy = True
        try:
            return await self._ask(command, on_progress, **fields)
        finally:
            self._busy = False

    async def _ask(self, command: str, on_progress: Listener, **fields: Any) -> dict[str, Any]:
        """Wait for a trainer, send a command and wait for its answer; cancelling abandons it.  Raises TrainerDied."""
        await self.until_ready()
        assert self._channel is not None, "a trainer that is ready can be spoken to"
        return await self._channel.ask(command, on_progress, **fields)

    def _send(self, message: dict[str, Any]) -> None:
        """Send to the process, if there is one; `_configure` repeats lasting settings to the next one."""
        if self._channel is not None:
            self._channel.send(message)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _keep_alive(self) -> str:
        while True:
            self._lacked_memory = False
            reason = await self._one_life()
            self._ends, self._last_end = self._ends + 1, reason
            if self._lacked_memory and not self._spares_memory:
                self._spares_memory = True
                self._emit(Notice("warning", f"the trainer ran out of memory, and starts again with less: {reason}"))
            else:
                self._spoilt += self._at_risk
                self._failures += not self._at_risk
            if self._failures >= MAX_FAILURES:
                self._gave_up = f"the trainer failed {self._failures} times in a row, last: {reason}"
            self._fail_calls(reason)
            self._channel = None
            self._wake()
            self._emit(TrainerStopped(self._gave_up or reason))
            if self._gave_up:
                return self._gave_up
            await trio.sleep(
                min(MAX_BACKOFF_S, self._settings.first_backoff_s * 2 ** min(9, self._failures + self._spoilt - 1))
            )

    async def _one_life(self) -> str:
        """Start a process, serve it until its end of the socket is closed, and reap it.  Return the reason for its death."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            return f"the trainer could not be started: {error}"
        with ours:
            with theirs:
                try:
                    fds = theirs.fileno(), self._theta.fd, self._contribution.fd
                    process = await start_trainer(fds, self._settings.log_path.with_name(COMPILED))
                except (OSError, PeerError) as error:
                    return f"the trainer could not be started: {error}"
            channel = self._channel = TrainerChannel(ours, process)
            try:
                async with trio.open_nursery() as nursery:
                    assert process.stdout is not None
                    nursery.start_soon(self._log.drain, process.stdout)
                    nursery.start_soon(self._watch, channel)
                    nursery.start_soon(self._configure, channel)
                    await channel.listen()
                    self._ready = False
                    await reap(process, END_DEADLINE_S)
                    await self._log.drained()
                    nursery.cancel_scope.cancel()
            finally:
                self._ready = False
                self._tell_of_load("")
                ours.close()  # ends the trainer
                with trio.CancelScope(shield=True):
                    await reap(process, END_DEADLINE_S)
        self._lacked_memory = process.returncode == EXIT_NO_MEMORY
        return channel.fault or f"the trainer {how_it_ended(process.returncode, self._log.last_line)}"

    async def _configure(self, channel: TrainerChannel) -> None:
        settings, ranks = self._settings, self._settings.ranks
        offload = ranks.offload or (self._spares_memory and ranks.offload_later)
        if self._threads:
            channel.send({"do": "threads", "threads": self._threads})
        if self._watts or self._load < 1:
            channel.send({"do": "pace", "watts": self._watts, "load": self._load})
        answer = await channel.ask(
            "configure",
            sections={
                **settings.sections,
                "spares_memory": self._spares_memory,
                "compiles": settings.compiles,
                "offload": offload,
            },
            device=settings.device,
            trains=settings.trains,
            moments=str(settings.moments or ""),
            generator=settings.generator.value,
            gpus=ranks.gpus,
            processes=ranks.processes,
        )
        if 4 * answer["parameters"] > self._theta.size:
            channel.kill(f"the trainer's model has {answer['parameters']} parameters, more than fit into the state")
            return
        self._ready, self.device = True, str(answer["device"])
        if settings.trains:
            self.figures = DeviceFigures(
                f"{self.device}, {answer['precision']}", float(answer["matmul_flops"]), float(answer["flops_per_token"])
            )
            self._shifts = self._shifts or BusyHour(trio.current_time())
        if self._paused:
            channel.send({"do": "pause"})
        self._measures_power = bool(answer["measures_power"])
        self.audits = bool(answer["audits"])
        self._emit(TrainerStarted(channel.process.pid))
        self._tell_power()
        self._wake()

    async def _watch(self, channel: TrainerChannel) -> None:
        """Kill a trainer that is silent for too long while it has work; report a computer that is too busy."""
        heard_at, clock, told = -inf, SilenceClock(0.0, 0.0, 1), ""
        while True:
            await trio.sleep(LOOK_S)
            if not channel.busy or (self._paused and self._ready):
                channel.heard_at = trio.current_time()
            used_s = processor_time(channel.process.pid)
            if channel.heard_at > heard_at:
                heard_at = channel.heard_at
                clock = SilenceClock(heard_at, used_s, usable_cores())
            clock.look(trio.current_time(), used_s, load_average())
            busy = clock.busy if clock.wall_s >= SHOWN_AFTER_S else ""
            if bool(busy) != bool(told):  # not for each new load
                told = busy
                self._tell_of_load(busy)
            if clock.is_over(SILENCE_DEADLINE_S if self._ready else START_DEADLINE_S):
                channel.kill(f"the trainer said nothing {clock.describe()}")

    def _fail_calls(self, reason: str) -> None:
        if self._channel is not None:
            self._channel.fail(reason)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


# ------------------------------------------------------------------------------------------------------------------------
# Trainer process of a run with rollouts: it also keeps versions of the weights, and makes and verifies batches.


class RolloutProcess(TrainerProcess):
    """Implementation of `protocol.trainer_link.RolloutLink` by a real process."""

    async def keep_version(self, version: int, theta: memoryview) -> None:
        """Keep a version as `RolloutLink.keep_version` describes."""
        self._check_theta(theta)
        await self._ask_alone("keep_version", version=version)

    async def use_tasks(self, sets: Sequence[SharedTaskFile]) -> Mapping[int, str]:
        """Use tasks as `RolloutLink.use_tasks` describes."""
        answer = await self._ask_alone("use_tasks", sets=[{**vars(each), "path": str(each.path)} for each in sets])
        return dict(answer["unusable"])

    async def generate(self, task: RolloutTask, path: Path, on_progress: Callable[[int, int], None]) -> Generated:
        """Generate as `RolloutLink.generate` describes."""

        def progress(message: dict[str, Any]) -> None:
            on_progress(message["done"], message["total"])

        answer = await self._ask_alone("generate", progress, task=_fields(task), path=str(path))
        self._worked()
        return Generated(answer["rollouts"], answer["tokens"], Precision(answer["precision"]))

    async def verify(self, task: RolloutTask, path: Path) -> tuple[RolloutVerdict, ...]:
        """Verify as `RolloutLink.verify` describes."""
        told: list[dict[str, Any]] = []
        await self.until_ready()  # a death before the trainer has the bytes is its own fault
        self._at_risk = True
        try:
            await self._ask_alone(
                "verify", lambda message: told.extend(message["verdicts"]), task=_fields(task), path=str(path)
            )
        finally:
            self._at_risk = False
        self._worked()
        found = []
        for each in told:
            verdict = Verdict.ACCEPT if each["reward"] is not None else Verdict.INCONCLUSIVE
            verdict, reason = Verdict.REJECT if each["reason"] else verdict, Reason(each["reason"])
            growth = tuple(map(float, each["growth"]))
            assert not growth or is_growth(growth), "the trainer process reports one finite number for each bet"
            figures = {name: each[name] for name in ("detail", "reward", "tokens", "exact", "sure")}
            found.append(RolloutVerdict(verdict, reason, **figures, growth=growth))
        return tuple(found)


def _fields(task: RolloutTask) -> dict[str, Any]:
    """Return the fields of a batch for the trainer."""
    return {**vars(task), "run": task.run.hex(), "precision": task.precision.value}
