"""The inner loop: one optimiser step after another on this device, in micro-batches that fit.

A process that begins in the middle of a run without moments of an earlier start warms up.  Which windows are read is
`trainer.data`'s, what becomes of the difference is `trainer.worker`'s business.
"""

from __future__ import annotations

from trainer.config import InnerConfig
from trainer.data.rows import Rows
from trainer.memory import micro_batch
from trainer.models.llama.model import Decoder
from trainer.models.loss import loss_of
from trainer.optim.adamw import AdamW
from trainer.optim.micro_batches import MicroBatches
from trainer.optim.rate import Place, scheduled_rate, warmed


class InnerLoop:
    """The model, its optimiser, and the micro-batch size that fits this device."""

    def __init__(self, model: Decoder, config: InnerConfig) -> None:
        self.model = model
        self.config = config
        self.optimiser = AdamW(model, config)
        self._micro_batches = MicroBatches()
        self._joined_at = 0

    def step(self, rows: Rows, place: Place) -> float:
        """One inner step on rows of windows; the mean loss of their counted tokens, nats a token, before the update."""
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
        """Rows to try at once: all of them on a GPU, which says when they do not fit; as many as is planned on a CPU."""
        on_cpu = self.model.flat.device.type == "cpu"
        return min(len(rows), micro_batch(self.model.config, rows.length)) if on_cpu else len(rows)
