"""The inner loop: micro-batches that fit."""

import numpy as np
import pytest
import torch

from tests.trainer import small
from trainer.optim.inner import InnerLoop

INNER = small.config().inner


def _rows(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, 17), dtype=np.uint8)


def test_micro_batches_give_the_gradient_of_the_whole() -> None:
    whole, parts = InnerLoop(small.model(), INNER), InnerLoop(small.model(), INNER)
    parts._micro_batch = 3
    rows = _rows(8)
    one = whole._with_back_off(8, lambda part: whole._accumulate(rows, part))
    other = parts._with_back_off(8, lambda part: parts._accumulate(rows, part))
    assert one == pytest.approx(other, rel=1e-5)
    torch.testing.assert_close(whole.model.gradient, parts.model.gradient, rtol=1e-4, atol=1e-7)


def test_out_of_memory_halves_the_micro_batch_until_it_fits() -> None:
    loop, tried = InnerLoop(small.model(), INNER), []

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
        InnerLoop(small.model(), INNER)._with_back_off(4, run)
