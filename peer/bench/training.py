"""Training speed of this computer: the demo run's model in a trainer process, as a peer that joins would start it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import trio

from peer.bench.figures import TrainingSpeed
from peer.errors import ExitCode, PeerError
from peer.resources.computer import usable_cores
from peer.resources.core_share import chosen_threads
from peer.trainer_process.process import TrainerProcess, TrainerSettings
from protocol.chain.outer_state import SharedRegion
from protocol.run.manifest import demo_manifest
from protocol.trainer_link import ComputeTask, Progress, TrainerDied

SECONDS = 3.0
"""Seconds of training after the first step, which warms up and does not count."""
START_DEADLINE_S = 180.0
"""Deadline for importing torch and reading the corpus on a slow, busy computer."""
FLOAT_BYTES = 4


async def measure_training(seconds: float = SECONDS) -> TrainingSpeed:
    """Start a trainer process, train for about `seconds`, and end it.  Raises PeerError."""
    manifest = demo_manifest().manifest
    theta = SharedRegion(FLOAT_BYTES * manifest.parameters, "bench")
    try:
        with tempfile.TemporaryDirectory(prefix="peer-bench-") as folder:
            settings = TrainerSettings.for_run(manifest, Path(folder) / "trainer.log")
            trainer = TrainerProcess(settings, theta)
            threads = chosen_threads(0) or usable_cores()
            trainer.use_threads(threads)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trainer.run)
                with trio.fail_after(START_DEADLINE_S + seconds):
                    await trainer.initialise(theta.view)
                    marks = await _steps(trainer, theta, manifest.rounds.inner_steps, seconds)
                nursery.cancel_scope.cancel()
    except* (TrainerDied, trio.TooSlowError) as group:
        reason = str(group.exceptions[0]) or "it did not train in time"
        raise PeerError(f"the trainer could not be measured: {reason}", ExitCode.TRAINER) from group
    finally:
        theta.close()
    (began, first), (ended, last) = marks[0], marks[-1]
    rate = (last.tokens - first.tokens) / max(ended - began, 1e-9) if len(marks) > 1 else last.tokens_per_s
    return TrainingSpeed(rate, trainer.device, threads, manifest.parameters, last.steps)


async def _steps(trainer: TrainerProcess, theta: SharedRegion, most: int, seconds: float) -> list[tuple[float, Progress]]:
    """Return the steps of one round with the time of each; the round is cut short after `seconds`."""
    marks: list[tuple[float, Progress]] = []

    def note(progress: Progress) -> None:
        marks.append((trio.current_time(), progress))
        if marks[-1][0] - marks[0][0] >= seconds:
            trainer.finish()

    await trainer.compute(ComputeTask(round=0, lane=0, steps=most, first_step=0), theta.view, note)
    return marks
