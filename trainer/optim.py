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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from trainer.device import GpuMemory, is_gpu, release_memory
from trainer.memory import cpu_plan
from trainer.models.llama.config import ParameterPlace
from trainer.models.llama.model import Decoder
from trainer.objective import LanguageModelObjective, Objective, ObjectiveLoss, UnitLosses
from trainer.weights.safetensors_file import F32, ExportFormat, FolderError, header_of, tensors_in, written

# ------------------------------------------------------------------------------------------------------------------------
# Update of the local parameters, after clipping to a maximum global norm.
#
# The moments stay in this process across rounds, are kept in a file between two processes (`MomentsFile`), and are never
# sent. Each is one flat vector, like parameters and gradients.


class Optimiser(ABC):
    """Rule that updates the parameters.

    steps: number of updates so far. mean: fp32 (n), mean of the gradient. square: fp32, mean of its square, for the
    parameters that AdamW updates, in the order of the layout.
    """

    mean: Tensor
    square: Tensor

    def __init__(self, model: Decoder, config: InnerConfig) -> None:
        self.steps = 0
        self._model, self._config = model, config

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip the model's gradient to the global norm, update the parameters, and zero the gradient."""
        self.steps += 1
        clip_grad_norm_(self._model.parameters(), self._config.clip_norm)
        self._update(rate)
        self._model.gradient.zero_()

    @abstractmethod
    def _update(self, rate: float) -> None:
        """Update the parameters and the moments by the model's gradient."""

    def resume(self, steps: int) -> None:
        """Continue after `steps` updates; the moments are already in `mean` and `square`."""
        self.steps = steps

    def forget(self) -> None:
        """Start again, with zero moments."""
        self.mean.zero_()
        self.square.zero_()
        self.resume(0)


@dataclass
class _Group:
    """Tensors with the same weight decay: views of the flat vectors, and the number of steps for each tensor."""

    weight_decay: float
    parameters: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    squares: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)


class AdamW(Optimiser):
    """Adam with decoupled weight decay on the matrices (not on norms, not on embeddings).

    torch's fused kernel updates all moments in place, through views of the tensors. We call the kernel as a function: the
    class `torch.optim.AdamW` does the same, but loads torch's compiler, 144 MB that nothing here uses.
    """

    def __init__(
        self,
        model: Decoder,
        config: InnerConfig,
        places: Sequence[ParameterPlace] | None = None,
        mean: Tensor | None = None,
    ) -> None:
        """Make an optimiser.  places: the tensors to update; None for all.  mean: memory for the mean; None for its own."""
        super().__init__(model, config)
        places = model.layout if places is None else places
        self.mean = torch.zeros_like(model.flat) if mean is None else mean
        self.square = torch.zeros(sum(place.count for place in places), device=model.flat.device)
        self._groups = {True: _Group(config.weight_decay), False: _Group(0.0)}
        at = 0
        for place in places:
            group, span = self._groups[_decays(place)], slice(place.offset, place.offset + place.count)
            group.parameters.append(model.flat[span].view(place.shape))
            group.gradients.append(model.gradient[span].view(place.shape))
            group.means.append(self.mean[span].view(place.shape))
            group.squares.append(self.square[at : at + place.count].view(place.shape))
            group.steps.append(torch.zeros((), device=model.flat.device))
            at += place.count

    def _update(self, rate: float) -> None:
        config = self._config
        for group in self._groups.values():
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

    def resume(self, steps: int) -> None:
        """Continue after `steps` updates; the moments are already in `mean` and `square`."""
        super().resume(steps)
        for group in self._groups.values():
            for each in group.steps:
                each.fill_(steps)


MUON_MOMENTUM = 0.95
ORTHOGONAL_STEPS = 5
ORTHOGONAL_TERMS = (3.4445, -4.7750, 2.0315)
"""Steps and coefficients of the Newton-Schulz iteration (Jordan et al. 2024, "Muon")."""
RMS_OF_ADAMW = 0.2
"""Root mean square of AdamW's updates divided by the rate, which Muon's are given (Liu et al. 2025, section 2.2)."""


