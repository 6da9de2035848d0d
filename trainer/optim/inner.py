"""Inner loop: one optimiser step after another on this device, in micro-batches that fit.

A process that begins in the middle of a run, without moments of an earlier start, warms up.  `trainer.data` chooses the
windows, and `trainer.worker` encodes the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from trainer.config import InnerConfig
from trainer.data.rows import Rows
from trainer.memory import micro_batch
from trainer.models.llama.model import Decoder
from trainer.models.loss import loss_of
from trainer.optim.adamw import AdamW

# ------------------------------------------------------------------------------------------------------------------------
# Micro-batches: as many rows at once as fit.


Result = TypeVar("Result")


class MicroBatches:
    """Memory of the largest micro-batch that fits this device."""

    def __init__(self) -> None:
        self._most = 1 << 30

    def run(self, rows: int, compute: Callable[[int], Result]) -> Result:
        """Call `compute` with `rows`, or with the most rows that fit: halve them when memory runs out, and remember.

        After halving, `compute` starts from the beginning.  Raises OutOfMemoryError when one row does not fit.
        """
        while True:
            part = min(rows, self._most)
            try:
                return compute(part)
            except torch.OutOfMemoryError:
                if part == 1:
                    raise
                self._most = part // 2
                torch.cuda.empty_cache()


# ------------------------------------------------------------------------------------------------------------------------
# Learning rate: a warm-up, stable, decay schedule that ends with the run, and the warm-up of joiners.


@dataclass(frozen=True)
class Place:
    """Place of an inner step in the run.

    step: the swarm's, counted from the beginning of the run's present stage.  share: of that stage, from 0 to 1.
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
    """Return the factor on the rate at the `step`-th step (from 0) of a warm-up; 1 without a warm-up."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


# ------------------------------------------------------------------------------------------------------------------------


class InnerLoop:
    """Inner loop of a model: its optimiser, and the micro-batch size that fits this device."""

    def __init__(self, model: Decoder, config: InnerConfig) -> None:
        self.model = model
        self.config = config
        self.optimiser = AdamW(model, config)
        self._micro_batches = MicroBatches()
        self._joined_at = 0

    def step(self, rows: Rows, place: Place) -> float:
        """Take one inner step; return the mean loss of the rows' counted tokens, nats per token, before the update."""
        if self.optimiser.steps == 0:
            self._joined_at = place.step
        factor = warmed(self.optimiser.steps, self.config.joiner_warmup_steps) if self._joined_at else 1.0
        loss = self._micro_batches.run(self._at_once(rows), lambda part: self._accumulate(rows, part))
        self.optimiser.step(scheduled_rate(self.config, place) * factor)
        return loss

    def _accumulate(self, rows: Rows, part: int) -> float:
        self.model.gradient.zero_()
        total, counted = 0.0, rows.counted
        for start in range(0, len(rows), part):
            some = rows[start : start + part]
            loss = loss_of(self.model, some, self.config.z_loss) * (some.counted / counted)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _at_once(self, rows: Rows) -> int:
        """Return the rows to try at once: all on a GPU, which raises if they do not fit; the planned number on a CPU."""
        on_cpu = self.model.flat.device.type == "cpu"
        return min(len(rows), micro_batch(self.model.config, rows.length)) if on_cpu else len(rows)
