"""As many rows at once as fit, found by trying."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer import small
from trainer.optim import MicroBatches


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


def test_out_of_memory_with_one_sequence_is_an_error() -> None:
    def compute(part: int) -> float:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        MicroBatches().run(4, compute)


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
