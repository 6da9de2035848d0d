"""As many rows at once as fit, found by trying."""

import pytest
import torch

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
