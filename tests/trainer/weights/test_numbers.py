"""bf16 is rounded as torch rounds, and everything is read exactly."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.weights.safetensors_file import ExportFormat, read, written


def bf16_of(values: np.ndarray) -> torch.Tensor:
    return torch.frombuffer(bytearray(written(values, ExportFormat.BF16)), dtype=torch.bfloat16)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_any_bits_are_rounded_as_torch_does(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    ours, theirs = bf16_of(values), torch.from_numpy(values).bfloat16()
    numbers = ~torch.isnan(theirs)
    assert torch.equal(ours.view(torch.int16)[numbers], theirs.view(torch.int16)[numbers])
    assert torch.equal(torch.isnan(ours), ~numbers)


def test_every_bf16_and_every_f16_is_read_as_the_number_that_it_is() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        theirs = torch.from_numpy(every.view(np.int16)).view(dtype).float()
        np.testing.assert_array_equal(read(every.tobytes(), name), theirs.numpy())
