"""The update: AdamW as torch has it, after clipping, on the flat vectors where they lie."""

import numpy as np
import pytest
import torch

from tests.trainer import small
from trainer.optim import AdamW
from trainer.parameters import WholeParameters

INNER = small.config().inner


def test_update_is_torch_adamw_without_decay_on_norms_and_embeddings() -> None:
    config = INNER.changed(clip_norm=1e6, weight_decay=0.5)
    ours, theirs = small.model(), small.model()
    optimiser = AdamW(WholeParameters(ours), config)
    decayed = [p for name, p in theirs.tensors.items() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in theirs.tensors.items() if p.dim() == 1 or "embed" in name]
    groups = [{"params": decayed, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]
    oracle = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)
    for step in range(3):
        gradient = torch.from_numpy(np.random.default_rng(step).normal(size=len(ours.flat)).astype(np.float32))
        ours.gradient.copy_(gradient)
        theirs.gradient.copy_(gradient)
        optimiser.step(0.01)
        oracle.step()
    torch.testing.assert_close(ours.flat, theirs.flat, rtol=1e-5, atol=1e-6)


def test_large_gradients_are_clipped_to_the_global_norm() -> None:
    model = small.model()
    optimiser = AdamW(WholeParameters(model), INNER.changed(clip_norm=1.0))
    model.gradient.fill_(100.0)
    optimiser.step(0.0)
    mean = optimiser.mean / (1 - INNER.beta1)
    assert float(mean.norm()) == pytest.approx(1.0, rel=1e-3)
