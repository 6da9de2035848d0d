"""Update of the local parameters: torch's fused AdamW after clipping at the global norm.

Moments stay in this process across rounds, are in a file between two processes (`trainer.optim.moments`), and are never
sent.  Each is one flat vector, like parameters and gradients; torch's kernel updates all of them in place, through views of
the tensors.  The kernel is called as a function: the class `torch.optim.AdamW` does the same, but loads torch's compiler,
144 MB that nothing here uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.adamw import adamw

from trainer.config import InnerConfig
from trainer.models.llama.config import ParameterPlace
from trainer.models.llama.model import Decoder


@dataclass
class _Group:
    """Tensors with one weight decay: views of the flat vectors, and the steps that each has seen."""

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

    steps: updates so far.  mean, square: moments (n, fp32) of the gradient and of its square.
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
        """Clip the model's gradient to the global norm, update the parameters from it, and zero it."""
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
        """Continue after `steps` updates; their moments are already in `mean` and `square`."""
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
