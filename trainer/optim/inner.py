"""The inner loop: one optimiser step after another on this device, in micro-batches that fit.

A process that joins mid-run has no moments, and warms up.  Which windows are read is `trainer.data`'s, what becomes of the
difference is `trainer.worker`'s business.
"""

from __future__ import annotations

import numpy as np

from trainer.config import InnerConfig
from trainer.memory import micro_batch
from trainer.models.llama.model import Decoder
from trainer.models.loss import loss_of
from trainer.optim.adamw import AdamW
from trainer.optim.micro_batches import MicroBatches
from trainer.optim.rate import scheduled_rate, warmed


class InnerLoop:
    """The model, its optimiser, and the micro-batch size that fits this device."""

    def __init__(self, model: Decoder, config: InnerConfig) -> None:
        self.model = model
        self.config = config
        self.optimiser = AdamW(model, config)
        self._micro_batches = MicroBatches()
        self._joined_at = 0

    def step(self, tokens_bt: np.ndarray, swarm_step: int, factor: float) -> float:
        """One inner step on windows (B, T + 1) of bytes; the mean loss in nats a token, before the update."""
        if self.optimiser.steps == 0:
            self._joined_at = swarm_step
        if self._joined_at:
            factor = min(factor, warmed(self.optimiser.steps, self.config.joiner_warmup_steps))
        loss = self._micro_batches.run(self._at_once(tokens_bt), lambda part: self._accumulate(tokens_bt, part))
        self.optimiser.step(scheduled_rate(self.config, swarm_step) * factor)
        return loss

    def _accumulate(self, tokens_bt: np.ndarray, part: int) -> float:
        self.model.gradient.zero_()
        total = 0.0
        for start in range(0, len(tokens_bt), part):
            rows = tokens_bt[start : start + part]
            loss = loss_of(self.model, rows, self.config.z_loss) * (len(rows) / len(tokens_bt))
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _at_once(self, tokens_bt: np.ndarray) -> int:
        """Rows to try at once: all of them on a GPU, which says when they do not fit; as many as is planned on a CPU."""
        rows, length = len(tokens_bt), tokens_bt.shape[1] - 1
        on_cpu = self.model.flat.device.type == "cpu"
        return min(rows, micro_batch(self.model.config, length)) if on_cpu else rows
