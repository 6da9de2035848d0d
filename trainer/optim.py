"""Inner loop, which takes one optimiser step after another on this device, in micro-batches that fit its memory.

A process that begins in the middle of a run, without moments from an earlier start, warms up. `trainer.data` chooses the
windows, and `trainer.worker` encodes the difference.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.adamw import adamw

from trainer.config import InnerConfig
from trainer.data.rows import Rows
from trainer.device import is_gpu, release_memory
from trainer.memory import micro_batch
from trainer.models.llama.config import ParameterPlace
from trainer.models.llama.model import Decoder
from trainer.objective import LanguageModelObjective, Objective, UnitLosses
from trainer.weights.safetensors_file import F32, ExportFormat, FolderError, header_of, tensors_in, written

# ------------------------------------------------------------------------------------------------------------------------
# Update of the local parameters: torch's fused AdamW after clipping to a maximum global norm.
#
# The moments stay in this process across rounds, are kept in a file between two processes (`MomentsFile`), and are never
# sent. Each moment is one flat vector, like parameters and gradients. torch's kernel updates all of them in place, through
# views of the tensors. We call the kernel as a function: the class `torch.optim.AdamW` does the same, but loads torch's
# compiler, 144 MB that nothing here uses.


@dataclass
class _Group:
    """Tensors with the same weight decay: views of the flat vectors, and the number of steps for each tensor."""

    weight_decay: float
    parameters: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    squares: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)

    def add(self, places: Sequence[ParameterPlace], model: Decoder, mean: Tensor, square: Tensor) -> None:
        vectors = (model.flat, model.gradient, mean, square)
        for place in places:
            span = slice(place.offset, place.offset + place.count)
            for views, vector in zip((self.parameters, self.gradients, self.means, self.squares), vectors, strict=True):
                views.append(vector[span].view(place.shape))
            self.steps.append(torch.zeros((), device=mean.device))


class AdamW:
    """Adam with decoupled weight decay on the matrices (not on norms, not on embeddings).

    steps: number of updates so far. mean, square: moments (n, fp32) of the gradient and of its square.
    """

    def __init__(self, model: Decoder, config: InnerConfig) -> None:
        self.steps = 0
        self._model, self._config = model, config
        self.mean, self.square = torch.zeros_like(model.flat), torch.zeros_like(model.flat)
        decayed = [place for place in model.layout if _decays(place)]
        others = [place for place in model.layout if not _decays(place)]
        self._groups = [_Group(config.weight_decay), _Group(0.0)]
        for group, places in zip(self._groups, (decayed, others), strict=True):
            group.add(places, model, self.mean, self.square)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip the model's gradient to the global norm, update the parameters, and zero the gradient."""
        config, model = self._config, self._model
        self.steps += 1
        clip_grad_norm_(model.parameters(), config.clip_norm)
        for group in self._groups:
            adamw(
                group.parameters,
                group.gradients,
                group.means,
                group.squares,
                [],
                group.steps,
                fused=True,
                amsgrad=False,
                maximize=False,
                beta1=config.beta1,
                beta2=config.beta2,
                lr=rate,
                eps=config.eps,
                weight_decay=group.weight_decay,
            )
        model.gradient.zero_()

    def resume(self, steps: int) -> None:
        """Continue after `steps` updates; the moments are already in `mean` and `square`."""
        self.steps = steps
        for group in self._groups:
            for each in group.steps:
                each.fill_(steps)

    def forget(self) -> None:
        """Start again, with zero moments."""
        self.mean.zero_()
        self.square.zero_()
        self.resume(0)


def _decays(place: ParameterPlace) -> bool:
    return len(place.shape) == 2 and place.name != "model.embed_tokens.weight"


# ------------------------------------------------------------------------------------------------------------------------
# Adam's moments in a file beside the state, so that a restarted trainer continues with them.
#
# The file is in the safetensors format: `mean` and `square` (n, fp32) and `steps` (fp32, exact up to 2^24 updates). It is
# written after a round's work, while the trainer waits for the other peers. The file stays on this computer and is never
# sent. Moments that are some rounds old are used unchanged, because AdamW forgets them within about 1 / (1 - beta2) steps.


