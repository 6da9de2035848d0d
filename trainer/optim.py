"""Inner loop, which takes one optimiser step after another on this device, in micro-batches that fit its memory.

A process that begins in the middle of a run, without moments from an earlier start, warms up. `trainer.data` chooses the
windows, and `trainer.worker` encodes the difference.
"""

from __future__ import annotations

import math
import os
import sys
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from kernels.schedule import Place, scheduled_rate, warmed
from protocol.formats.model import ParameterPlace
from protocol.formats.training import InnerConfig
from trainer.device import GpuMemory, is_gpu, release_memory
from trainer.memory import cpu_plan, recomputed_layers
from trainer.models.llama.model import Decoder
from trainer.objective import LanguageModelObjective, Objective, ObjectiveLoss, RowsT, StepRows, UnitLosses
from trainer.parameters import LocalParameters, TensorShard
from trainer.ranks import Ranks
from trainer.receipts import RECEIPT, ReceiptKeeper, Receipts
from trainer.weights.safetensors_file import F32, ExportFormat, FolderError, header_of, tensors_in, written

# ------------------------------------------------------------------------------------------------------------------------
# Update of the local parameters, after clipping to a maximum global norm.
#
# The moments stay in this process across rounds, are kept in a file between two processes (`MomentsFile`), and are never
# sent. Each is one flat vector of the values for the parameters that lie here.


@dataclass(frozen=True)
class MomentSpan:
    """Moments in this process.  start: place of the first moment in the vector of all ranks.  values: (n,), a view."""

    start: int
    values: Tensor


class Optimiser(ABC):
    """Rule that updates the parameters in this process.

    steps: number of updates so far. mean: fp32 (n), mean of the gradient. square: fp32, mean of its square, for the
    parameters that AdamW updates, in the order of the layout. parameters: the parameters, gradients among them.
    """

    mean: Tensor
    square: Tensor

    def __init__(self, parameters: LocalParameters, config: InnerConfig) -> None:
        self.steps = 0
        self.parameters, self._config = parameters, config

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Clip the gradient to the global norm, and update the parameters."""
        self.steps += 1
        self.parameters.clip_gradient(self._config.clip_norm)
        self._update(rate)

    @abstractmethod
    def _update(self, rate: float) -> None:
        """Update the parameters and the moments by the gradient."""

    def squares(self) -> Sequence[TensorShard]:
        """Return the shards to which the values of `square` belong, in order."""
        return self.parameters.shards

    def spans(self) -> dict[str, list[MomentSpan]]:
        """Return the moments in this process, by the name of their vector."""
        return {
            "mean": _spans(self.mean, self.parameters.shards),
            "square": _spans(self.square, self.squares()),
        }

    def sizes(self) -> dict[str, int]:
        """Return the lengths of the vectors of all ranks, by name."""
        shards = {"mean": self.parameters.shards, "square": self.squares()}
        return {name: sum(shard.place.count for shard in some) for name, some in shards.items()}

    def resume(self, steps: int) -> None:
        """Continue after `steps` updates; the moments are already in `mean` and `square`."""
        self.steps = steps

    def forget(self) -> None:
        """Start again, with zero moments."""
        self.mean.zero_()
        self.square.zero_()
        self.resume(0)


def _views(vector: Tensor, shards: Sequence[TensorShard]) -> list[Tensor]:
    """Return views of a vector, one for each shard, in its shape."""
    parts = torch.split(vector, [shard.count for shard in shards])
    return [part.view(shard.values.shape) for part, shard in zip(parts, shards, strict=True)]


def _spans(vector: Tensor, shards: Sequence[TensorShard]) -> list[MomentSpan]:
    """Return each shard's values of a vector, with their places in the vector of all ranks."""
    spans, begin = [], 0
    for shard, values in zip(shards, _views(vector, shards), strict=True):
        spans.append(MomentSpan(begin + shard.start - shard.place.offset, values.view(-1)))
        begin += shard.place.count
    return spans