class Muon(Optimiser):
    """Muon for the matrices, with Nesterov momentum; AdamW for embeddings, output weights, norms and biases.

    Its updates have the size of AdamW's, so both take the same rate and weight decay. DiLoCo with it (MuLoCo, Thérien et al.
    2025) needs about half of AdamW's memory for moments, and reaches lower losses.
    """

    def __init__(self, model: Decoder, config: InnerConfig) -> None:
        super().__init__(model, config)
        self.mean = torch.zeros_like(model.flat)
        self._matrices = [place for place in model.layout if _is_hidden_matrix(place)]
        others = [place for place in model.layout if not _is_hidden_matrix(place)]
        self._others = AdamW(model, config, others, self.mean)
        self.square = self._others.square

    def _update(self, rate: float) -> None:
        self._others._update(rate)
        model, decay = self._model, self._config.weight_decay
        for place in self._matrices:
            span = slice(place.offset, place.offset + place.count)
            parameter, gradient, mean = (v[span].view(place.shape) for v in (model.flat, model.gradient, self.mean))
            mean.lerp_(gradient, 1 - MUON_MOMENTUM)
            direction = orthogonal(gradient.lerp(mean, MUON_MOMENTUM).to(model.compute_dtype))
            size = RMS_OF_ADAMW * math.sqrt(max(place.shape))
            parameter.mul_(1 - rate * decay).add_(direction, alpha=-rate * size)

    def resume(self, steps: int) -> None:
        """Continue after `steps` updates; the moments are already in `mean` and `square`."""
        super().resume(steps)
        self._others.resume(steps)


def orthogonal(matrix_rc: Tensor) -> Tensor:
    """Return a matrix whose singular values are all near 1 (0.7 to 1.2), with the singular vectors of the given one."""
    a, b, c = ORTHOGONAL_TERMS
    rows, columns = matrix_rc.shape
    x = matrix_rc.T if rows > columns else matrix_rc
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ORTHOGONAL_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if rows > columns else x


def _is_hidden_matrix(place: ParameterPlace) -> bool:
    return _decays(place) and place.name != "lm_head.weight"


OPTIMISERS: Mapping[str, type[AdamW] | type[Muon]] = {"adamw": AdamW, "muon": Muon}
"""Optimisers by their names in the manifest."""


def _decays(place: ParameterPlace) -> bool:
    return len(place.shape) == 2 and place.name != "model.embed_tokens.weight"


# ------------------------------------------------------------------------------------------------------------------------
# Adam's moments in a file beside the state, so that a restarted trainer continues with them.
#
# The file is in the safetensors format: `mean`, `square`, and `steps` (exact up to 2^24 updates), in fp32. It is written
# after a round's work, while the trainer waits for the other peers. The file stays on this computer and is never sent.
# Moments that are some rounds old are used unchanged: the optimiser forgets them within about 1 / (1 - beta2) steps.


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

    def restore(self, optimiser: Optimiser) -> bool:
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

    def store(self, optimiser: Optimiser) -> None:
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
                file.write(header_of(_places(optimiser), ExportFormat.FP32))
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

    def _read(self, optimiser: Optimiser) -> None:
        stored = tensors_in(self.path)
        for place in _places(optimiser):
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


def _places(optimiser: Optimiser) -> list[ParameterPlace]:
    """Return the tensors of a file, in order."""
    means, squares = len(optimiser.mean), len(optimiser.square)
    return [
        ParameterPlace("mean", (means,), 0),
        ParameterPlace("square", (squares,), means),
        ParameterPlace("steps", (1,), means + squares),
    ]


def _blocks(optimiser: Optimiser) -> Iterator[F32]:
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


FILLED = 0.9
"""Share of the free memory that the largest micro-batch may take, as far as it was measured."""


class MicroBatches:
    """Finder of the largest micro-batch that fits this device.

    model: its layers are computed again if one unit does not fit otherwise; None for work without gradients.  memory: of a
    GPU, of which the first unit is measured; None to begin with all units.
    """

    def __init__(self, model: Decoder | None = None, memory: GpuMemory | None = None) -> None:
        self._model, self._memory = model, memory
        self._most = 1 << 30

    def run(self, units: int, compute: Callable[[int], Result]) -> Result:
        """Call `compute` with `units`, or with the most units that fit; halve it if memory runs out, and remember.

        After halving, `compute` starts from the beginning. Raises OutOfMemoryError if one unit does not fit, even if all
        layers are computed again.
        """
        while True:
            part = 1 if self._memory is not None else min(units, self._most)
            try:
                return self._measured(compute) if self._memory is not None else compute(part)
            except torch.OutOfMemoryError:
                if part > 1:
                    self._most = part // 2
                elif self._model is not None and self._model.recomputed < self._model.config.layers:
                    self._model.recomputed = self._model.config.layers
                else:
                    raise
                release_memory()

    def _measured(self, compute: Callable[[int], Result]) -> Result:
        """Compute one unit at a time, and find from its memory how many fit at once."""
        assert self._memory is not None
        self._memory.begin()
        result = compute(1)
        self._most = 1 + int(FILLED * self._memory.free() / max(1, self._memory.used()))
        self._memory = None
        return result