TEXT, ROLLOUTS = "moments.safetensors", "moments-rollouts.safetensors"
"""Names of the moment files of the optimiser for text and of the optimiser for rollouts."""
SHARE = 0.02
"""Largest share of the time spent on writing; a file that takes long to write is therefore written less often."""
BLOCK = 1 << 20
"""Count of values copied from the device at a time."""


class MomentsFile:
    """File of one optimiser's moments."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._due_at = 0.0
        self._stored: int | None = None
        """Number of updates that the moments in the file contain, if known."""

    def restore(self, optimiser: AdamW) -> bool:
        """Load the moments from the file; return True if the optimiser continues with them.

        A damaged or unsuitable file is not changed, and is named in the log, because missing moments must not stop training.
        """
        if not self.path.exists():
            return False
        try:
            self._read(optimiser)
        except (FolderError, OSError, ValueError) as error:
            optimiser.forget()
            print(f"the moments of an earlier start are not used: {error}", file=sys.stderr)
            return False
        self._stored = optimiser.steps
        return True

    def store(self, optimiser: AdamW) -> None:
        """Write the moments atomically; do nothing if recent writing took more than its share (`SHARE`) of the time.

        A write error, such as a full disk, is logged, and the trainer continues; a restart then needs a warm-up.
        """
        begun = time.monotonic()
        if optimiser.steps in (0, self._stored) or begun < self._due_at:
            return
        temporary = ""
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".new", dir=self.path.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(header_of(_places(len(optimiser.mean)), ExportFormat.FP32))
                for block in _blocks(optimiser):
                    file.write(written(block, ExportFormat.FP32))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            self._stored = optimiser.steps
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            print(f"the optimiser's moments were not written to {self.path}: {error.strerror}", file=sys.stderr)
        ended = time.monotonic()
        self._due_at = ended + (ended - begun) / SHARE

    def _read(self, optimiser: AdamW) -> None:
        stored = tensors_in(self.path)
        for place in _places(len(optimiser.mean)):
            if place.name not in stored or stored[place.name].shape != place.shape:
                raise ValueError(f"{self.path} is of another model")
        with torch.no_grad():
            for name, vector in (("mean", optimiser.mean), ("square", optimiser.square)):
                at = 0
                for block in stored[name].values():
                    if not np.isfinite(block).all() or (name == "square" and block.min(initial=0.0) < 0):
                        raise ValueError(f"{self.path} is damaged")
                    vector[at : at + len(block)] = torch.from_numpy(block)
                    at += len(block)
        [steps] = np.concatenate(list(stored["steps"].values())).tolist()
        if not (math.isfinite(steps) and steps >= 1):
            raise ValueError(f"{self.path} is damaged")
        optimiser.resume(int(steps))


def _places(parameters: int) -> list[ParameterPlace]:
    """Return the tensors of a file, in order."""
    return [
        ParameterPlace("mean", (parameters,), 0),
        ParameterPlace("square", (parameters,), parameters),
        ParameterPlace("steps", (1,), 2 * parameters),
    ]


def _blocks(optimiser: AdamW) -> Iterator[F32]:
    """Yield the values of a file in order, one block at a time, on the host."""
    for vector in (optimiser.mean, optimiser.square, torch.tensor([float(optimiser.steps)])):
        yield from (_on_host(vector[at : at + BLOCK]) for at in range(0, len(vector), BLOCK))


def _on_host(values: Tensor) -> F32:
    block: F32 = values.detach().cpu().numpy()
    return block


# ------------------------------------------------------------------------------------------------------------------------


# ------------------------------------------------------------------------------------------------------------------------
# Micro-batches: as many rows at a time as fit into memory.


Result = TypeVar("Result")


class MicroBatches:
    """Finder of the largest micro-batch that fits this device."""

    def __init__(self) -> None:
        self._most = 1 << 30

    def run(self, rows: int, compute: Callable[[int], Result]) -> Result:
        """Call `compute` with `rows`, or with the most rows that fit; halve it if memory runs out, and remember.

        After halving, `compute` starts from the beginning. Raises OutOfMemoryError if one row does not fit.
        """
        while True:
            part = min(rows, self._most)
            try:
                return compute(part)
            except torch.OutOfMemoryError:
                if part == 1:
                    raise
                self._most = part // 2
                release_memory()


# ------------------------------------------------------------------------------------------------------------------------
# Learning rate: a schedule of warm-up, stable phase and decay that ends with the run, and a warm-up for joiners.


@dataclass(frozen=True)
class Place:
    """Place of an inner step in the run.

    step: the swarm's step, counted from the start of the run's current stage. share: completed share of that stage, 0 to 1.
    """

    step: int
    share: float


def scheduled_rate(config: InnerConfig, place: Place) -> float:
    """Return a step's learning rate: linear warm-up, constant, then 1 - sqrt of the cooldown (WSD, Hägele et al. 2024)."""
    if config.schedule != "wsd":
        raise ValueError(f"unknown schedule {config.schedule!r}: this version knows 'wsd'")
    rate = config.lr * warmed(place.step, config.warmup_steps)
    stable = 1.0 - config.cooldown
    if place.share <= stable:
        return rate
    return rate * max(0.0, 1.0 - math.sqrt((place.share - stable) / config.cooldown))