@dataclass
class _Group:
    """Tensors with the same weight decay: views of vectors, and the number of steps for each tensor."""

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
        parameters: LocalParameters,
        config: InnerConfig,
        shards: Sequence[TensorShard] | None = None,
        means: Sequence[Tensor] | None = None,
    ) -> None:
        """Make an optimiser.

        shards: the shards to update; None for all.  means: memory for their means; None to allocate it.
        """
        super().__init__(parameters, config)
        self._shards = parameters.shards if shards is None else shards
        count, device = sum(shard.count for shard in self._shards), parameters.device
        self.mean = torch.zeros(count if means is None else 0, device=device)
        self.square = torch.zeros(count, device=device)
        means = _views(self.mean, self._shards) if means is None else means
        self._groups = {True: _Group(config.weight_decay), False: _Group(0.0)}
        for shard, mean, square in zip(self._shards, means, _views(self.square, self._shards), strict=True):
            group = self._groups[_decays(shard.place)]
            group.parameters.append(shard.values)
            group.gradients.append(shard.gradient)
            group.means.append(mean)
            group.squares.append(square)
            group.steps.append(torch.zeros((), device=device))

    def squares(self) -> Sequence[TensorShard]:
        """Return the shards that it updates."""
        return self._shards

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
"""Root mean square of AdamW's updates divided by the rate; Muon's updates are scaled to it (Liu et al. 2025, section
2.2)."""


class Muon(Optimiser):
    """Muon for the matrices, with Nesterov momentum; AdamW for embeddings, output weights, norms and biases.

    Its updates have the size of AdamW's, so both take the same rate and weight decay. DiLoCo with it (MuLoCo, Thérien et al.
    2025) needs about half of AdamW's memory for moments, and reaches lower losses.
    """

    def __init__(self, parameters: LocalParameters, config: InnerConfig) -> None:
        super().__init__(parameters, config)
        shards = parameters.shards
        self.mean = torch.zeros(sum(shard.count for shard in shards), device=parameters.device)
        both = [*zip(shards, _views(self.mean, shards), strict=True)]
        self._matrices = [each for each in both if _is_hidden_matrix(each[0].place)]
        others = [each for each in both if not _is_hidden_matrix(each[0].place)]
        self._others = AdamW(parameters, config, [shard for shard, _ in others], [mean for _, mean in others])
        self.square = self._others.square

    def squares(self) -> Sequence[TensorShard]:
        """Return the shards that AdamW updates."""
        return self._others.squares()

    def _update(self, rate: float) -> None:
        self._others._update(rate)
        at_once = self.parameters.ranks
        for start in range(0, len(self._matrices), at_once):
            matrices = self._matrices[start : start + at_once]
            directions = []
            for shard, mean in matrices:
                mean.lerp_(shard.gradient, 1 - MUON_MOMENTUM)
                directions.append(shard.gradient.lerp(mean, MUON_MOMENTUM).to(self.parameters.model.compute_dtype))
            shards = [shard for shard, _ in matrices]
            for shard, direction in zip(shards, self.parameters.of_whole(orthogonal, directions, shards), strict=True):
                size = RMS_OF_ADAMW * math.sqrt(max(shard.place.shape))
                shard.values.mul_(1 - rate * self._config.weight_decay).add_(direction, alpha=-rate * size)

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
STREAMED_SHARE = 0.005
"""Share in a streamed run, in which writing takes time from training instead of from waiting for an exchange."""
MOST_STEPS = 1 << 40
"""Largest number of updates that a file may give."""
BLOCK = 1 << 20
"""Count of values copied from the device at a time."""
CHECKSUM_BYTES = 4
"""Bytes of the checksum at the end of the file, which other programs read as a tensor."""


