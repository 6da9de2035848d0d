"""The inner loop: schedule, AdamW as torch has it, and micro-batches that fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainer import small
from trainer.models.llama.model import Decoder
from trainer.optim.inner import AdamW, InnerLoop, scheduled_rate, warmed

INNER = replace(small.config().inner, lr=1.0, warmup_steps=10, stable_steps=100, total_steps=200)


def _model() -> Decoder:
    model = Decoder(small.config().model, small.CPU)
    model.flat.copy_(torch.from_numpy(small.theta()))
    return model


def _rows(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, 17), dtype=np.uint8)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.1), (9, 1.0), (10, 1.0), (99, 1.0), (100, 1.0), (125, 0.5), (200, 0.0), (900, 0.0)]
)
def test_rate_warms_up_stays_and_decays_with_the_root(step: int, rate: float) -> None:
    assert scheduled_rate(INNER, step) == pytest.approx(rate)


def test_joiners_warm_up_from_nothing() -> None:
    assert [warmed(step, 4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert warmed(0, 0) == 1.0


def test_update_is_torch_adamw_without_decay_on_norms_and_embeddings() -> None:
    config = replace(INNER, clip_norm=1e9, weight_decay=0.5)
    ours, theirs = _model(), _model()
    optimiser = AdamW(ours, config)
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
    model = _model()
    optimiser = AdamW(model, replace(INNER, clip_norm=1.0))
    model.gradient.fill_(100.0)
    optimiser.step(0.0)
    mean = optimiser._mean / (1 - INNER.beta1)
    assert float(mean.norm()) == pytest.approx(1.0, rel=1e-3)


def test_micro_batches_give_the_gradient_of_the_whole() -> None:
    whole, parts = InnerLoop(_model(), INNER), InnerLoop(_model(), INNER)
    parts._micro_batch = 3
    rows = _rows(8)
    one = whole._with_back_off(8, lambda part: whole._accumulate(rows, part))
    other = parts._with_back_off(8, lambda part: parts._accumulate(rows, part))
    assert one == pytest.approx(other, rel=1e-5)
    torch.testing.assert_close(whole.model.gradient, parts.model.gradient, rtol=1e-4, atol=1e-7)


def test_out_of_memory_halves_the_micro_batch_until_it_fits() -> None:
    loop, tried = InnerLoop(_model(), INNER), []

    def run(part: int) -> float:
        tried.append(part)
        if part > 2:
            raise torch.OutOfMemoryError("no room")
        return 1.0

    assert loop._with_back_off(8, run) == 1.0
    assert loop._with_back_off(8, run) == 1.0
    assert tried == [8, 4, 2, 2]


def test_out_of_memory_with_one_sequence_is_an_error() -> None:
    def run(part: int) -> float:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        InnerLoop(_model(), INNER)._with_back_off(4, run)