def warmed(step: int, warmup_steps: int) -> float:
    """Return the factor on the learning rate at step `step` (from 0) of a warm-up; 1 without a warm-up."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


# ------------------------------------------------------------------------------------------------------------------------


class StepLoss(NamedTuple):
    """Loss of a step before its update.  mean: of the whole, with the z-loss.  parts: losses of each micro-batch's units."""

    mean: float
    parts: tuple[UnitLosses, ...]


class InnerLoop:
    """Inner loop of a model: its optimiser, and the micro-batch size that fits this device.

    objective: the loss on rows; None for the language model's.
    """

    def __init__(self, model: Decoder, config: InnerConfig, objective: Objective | None = None) -> None:
        self.model = model
        self.config = config
        self.objective = objective or LanguageModelObjective()
        self.optimiser = AdamW(model, config)
        self._micro_batches = MicroBatches()
        self._joined_at = 0

    def step(self, rows: Rows, place: Place) -> StepLoss:
        """Take one inner step on rows; return their loss before the update."""
        if self.optimiser.steps == 0:
            self._joined_at = place.step
        factor = warmed(self.optimiser.steps, self.config.joiner_warmup_steps) if self._joined_at else 1.0
        loss = self._micro_batches.run(self._at_once(rows), lambda part: self._accumulate(rows, part))
        self.optimiser.step(scheduled_rate(self.config, place) * factor)
        return loss

    def _accumulate(self, rows: Rows, part: int) -> StepLoss:
        """Write the gradient of the rows' mean loss into the model, `part` units at a time."""
        self.model.gradient.zero_()
        mean, parts, size = 0.0, [], part * self.objective.unit_rows
        whole = max(1.0, float(self.objective.weights_u(rows).sum()))
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            found = self.objective.loss(self.model, some, self.config.z_loss)
            loss = found.mean * (float(self.objective.weights_u(some).sum()) / whole)
            loss.backward()  # type: ignore[no-untyped-call]
            mean += float(loss.detach())
            parts.append(self.objective.measured(some, found))
        return StepLoss(mean, tuple(parts))

    def _at_once(self, rows: Rows) -> int:
        """Return the units to try at once: all on a GPU, where too many raise an error; a planned number on a CPU."""
        units = len(rows) // self.objective.unit_rows
        if is_gpu(self.model.flat.device):
            return units
        return min(units, max(1, micro_batch(self.model.config, rows.length) // self.objective.unit_rows))
