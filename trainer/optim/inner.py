"""The inner loop: AdamW under a warm-up, stable, decay schedule that follows the swarm's step.

Decides the update of the local parameters in one round.  Moments stay in this process across rounds and are never sent;
a process that joins mid-run has none, and warms up.  Which windows are read is `trainer.data`'s, what becomes of the
difference is `trainer.worker`'s business.

Moments are one flat vector each, like the parameters, so a step is a handful of vector operations over blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kernels.losses import language_model_loss
from trainer.config import InnerConfig
from trainer.memory import micro_batch
from trainer.models.llama.model import Decoder

BLOCK = 1 << 22
"""Parameters updated at a time: bounds the temporary memory of a step to two blocks."""


def scheduled_rate(config: InnerConfig, swarm_step: int) -> float:
    """Learning rate at a step of the swarm: linear warm-up, constant, then 1 - sqrt of the way to the end (WSD)."""
    if config.schedule != "wsd":
        raise ValueError(f"unknown schedule {config.schedule!r}: this version knows 'wsd'")
    if swarm_step < config.warmup_steps:
        return config.lr * (swarm_step + 1) / config.warmup_steps
    if swarm_step < config.stable_steps:
        return config.lr
    decay_steps = max(1, config.total_steps - config.stable_steps)
    return config.lr * max(0.0, 1.0 - math.sqrt((swarm_step - config.stable_steps) / decay_steps))


def warmed(step: int, warmup_steps: int) -> float:
    """Factor on the rate at the `step`-th step (from 0) of a warm-up; 1 without one."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


class AdamW:
    """Adam with decoupled weight decay on the matrices (not on norms, not on embeddings)."""

    def __init__(self, model: Decoder, config: InnerConfig) -> None:
        self._model = model
        self._config = config
        self._mean = torch.zeros_like(model.flat)
        self._square = torch.zeros_like(model.flat)
        self._decayed = [
            parameter.detach()
            for name, parameter in model.tensors.items()
            if parameter.dim() == 2 and name != "model.embed_tokens.weight"
        ]
        self.steps = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update from the model's gradient, which is clipped to the global norm first and zeroed after."""
        config, model = self._config, self._model
        self.steps += 1
        torch._foreach_mul_(self._decayed, 1.0 - rate * config.weight_decay)
        norm = torch.linalg.vector_norm(model.gradient)
        model.gradient.mul_((config.clip_norm / (norm + 1e-6)).clamp(max=1.0))
        correct_mean = 1.0 - config.beta1**self.steps
        correct_root = math.sqrt(1.0 - config.beta2**self.steps)
        for start in range(0, len(model.flat), BLOCK):
            span = slice(start, start + BLOCK)
            gradient, mean, square = model.gradient[span], self._mean[span], self._square[span]
            mean.lerp_(gradient, 1.0 - config.beta1)
            square.mul_(config.beta2).addcmul_(gradient, gradient, value=1.0 - config.beta2)
            root = square.sqrt().div_(correct_root).add_(config.eps)
            model.flat[span].addcdiv_(mean, root, value=-rate / correct_mean)
        model.gradient.zero_()


def loss_of(model: Decoder, tokens_bt: np.ndarray, z_loss: float) -> Tensor:
    """Mean loss on windows (B, T + 1) of bytes, nats a token."""
    device = model.flat.device
    tokens = torch.from_numpy(tokens_bt.astype(np.int64)).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model(tokens[:, :-1])
    if device.type == "cuda":
        hidden = hidden.bfloat16()  # the product with the output weights is in this precision, the rest fp32
    loss: Tensor = language_model_loss(hidden, model.output_weight, tokens[:, 1:], z_loss)
    return loss


class InnerLoop:
    """The model, its optimiser, and the micro-batch size that fits this device."""

    def __init__(self, model: Decoder, config: InnerConfig) -> None:
        self.model = model
        self.config = config
        self.optimiser = AdamW(model, config)
        self._micro_batch = 1 << 30
        self._joined_at = 0

    def step(self, tokens_bt: np.ndarray, swarm_step: int, factor: float) -> float:
        """One inner step on windows (B, T + 1) of bytes; the mean loss in nats a token, before the update."""
        if self.optimiser.steps == 0:
            self._joined_at = swarm_step
        if self._joined_at:
            factor = min(factor, warmed(self.optimiser.steps, self.config.joiner_warmup_steps))
        loss = self._with_back_off(self._at_once(tokens_bt), lambda part: self._accumulate(tokens_bt, part))
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

    def _with_back_off(self, batch: int, run: Callable[[int], float]) -> float:
        """Run with the largest micro-batch that fits; halves it when memory runs out, and remembers."""
        while True:
            part = min(batch, self._micro_batch)
            try:
                return run(part)
            except torch.OutOfMemoryError:
                if part == 1:
                    raise
                self._micro_batch = part // 2
                torch.cuda.empty_cache()
