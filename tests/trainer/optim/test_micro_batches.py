"""As many rows at once as fit, found by trying."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer import small
from trainer.data.rows import Rows
from trainer.optim import InnerLoop, MicroBatches
from trainer.parameters import WholeParameters


def test_out_of_memory_halves_the_micro_batch_until_it_fits() -> None:
    batches, tried = MicroBatches(), []

    def compute(part: int) -> float:
        tried.append(part)
        if part > 2:
            raise torch.OutOfMemoryError("no room")
        return 1.0

    assert batches.run(8, compute) == 1.0
    assert batches.run(8, compute) == 1.0
    assert tried == [8, 4, 2, 2]

    def never(part: int) -> float:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        MicroBatches().run(4, never)


def test_layers_are_computed_again_before_one_sequence_is_too_much() -> None:
    model, tried = small.model(), []

    def compute(part: int) -> str:
        tried.append((part, model.recomputed))
        if part > 1 or not model.recomputed:
            raise torch.OutOfMemoryError("no room")
        return "done"

    batches = MicroBatches(model)
    assert batches.run(4, compute) == batches.run(4, compute) == "done"
    layers = model.config.layers
    assert tried == [(4, 0), (2, 0), (1, 0), (1, layers), (1, layers)]


def test_a_gpu_measures_one_unit_and_then_fills_nine_tenths_of_what_is_free() -> None:
    memory: Any = SimpleNamespace(begin=lambda: None, used=lambda: 100, free=lambda: 1000)
    batches, tried = MicroBatches(small.model(), memory), []

    def compute(part: int) -> None:
        tried.append(part)

    for _ in range(2):
        batches.run(64, compute)
    assert tried == [1, 10]


def test_micro_batches_give_the_gradient_of_the_whole() -> None:
    whole, parts = (InnerLoop(WholeParameters(small.model()), small.config().inner) for _ in range(2))
    rows = Rows(np.random.default_rng(3).integers(0, 256, (8, 17), dtype=np.uint8))
    assert whole._accumulate(rows, 8).read().mean == pytest.approx(parts._accumulate(rows, 3).read().mean, rel=1e-5)
    torch.testing.assert_close(whole.model.gradient, parts.model.gradient, rtol=1e-4, atol=1e-7)