class MomentsFile:
    """File of one optimiser's moments.  share: largest share of the time spent on writing."""

    def __init__(self, path: Path, share: float = SHARE) -> None:
        self.path, self._share = path, share
        self._due_at = 0.0
        self._stored: int | None = None
        """Number of updates that the moments in the file contain, if known."""

    def restore(self, optimiser: Optimiser) -> bool:
        """Load the moments from the file; return True if the optimiser continues with them, which is the same for all ranks.

        A damaged or unsuitable file is not changed, and is named in the log, because missing moments must not stop training.
        """
        flaw = f"{self.path} is not here"
        if exists := self.path.exists():
            try:
                self._read(optimiser)
                flaw = ""
            except (FolderError, OSError, ValueError) as error:
                flaw = str(error)
        if not optimiser.parameters.least(int(not flaw)):
            if exists:
                optimiser.forget()
                print(f"the moments of an earlier start are not used: {flaw or 'another rank refuses'}", file=sys.stderr)
            return False
        self._stored = optimiser.steps
        return True

    def store(self, optimiser: Optimiser, ranks: Ranks | None = None) -> None:
        """Write the moments atomically, with a checksum; do nothing if recent writing took more than its share of the time.

        ranks: all ranks, each of which writes its own moments with `write`; None for one.  A write error, such as a full
        disk, is logged, and the trainer continues; a restart then needs a warm-up.
        """
        begun, ranks = time.monotonic(), ranks or Ranks()
        if optimiser.steps in (0, self._stored) or begun < self._due_at:
            return
        unfinished = self.path.with_name(f".{self.path.name}.new")
        try:
            unfinished.unlink(missing_ok=True)  # left by a process that was killed
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
                places = _places(optimiser)
                header = header_of(places, ExportFormat.FP32)
                file.write(header)
                file.truncate(len(header) + 4 * (places[-1].offset + places[-1].count))
                with ranks.operation("write_moments", unfinished):
                    flaws = [flaw for flaw in ranks.collect(self.write(optimiser, unfinished)) if flaw]
                if flaws:
                    raise OSError(0, flaws[0])
                with unfinished.open("r+b") as whole:
                    checksum = _checksum(whole)
                    whole.write(checksum)
                os.fsync(file.fileno())
            os.replace(unfinished, self.path)
            self._stored = optimiser.steps
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            print(f"the optimiser's moments were not written to {self.path}: {error.strerror}", file=sys.stderr)
        ended = time.monotonic()
        self._due_at = ended + (ended - begun) / self._share

    def remove(self) -> None:
        """Remove the file after training with its moments, which may be damaged, gave numbers that are not finite."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            print(f"the optimiser's moments in {self.path} were not removed: {error.strerror}", file=sys.stderr)

    def write(self, optimiser: Optimiser, path: Path) -> str:
        """Write this process's moments into a file with a header; return a sentence if that fails, otherwise ""."""
        places = _places(optimiser)
        body, spans = len(header_of(places, ExportFormat.FP32)), optimiser.spans()
        spans["steps"] = [MomentSpan(0, torch.tensor([float(optimiser.steps)]))]
        try:
            with path.open("r+b", buffering=0) as file:
                for place in places[:-1]:
                    for span in spans[place.name]:
                        file.seek(body + 4 * (place.offset + span.start))
                        for at in range(0, len(span.values), BLOCK):
                            block: F32 = span.values[at : at + BLOCK].detach().cpu().numpy()
                            rest = memoryview(written(block, ExportFormat.FP32))
                            while rest:  # an unbuffered file may take it in parts
                                rest = rest[file.write(rest) :]
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _read(self, optimiser: Optimiser) -> None:
        stored = tensors_in(self.path)
        with self.path.open("rb") as file:
            if _checksum(file) != file.read():
                raise ValueError(f"{self.path} is damaged")
        for place in _places(optimiser):
            if place.name not in stored or stored[place.name].shape != place.shape:
                raise ValueError(f"{self.path} belongs to another model")
        with torch.no_grad():
            for name, spans in optimiser.spans().items():
                for span in spans:
                    at = 0
                    for block in stored[name].values(span.start, len(span.values)):
                        if not np.isfinite(block).all() or (name == "square" and block.min(initial=0.0) < 0):
                            raise ValueError(f"{self.path} is damaged")
                        span.values[at : at + len(block)] = torch.from_numpy(block)
                        at += len(block)
        [steps] = np.concatenate(list(stored["steps"].values())).tolist()
        if not 1 <= steps <= MOST_STEPS:
            raise ValueError(f"{self.path} is damaged")
        optimiser.resume(int(steps))


