"""Measured speeds of this computer and of its line, kept in the data directory, and estimates for other computers.

`peer bench` and `peer doctor` measure both, and a peer that trains keeps its own speed.  The speed is kept as arithmetic per
second, because the next run may have a model of another size.  The line is measured while a peer runs, with the peers of its
run.  Their lines may have been the limit, so this computer's line carries at least the measured rate.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from peer.files import read_json, write_atomically
from protocol.events.status import NodeStatus
from protocol.run.manifest import RunManifest

FLOPS_A_PARAMETER = 6
"""Floating point operations per token and parameter in training: two forward, four backward (Kaplan et al. 2020)."""
FILE_NAME, LINE_NAME = "pace.json", "line.json"
MAX_BYTES = 1024
KEPT_S, LINE_KEPT_S = 90 * 86_400.0, 30 * 86_400.0
"""Ages from which a measurement of training, and of a line, no longer counts."""
MBIT = 10**6 / 8
"""Bytes a second in a Mbit/s, the unit of run files."""
MAX_SOURCE_CHARS = 40


@dataclass(frozen=True)
class MeasuredPace:
    """Measured speed of training.  flops: FLOP/s.  at: unix seconds.  source: phrase that names the measuring program."""

    flops: float
    at: float
    source: str

    def computed_per_s(self, manifest: RunManifest) -> float:
        """Return the tokens per second that this computer would compute in a run, even if the loss does not count them."""
        return self.flops / (FLOPS_A_PARAMETER * manifest.computed_parameters)

    def tokens_per_s(self, manifest: RunManifest) -> float:
        """Return the tokens per second that this computer would train in a run; only tokens that the loss counts."""
        return self.computed_per_s(manifest) * manifest.data.counted_share

    @property
    def of(self) -> str:
        """Phrase about the measurement."""
        return f"measured on this computer on {time.strftime('%Y-%m-%d', time.localtime(self.at))} by {self.source}"


def keep_pace(
    folder: Path, tokens_per_s: float, parameters: int, source: str, clock: Callable[[], float] = time.time
) -> MeasuredPace | None:
    """Keep a measured speed of a model with `parameters` in the data directory `folder`, and return it.  Blocking.

    Returns None, and keeps nothing, if it is not a speed.

    tokens_per_s: rate of all computed tokens, including tokens that the loss does not count.
    """
    if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
        return None
    pace = MeasuredPace(FLOPS_A_PARAMETER * parameters * tokens_per_s, clock(), source[:MAX_SOURCE_CHARS])
    _keep(folder / FILE_NAME, pace)
    return pace


def kept_pace(folder: Path, clock: Callable[[], float] = time.time) -> MeasuredPace | None:
    """Return the last measurement; None if there is none, or if it is old.  Blocking."""
    try:
        fields = read_json(folder / FILE_NAME, MAX_BYTES)
        pace = MeasuredPace(float(fields["flops"]), float(fields["at"]), str(fields["source"])[:MAX_SOURCE_CHARS])
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    is_right = math.isfinite(pace.flops) and pace.flops > 0 and pace.source.isprintable()
    return pace if is_right and 0 <= clock() - pace.at < KEPT_S else None


@dataclass(frozen=True)
class MeasuredLine:
    """Measured rates in bytes a second; 0 for a direction that was not measured.  at: unix seconds."""

    up: float
    down: float
    at: float

    @property
    def day(self) -> str:
        """Day of the measurement, in local time."""
        return time.strftime("%Y-%m-%d", time.localtime(self.at))


def keep_line(folder: Path, up: float, down: float, clock: Callable[[], float] = time.time) -> None:
    """Keep measured rates in the data directory `folder`, unless neither was measured.  Blocking."""
    if up > 0 or down > 0:
        _keep(folder / LINE_NAME, MeasuredLine(up, down, clock()))


def kept_line(folder: Path, clock: Callable[[], float] = time.time) -> MeasuredLine | None:
    """Return the last measurement; None if there is none, or if it is old.  Blocking."""
    try:
        fields = read_json(folder / LINE_NAME, MAX_BYTES)
        line = MeasuredLine(*(float(fields[name]) for name in ("up", "down", "at")))
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    is_whole = all(math.isfinite(rate) and rate >= 0 for rate in (line.up, line.down))
    return line if is_whole and 0 <= clock() - line.at < LINE_KEPT_S else None


def _keep(path: Path, measured: MeasuredPace | MeasuredLine) -> None:
    with suppress(OSError):  # without the file, the next run is only estimated
        write_atomically(path, json.dumps(asdict(measured)).encode())


LOOK_S = 60.0
CHANGE = 0.1
"""Share by which the speed must have changed before it is written again."""


async def keep_own_pace(folder: Path, status: Callable[[], NodeStatus], manifest: RunManifest) -> None:
    """Keep the speed of a peer that trains in a run, until cancelled.  Rollouts are not kept: their rate includes waits."""
    kept, share = 0.0, manifest.data.counted_share
    if manifest.rl is not None:
        return
    while True:
        await trio.sleep(LOOK_S)
        now = status()
        if now.round and now.tokens_per_s > 0 and abs(now.tokens_per_s - kept) > CHANGE * kept:
            kept = now.tokens_per_s
            await trio.to_thread.run_sync(keep_pace, folder, kept / share, manifest.computed_parameters, "an earlier run")


# ------------------------------------------------------------------------------------------------------------------------
# Estimates of the time that a run takes.


@dataclass(frozen=True)
class TypicalComputer:
    """A kind of computer.  flops: FLOP/s that training reaches on it."""

    name: str
    flops: float


TYPICAL = (
    TypicalComputer("a laptop", 4e10),
    TypicalComputer("a GPU with 12 GB", 8e12),
    TypicalComputer("an H100", 1.7e14),
)
"""Two threads of a processor reached 26 to 43 GFLOP/s with the demo's model, and an H200 175 TFLOP/s with 220 M parameters
(docs/results).  The GPU with 12 GB is an assumption: a third of 25 TFLOP/s."""
STEP_S = 0.02
"""Least seconds of an inner step, however small the model is: reading rows, starting the GPU's kernels, the optimizer."""
AGREEMENT_S = 1.0
"""Seconds of the agreement on a round over the internet, without the bytes of the exchange."""
HOME_BYTES_PER_S = 2.5e6
"""Upload rate of a home line: 20 Mbit/s."""


def round_s(manifest: RunManifest) -> float:
    """Return the seconds that a round takes besides training: its exchange over home lines, and its agreement."""
    layouts = manifest.layouts
    return AGREEMENT_S + (layouts.contribution.payload_bytes + layouts.result.payload_bytes) / HOME_BYTES_PER_S


def typical_tokens_per_s(manifest: RunManifest, computer: TypicalComputer) -> float:
    """Return the tokens per second that this kind of computer trains in a run; only tokens that the loss counts."""
    step_tokens = manifest.data.sequences_per_step * manifest.data.row_tokens
    step_s = max(STEP_S, FLOPS_A_PARAMETER * manifest.computed_parameters * step_tokens / computer.flops)
    return step_tokens * manifest.data.counted_share / step_s


def run_s(manifest: RunManifest, tokens: float, tokens_per_s: float) -> float:
    """Return the seconds in which one member trains on `tokens` that the loss counts, with an exchange after each round."""
    return tokens / max(1e-9, tokens_per_s) + tokens / manifest.counted_per_round * round_s(manifest)
