"""Sequence of measurements: only one runs at a time, so that no measurement slows another one down."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import trio

from kernels.codecs.ladder import INT4
from peer.control.client import ControlClient, ControlError, NotRunning
from peer.corpora.builtin import builtin_corpus
from peer.errors import ExitCode, PeerError
from peer.measurements.exchange import ExchangeSpeed, measure_exchange
from peer.resources.computer import available_memory, free_gpu_memory, memory_need, sole_process, usable_cores
from peer.resources.core_share import chosen_threads
from peer.resources.pace import keep_line
from peer.trainer_process.process import TrainerProcess, TrainerSettings
from protocol.chain.outer_state import SharedRegion
from protocol.formats.model import ModelConfig
from protocol.formatting import size
from protocol.run.manifest import RunManifest, demo_manifest
from protocol.run.sections import BUILTIN, DataSection, builtin_source
from protocol.trainer_link import ComputeTask, Progress, TrainerDied

# ------------------------------------------------------------------------------------------------------------------------
# Named model sizes for `peer bench --train`; the example run files use the same sizes.


DEMO = "demo"
_LLAMA3 = {"vocab": 128_256, "rope_base": 500_000.0, "tied": False}
SHAPES: Mapping[str, Mapping[str, object]] = {
    "150m": {"vocab": 32_000, "dim": 1024, "layers": 12, "heads": 16, "kv_heads": 16, "ffn": 2816, "tied": False},
    "1b": {**_LLAMA3, "dim": 2048, "layers": 18, "heads": 16, "kv_heads": 8, "ffn": 7168},
    "8b": {**_LLAMA3, "dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14_336},
    "10b": {**_LLAMA3, "dim": 4096, "layers": 42, "heads": 32, "kv_heads": 8, "ffn": 14_336},
}
LENGTHS = {"150m": 1024, "1b": 2048, "8b": 8192, "10b": 8192}
"""Tokens of a row."""
GPU_ROWS = 8
"""Rows of a step on a GPU.  On a CPU a step has one row, because a row of the smallest model takes a minute there."""


def sized(name: str, *, on_gpu: bool = False) -> RunManifest:
    """Return a run with a model of this size, on the text that comes with the program; `DEMO` is the demo run."""
    demo = demo_manifest().manifest
    if name == DEMO:
        return demo
    length, rows = LENGTHS[name], GPU_ROWS if on_gpu else 1
    data = DataSection(sequence_length=length, sequences_per_step=rows, corpora=[BUILTIN], sources=[builtin_source(length)])
    return demo.model_copy(update={"model": ModelConfig.model_validate(SHAPES[name]), "data": data})


# ------------------------------------------------------------------------------------------------------------------------
# Measured figures as plain numbers, from which the JSON object and the table are made.


@dataclass(frozen=True)
class CodecSpeed:
    """Speed of the codec on one core, over fp32 values of 4 bytes each."""

    encode_parameters_per_s: float
    decode_parameters_per_s: float
    encode_mb_per_s: float
    decode_mb_per_s: float


@dataclass(frozen=True)
class TrainingSpeed:
    """Training speed of a model in a real trainer.

    model: name of its size.  device: the trainer's device.  precision: precision of its matrix products.  mfu: share of
    the device's measured speed that training reaches.
    """

    tokens_per_s: float
    device: str
    threads: int
    parameters: int
    steps: int
    model: str = DEMO
    precision: str = ""
    mfu: float = 0.0


@dataclass(frozen=True)
class DiskSpeed:
    """Speed of writing, then of reading, in the data directory.

    read_is_cached: True if reads could not bypass the page cache.
    """

    write_bytes_per_s: float
    read_bytes_per_s: float
    bytes_moved: int
    read_is_cached: bool


@dataclass(frozen=True)
class PeerLine:
    """Line from one peer to this one.  problem: reason why no data came; empty if data came."""

    peer: str
    name: str
    down_bytes: int
    down_bytes_per_s: float
    problem: str


@dataclass(frozen=True)
class LineSpeed:
    """Speed of the lines to some peers of a run.

    up_bytes_per_s: rate observed in pushes to these peers; without one, this peer's cap; 0 if neither is known.
    """

    run: str
    peers: list[PeerLine]
    up_bytes_per_s: float

    @property
    def down_bytes_per_s(self) -> float:
        """Highest rate at which a peer sent; 0 if no peer sent anything."""
        return max((line.down_bytes_per_s for line in self.peers), default=0.0)


@dataclass
class Figures:
    """Measured figures.  missing: reasons for the missing figures, by name."""

    codec: CodecSpeed | None = None
    exchange: ExchangeSpeed | None = None
    training: TrainingSpeed | None = None
    disk: DiskSpeed | None = None
    lines: LineSpeed | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def to_fields(self) -> dict[str, Any]:
        """Return the figures as a map of maps."""
        fields = asdict(self)
        if self.lines is not None:
            fields["lines"]["down_bytes_per_s"] = self.lines.down_bytes_per_s
        return fields


# ------------------------------------------------------------------------------------------------------------------------
# Write and read speed of the disk under the data directory, measured with one unnamed file.  Blocking.


MOST_BYTES = 256 << 20
PIECE_BYTES = 8 << 20
DISK_S = 1.5
"""Seconds for writing, and for reading; on a slow disk, fewer bytes are written and read."""
KEPT_FREE_BYTES = 256 << 20


def measure_disk(folder: Path, most_bytes: int = MOST_BYTES, seconds: float = DISK_S) -> DiskSpeed:
    """Write a file with fsync, then read it, bypassing the page cache if possible.  Raises PeerError."""
    free = os.statvfs(folder)
    most_bytes = min(most_bytes, free.f_bavail * free.f_frsize - KEPT_FREE_BYTES)
    if most_bytes < PIECE_BYTES:
        needed = size(KEPT_FREE_BYTES + PIECE_BYTES)
        raise PeerError(
            f"less than {needed} are free in {folder}; make room, or choose another folder with --data-dir",
            ExitCode.RESOURCES,
        )
    with tempfile.TemporaryFile(dir=folder, prefix=".bench-", buffering=0) as file:
        written, write_s = _write_out(file.fileno(), most_bytes, seconds)
        is_cached = not hasattr(os, "posix_fadvise")  # without this call, the file stays in the page cache
        if not is_cached:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read, read_s = _read_back(file.fileno(), written, seconds)
    return DiskSpeed(written / write_s, read / read_s, written, is_cached)


def _write_out(fd: int, most_bytes: int, seconds: float) -> tuple[int, float]:
    """Return the bytes written, and the seconds until all of them were on the disk."""
    piece = memoryview(os.urandom(PIECE_BYTES))
    begun, written = time.perf_counter(), 0
    while written + PIECE_BYTES <= most_bytes and (not written or time.perf_counter() - begun < seconds):
        done = 0
        while done < PIECE_BYTES:
            done += os.write(fd, piece[done:])
        os.fsync(fd)  # after each piece, so that the time limit holds on a slow disk
        written += PIECE_BYTES
    return written, max(time.perf_counter() - begun, 1e-9)


def _read_back(fd: int, count: int, seconds: float) -> tuple[int, float]:
    buffer = memoryview(mmap.mmap(-1, PIECE_BYTES))
    os.lseek(fd, 0, os.SEEK_SET)
    begun, done = time.perf_counter(), 0
    while done < count and (not done or time.perf_counter() - begun < seconds):
        got = os.readv(fd, [buffer])
        if not got:
            break
        done += got
    return done, max(time.perf_counter() - begun, 1e-9)


# ------------------------------------------------------------------------------------------------------------------------
# Speed of the lines to other peers, measured by the peer that runs here.  Blocking.


TIMEOUT_S = 30.0
"""Timeout in seconds; a few peers are measured for a few seconds each."""


def measure_lines(data_dir: Path, run: str | None = None) -> LineSpeed:
    """Measure the lines to the peers of the running peer's run, and keep the rates in the data directory.

    run: the ID that this run must have.  Raises PeerError.
    """
    client = ControlClient(data_dir, timeout_s=TIMEOUT_S)
    try:
        running = client.status().run
        if run is not None and running != run:
            raise PeerError(f"the peer here takes part in another run, {running[:12]}; name that run", ExitCode.INPUT)
        speed = _line_speed(client.request("lines"))
    except NotRunning as error:
        raise PeerError(f"{error}; start one with `peer join` to measure its lines", ExitCode.NOT_RUNNING) from error
    except ControlError as error:
        raise PeerError(str(error), ExitCode.UNREACHABLE) from error
    keep_line(data_dir, speed.up_bytes_per_s, speed.down_bytes_per_s)
    return speed


def _line_speed(answer: dict[str, Any]) -> LineSpeed:
    """Parse the peer's answer; raises ControlError if its form differs, such as in another version."""
    try:
        forms = {"peer": str, "name": str, "down_bytes": int, "down_bytes_per_s": float, "problem": str}
        peers = [PeerLine(**{name: form(one[name]) for name, form in forms.items()}) for one in answer["peers"]]
        return LineSpeed(str(answer["run"]), peers, float(answer["up_bytes_per_s"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ControlError("the peer's answer lacks a figure; does it run another version?") from error


# ------------------------------------------------------------------------------------------------------------------------
# Training speed of this computer: a model in a trainer process, started as a joining peer starts it.


TRAINING_S = 3.0
"""Seconds of training after the first step, which warms up and does not count."""
START_DEADLINE_S = 180.0
"""Deadline for importing torch on a slow, busy computer."""
LARGE_DEADLINE_S = 1800.0
"""Deadline for a few steps of another model than the demo's, on a CPU."""
FLOAT_BYTES = 4


async def measure_training(seconds: float = TRAINING_S, model: str = DEMO) -> TrainingSpeed:
    """Start a trainer process, train for about `seconds`, and end it.  Raises PeerError.

    model: the name of a model size.
    """
    gpu, available = free_gpu_memory(), available_memory()
    manifest = sized(model, on_gpu=gpu is not None)
    if model != DEMO:
        need = memory_need(manifest, setup=sole_process(gpu))
        host = need.trainer + 2 * FLOAT_BYTES * manifest.parameters  # theta and a contribution, and no outer state
        for needed, free, where in ((host, available, "memory"), (need.gpu, gpu or 0, "the GPU's memory")):
            if needed > free:
                raise PeerError(
                    f"training {model} needs about {size(needed)} of {where} and {size(free)} are free here; choose a "
                    "smaller size",
                    ExitCode.RESOURCES,
                )
    deadline_s = START_DEADLINE_S + (seconds if model == DEMO else LARGE_DEADLINE_S)
    theta, failure = SharedRegion(FLOAT_BYTES * manifest.parameters, "bench"), ""
    try:
        with tempfile.TemporaryDirectory(prefix="peer-bench-") as folder:
            corpus = await trio.to_thread.run_sync(builtin_corpus, Path(folder) / "corpora")
            settings = TrainerSettings.for_run(manifest, Path(folder) / "trainer.log", corpus.places)
            trainer = TrainerProcess(settings, theta)
            threads = chosen_threads(0) or usable_cores()
            trainer.use_threads(threads)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trainer.run)
                with trio.fail_after(deadline_s):
                    await trainer.initialise(theta.view)
                    marks = await _steps(trainer, theta, manifest, seconds)
                nursery.cancel_scope.cancel()
    except* (TrainerDied, trio.TooSlowError) as group:
        failure = str(group.exceptions[0]) or "it did not train in time"
    finally:
        theta.close()
    if failure:  # raised here, because Python 3.11.2 wraps an exception raised above in a group
        raise PeerError(f"the trainer could not be measured: {failure}", ExitCode.TRAINER)
    (began, first), (ended, last) = marks[0], marks[-1]
    rate = (last.tokens - first.tokens) / max(ended - began, 1e-9) if len(marks) > 1 else last.tokens_per_s
    figures = trainer.figures
    assert figures is not None, "it trained"
    precision = figures.device.rpartition(", ")[2]
    return TrainingSpeed(
        rate, trainer.device, threads, manifest.parameters, last.steps, model, precision, figures.utilisation(rate)
    )


async def _steps(
    trainer: TrainerProcess, theta: SharedRegion, manifest: RunManifest, seconds: float
) -> list[tuple[float, Progress]]:
    """Return the steps of one round with the time of each; the round is cut short after `seconds`."""
    marks: list[tuple[float, Progress]] = []

    def note(progress: Progress) -> None:
        marks.append((trio.current_time(), progress))
        if marks[-1][0] - marks[0][0] >= seconds:
            trainer.finish()

    steps = manifest.rounds.inner_steps
    rows = ((0, steps * manifest.data.sequences_per_step),)
    await trainer.compute(ComputeTask(round=0, rows=rows, steps=steps, first_step=0), theta.view, note)
    return marks


# ------------------------------------------------------------------------------------------------------------------------
# Codec speed: encoding and decoding contributions on one core.  Blocking.


VALUES = 1 << 22
CODEC_S = 0.5
"""Seconds for encoding, and for decoding."""


def measure_codec(values: int = VALUES, seconds: float = CODEC_S) -> CodecSpeed:
    """Measure the codec with normally distributed values, because differences of parameters have this distribution."""
    numbers = np.random.default_rng(1).standard_normal(values, np.float32)
    encoded, decoded = np.zeros(INT4.encoded_bytes(values), np.uint8), np.empty(values, np.float32)
    encode_s = best_s(lambda: INT4.encode(numbers, encoded), seconds)
    decode_s = best_s(lambda: INT4.decode(encoded, values, decoded), seconds)
    return CodecSpeed(values / encode_s, values / decode_s, 4e-6 * values / encode_s, 4e-6 * values / decode_s)


def best_s(work: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of `work`, repeated for about `seconds` and at least three times.

    The first call does not count.  Other programs disturbed the shortest call least.
    """
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return max(min(times), 1e-9)


# ------------------------------------------------------------------------------------------------------------------------


SAID = {
    "lines": "the lines to other peers",
    "codec": "the codec",
    "exchange": "an exchange on this computer",
    "training": "training, the start of a trainer included",
    "disk": "the disk",
}
"""Names of the parts for people, in the order of the measurements."""
T = TypeVar("T")


async def unless_interrupted(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`; if this process is told to end, cancel it and raise KeyboardInterrupt."""
    found: list[T] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, trio.CancelScope() as scope:

        async def cancel() -> None:
            async for _ in signals:
                scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel)
            found.append(await work())
            nursery.cancel_scope.cancel()
    if not found or scope.cancel_called:
        raise KeyboardInterrupt
    return found[0]


async def measure(
    parts: Sequence[str], folder: Path, run: str | None, on_part: Callable[[str], None], model: str = DEMO
) -> tuple[Figures, dict[str, PeerError]]:
    """Return the figures of these parts, and the errors by part.

    folder: the data directory, whose disk is measured, and in which a peer may run.  run: the ID that the running peer's run
    must have.  model: name of the size of the model that trains.
    """
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "lines": lambda: trio.to_thread.run_sync(measure_lines, folder, run, abandon_on_cancel=True),  # type: ignore[call-arg]
        "codec": lambda: trio.to_thread.run_sync(measure_codec),
        "exchange": measure_exchange,
        "training": partial(measure_training, model=model),
        "disk": lambda: trio.to_thread.run_sync(measure_disk, folder),
    }
    figures, problems = Figures(), dict[str, PeerError]()
    for part in (part for part in SAID if part in parts):
        on_part(SAID[part])
        try:
            setattr(figures, part, await ways[part]())
        except PeerError as error:
            figures.missing[part], problems[part] = error.text, error
    return figures, problems