def _places(optimiser: Optimiser) -> list[ParameterPlace]:
    """Return the tensors of a file, in order."""
    places, at = [], 0
    for name, count in (*optimiser.sizes().items(), ("steps", 1), ("checksum", CHECKSUM_BYTES // 4)):
        places.append(ParameterPlace(name, (count,), at))
        at += count
    return places


def _checksum(file: BinaryIO) -> bytes:
    """Return the CRC-32 of a file of moments without the checksum at its end; the file is then read up to that checksum."""
    found, left = 0, os.fstat(file.fileno()).st_size - CHECKSUM_BYTES
    file.seek(0)
    while left > 0 and (data := file.read(min(left, 4 * BLOCK))):
        found, left = zlib.crc32(data, found), left - len(data)
    return found.to_bytes(CHECKSUM_BYTES, "little")


# ------------------------------------------------------------------------------------------------------------------------
# Micro-batches: as many rows at a time as fit into memory.


Result = TypeVar("Result")


FILLED = 0.9
"""Share of the free memory that the largest micro-batch may take, estimated from the measured unit."""


class MicroBatches:
    """Finder of the largest micro-batch that fits this device.

    model: its layers are computed again if one unit does not fit otherwise; None for work without gradients.  memory: memory
    of a GPU, on which the first unit is measured; None to begin with all units.  parameters: parameters of several ranks,
    whose sizes are equal and cannot be changed after an error, because the other ranks wait; None for one process.
    """

    def __init__(
        self,
        model: Decoder | None = None,
        memory: GpuMemory | None = None,
        parameters: LocalParameters | None = None,
    ) -> None:
        self._model, self._memory, self._parameters = model, memory, parameters
        self._most = 1 << 30

    def within(self, units: int) -> int:
        """Return the number of units, or of those that were found to fit."""
        return 1 if self._memory is not None else min(units, self._most)

    def run(self, units: int, compute: Callable[[int], Result]) -> Result:
        """Call `compute` with `units`, or with the most units that fit; halve and remember the number if memory runs out.

        After halving, `compute` starts from the beginning. Raises OutOfMemoryError if one unit does not fit, even if all
        layers are computed again.
        """
        while True:
            part = self.within(units)
            try:
                return self._measured(compute) if self._memory is not None else compute(part)
            except torch.OutOfMemoryError:
                if self._parameters is not None:
                    raise
                if part > 1:
                    self._most = part // 2
                elif self._model is not None and self._model.recomputed < self._model.config.layers:
                    self._model.recomputed = self._model.config.layers
                else:
                    raise
                release_memory()

    def _measured(self, compute: Callable[[int], Result]) -> Result:
        """Compute one unit at a time, and determine from its memory the number that fits at once."""
        assert self._memory is not None
        self._memory.begin()
        result = compute(1)
        self._most = 1 + int(FILLED * self._memory.free() / max(1, self._memory.used()))
        if self._parameters is not None:
            self._most = self._parameters.least(self._most)
        self._memory = None
        return result


# ------------------------------------------------------------------------------------------------------------------------


class StepLoss(NamedTuple):
    """Loss of a step before its update.

    mean: mean loss of the whole step, with the z-loss.  parts: losses of each micro-batch's units.
    """

    mean: float
    parts: tuple[UnitLosses, ...]


@dataclass(frozen=True)
class PendingLoss:
    """Loss of a step that a GPU may still be computing.

    found: for each micro-batch, the rows of this rank, their loss, and its weight in the whole mean.
    """

    objective: Objective[Any]
    ranks: Ranks
    found: tuple[tuple[StepRows, ObjectiveLoss, float], ...]

    def read(self) -> StepLoss:
        """Return the loss of all ranks' rows, at the first rank; wait for the device."""
        mean = float(torch.stack([loss.mean * weight for _, loss, weight in self.found]).sum()) if self.found else 0.0
        own = StepLoss(mean, tuple(self.objective.measured(rows, loss) for rows, loss, _ in self.found))
        all_ranks = self.ranks.collect(own)
        return StepLoss(sum(loss.mean for loss in all_ranks), tuple(part for loss in all_ranks for part in loss.parts))


def part_of(rows: RowsT, units: range, objective: Objective[Any]) -> RowsT:
    """Return some units of rows; if there are none, the first unit, which is computed in vain so that ranks stay in step."""
    unit = objective.unit_rows
    return rows[units.start * unit : units.stop * unit] if units else rows[:unit]


def units_at_once(objective: Objective[Any], rows: StepRows, units: int) -> int:
    """Return the number of `units` units of rows that the objective allows to be computed at once."""
    if objective.most_tokens is None:
        return units
    return min(units, max(1, objective.most_tokens // (objective.unit_rows * rows.length)))


class InnerLoop:
    """Inner loop of a model: its optimiser, and the micro-batch size that fits this device.

    objective: the loss on rows; None for the loss of a language model.  ranks: the processes that share the model, each of
    which calls the same methods; None for one.  spares_memory: True to compute one unit at a time, and all layers again.
    """

    def __init__(
        self,
        parameters: LocalParameters,
        config: InnerConfig,
        objective: Objective[Any] | None = None,
        ranks: Ranks | None = None,
        *,
        spares_memory: bool = False,
    ) -> None:
        self._spares_memory = spares_memory
        self.model, self._parameters = parameters.model, parameters
        self.config = config
        self.objective: Objective[Any] = objective or LanguageModelObjective()
        self.optimiser = OPTIMISERS[config.optimizer](parameters, config)
        self._ranks = ranks or Ranks()
        measures = is_gpu(self.model.device) and not spares_memory and self.objective.most_tokens is None
        self._memory = GpuMemory(self.model.device) if measures else None
        together = parameters if self._ranks.count > 1 else None
        self._micro_batches = MicroBatches(self.model, self._memory, together)
        self._is_planned = False
        self._joined_at = 0
        self._receipts: ReceiptKeeper | None = None

    def keep_receipts(self, seed: int) -> ReceiptKeeper:
        """Keep the receipts of each step's rows from now on, and return their keeper.  seed: of the run."""
        self._receipts = ReceiptKeeper(self.model, seed)
        return self._receipts

    def take_receipts(self) -> Receipts:
        """Return the receipts of the last step's rows, in their order, at rank 0; others send theirs.  Waits for a GPU."""
        assert self._receipts is not None
        found = sorted(self._ranks.collect(self._receipts.take()), key=lambda part: part[0])
        return np.concatenate([receipts for _, receipts in found]) if found else np.zeros(0, RECEIPT)

    def at_once(self, rows: StepRows) -> int:
        """Return the number of units of these rows that a step computes at once."""
        return max(1, self._micro_batches.within(self._at_once(rows)))

    def step(self, rows: StepRows, place: Place) -> PendingLoss:
        """Take one inner step on rows; return their loss before the update.  Does not wait for a GPU."""
        if self.optimiser.steps == 0:
            self._joined_at = place.step
        factor = warmed(self.optimiser.steps, self.config.joiner_warmup_steps) if self._joined_at else 1.0
        loss = self._micro_batches.run(self._at_once(rows), lambda part: self._accumulate(rows, part))
        self.optimiser.step(scheduled_rate(self.config, place) * factor)
        return loss

    def _accumulate(self, rows: StepRows, part: int) -> PendingLoss:
        """Write the gradient of the rows' mean loss into the model, `part` units at a time at each rank."""
        self._parameters.zero_gradient()
        parts, whole = [], max(1.0, float(self.objective.weights_u(rows).sum()))
        keeper = self._receipts
        with keeper.step() if keeper is not None else nullcontext():
            for span in self._ranks.spans(len(rows) // self.objective.unit_rows, part):
                some = part_of(rows, span, self.objective)
                found, weights_u = self.objective.loss(self.model, some, self.config.z_loss), self.objective.weights_u(some)
                weight = float(weights_u.sum()) / whole if span else 0.0
                (found.mean * weight).backward()  # type: ignore[no-untyped-call]
                if span:
                    parts.append((some, found.detached(), weight))
                if span and keeper is not None:
                    keeper.add(span.start * self.objective.unit_rows, found.units_u, weights_u)
        return PendingLoss(self.objective, self._ranks, tuple(parts))

    def _at_once(self, rows: StepRows) -> int:
        """Return the units to try at once: all on a GPU, where too many raise an error; a planned number on a CPU."""
        if self._spares_memory:
            self.model.recomputed = self.model.config.layers
            return 1
        units = -(-len(rows) // self.objective.unit_rows // self._ranks.count)
        saves = self.model.prefetches and is_gpu(self.model.device)
        if saves:  # memory, so that more rows share the copies of a pass
            self.model.recomputed = self.model.config.layers
        if self.objective.most_tokens is not None:
            return units_at_once(self.objective, rows, units)
        if self._memory is not None:
            if self._ranks.count > 1 and not self._is_planned and not saves:
                tokens, room = self.objective.unit_rows * rows.length, self._memory.free() // 2
                needed = recomputed_layers(self.model.config, tokens, room, bf16=True)  # no rank may run out of memory
                self.model.recomputed, self._is_planned = -self._parameters.least(-needed), True
            return units
        bf16 = self.model.compute_dtype == torch.bfloat16
        plan = cpu_plan(self.model.config, rows.length, self.objective.unit_rows, bf16=bf16)
        self.model.recomputed = plan.recomputed
        return min(units, plan.units)
