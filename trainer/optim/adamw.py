"""The update of the local parameters: AdamW after clipping at the global norm.

Moments stay in this process across rounds and are never sent.  They are one flat vector each, like the parameters, so a
step is a handful of vector operations over blocks.
"""

from __future__ import annotations

import math

import torch

from trainer.config import InnerConfig
from trainer.models.llama.model import Decoder

BLOCK = 1 << 22
"""Parameters updated at a time: bounds the temporary memory of a step to two blocks."""


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