# ------------------------------------------------------------------------------------------------------------------------
# Learning rate: a schedule of warm-up, stable phase and decay that ends with the run, and a warm-up for joiners.


@dataclass(frozen=True)
class Place:
    """Place of an inner step in the run.

    step: the swarm's step, counted from the start of the run's current stage. share: completed share of that stage, 0 to 1.
    """

    step: int
    share: float


COSINE_END = 0.1
"""Share of the peak rate that is left at the end of a cosine schedule."""


def scheduled_rate(config: InnerConfig, place: Place) -> float:
    """Return a step's learning rate: linear warm-up, then the schedule, which ends with the run's current stage.

    wsd: constant, then 1 - sqrt of the cooldown (Hägele et al. 2024).  cosine: half a wave, down to `COSINE_END`.
    """
    rate = config.lr * warmed(place.step, config.warmup_steps)
    if config.schedule == "cosine":
        return rate * (COSINE_END + (1 - COSINE_END) * (1 + math.cos(math.pi * min(1.0, place.share))) / 2)
    if config.schedule != "wsd":
        raise ValueError(f"unknown schedule {config.schedule!r}: this version knows 'wsd' and 'cosine'")
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


@dataclass(frozen=True)
class PendingLoss:
    """Loss of a step that a GPU may still be computing.  found: rows, their loss, and its weight, for each micro-batch."""

    objective: Objective
    found: tuple[tuple[Rows, ObjectiveLoss, float], ...]

    def read(self) -> StepLoss:
        """Return the loss; wait for the device."""
        mean = torch.stack([loss.mean * weight for _, loss, weight in self.found]).sum()
        return StepLoss(float(mean), tuple(self.objective.measured(rows, loss) for rows, loss, _ in self.found))


class InnerLoop:
    """Inner loop of a model: its optimiser, and the micro-batch size that fits this device.

    objective: the loss on rows; None for the language model's.
    """

    def __init__(self, model: Decoder, config: InnerConfig, objective: Objective | None = None) -> None:
        self.model = model
        self.config = config
        self.objective = objective or LanguageModelObjective()
        self.optimiser = OPTIMISERS[config.optimizer](model, config)
        on_gpu = is_gpu(model.flat.device)
        self._micro_batches = MicroBatches(model, GpuMemory(model.flat.device) if on_gpu else None)
        self._joined_at = 0

    def step(self, rows: Rows, place: Place) -> PendingLoss:
        """Take one inner step on rows; return their loss before the update.  Does not wait for a GPU."""
        if self.optimiser.steps == 0:
            self._joined_at = place.step
        factor = warmed(self.optimiser.steps, self.config.joiner_warmup_steps) if self._joined_at else 1.0
        loss = self._micro_batches.run(self._at_once(rows), lambda part: self._accumulate(rows, part))
        self.optimiser.step(scheduled_rate(self.config, place) * factor)
        return loss

    def _accumulate(self, rows: Rows, part: int) -> PendingLoss:
        """Write the gradient of the rows' mean loss into the model, `part` units at a time."""
        self.model.gradient.zero_()
        parts, size = [], part * self.objective.unit_rows
        whole = max(1.0, float(self.objective.weights_u(rows).sum()))
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            found = self.objective.loss(self.model, some, self.config.z_loss)
            weight = float(self.objective.weights_u(some).sum()) / whole
            (found.mean * weight).backward()  # type: ignore[no-untyped-call]
            parts.append((some, found.detached(), weight))
        return PendingLoss(self.objective, tuple(parts))

    def _at_once(self, rows: Rows) -> int:
        """Return the units to try at once: all on a GPU, where too many raise an error; a planned number on a CPU."""
        units = len(rows) // self.objective.unit_rows
        if is_gpu(self.model.flat.device):
            return units
        plan = cpu_plan(self.model.config, rows.length, self.objective.unit_rows)
        self.model.recomputed = plan.recomputed
        return min(units, plan.units)
