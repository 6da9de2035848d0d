"""The inner loop: micro-batches that fit."""

import numpy as np
import pytest
import torch

from tests.trainer import small
from trainer.data.rows import Rows
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters

INNER = small.config().inner


def _rows(count: int) -> Rows:
    return Rows(np.random.default_rng(3).integers(0, 256, (count, 17), dtype=np.uint8))


def test_micro_batches_give_the_gradient_of_the_whole() -> None:
    whole, parts = InnerLoop(WholeParameters(small.model()), INNER), InnerLoop(WholeParameters(small.model()), INNER)
    rows = _rows(8)
    assert whole._accumulate(rows, 8).read().mean == pytest.approx(parts._accumulate(rows, 3).read().mean, rel=1e-5)
    torch.testing.assert_close(whole.model.gradient, parts.model.gradient, rtol=1e-4, atol=1e-7)
