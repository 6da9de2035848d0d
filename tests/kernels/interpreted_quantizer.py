"""Tests of the GPU's quantiser under Triton's interpreter.  Run by test_quantizer in a process of their own."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from kernels import quantizer_triton
from kernels.quantizer import QuantizedMatrix, dequantize, quantize
from kernels.weight_format import BLOCK, LARGEST, LARGEST_STEP, LIMITS, STEPS, TINY, WeightFormat
from tests.kernels.test_quantizer import INT4, blocks_with_one, every_type, quantising, scales_from, weights
from tests.kernels.vectors import FINITE


def quantized_on_gpu(values: Tensor, like: QuantizedMatrix) -> QuantizedMatrix:
    made = dataclasses.replace(like, codes=torch.full_like(like.codes, 99), scales=torch.full_like(like.scales, 99))
    quantizer_triton.quantize(values, made)
    return made


def assert_same_codes(values: Tensor, format: WeightFormat) -> QuantizedMatrix:
    expected = quantize(values, format)
    made = quantized_on_gpu(values, expected)
    assert torch.equal(made.codes, expected.codes)
    assert torch.equal(made.scales.view(torch.int16), expected.scales.view(torch.int16))
    return expected


def assert_same_values(matrix: QuantizedMatrix) -> None:
    for dtype, bits in ((torch.bfloat16, torch.int16), (torch.float32, torch.int32)):
        ours, theirs = (torch.full(matrix.shape, 99.0, dtype=dtype) for _ in range(2))
        quantizer_triton.dequantize(matrix, ours)
        dequantize(matrix, theirs)
        assert torch.equal(ours.view(bits), theirs.view(bits))


@quantising
@every_type
@pytest.mark.parametrize("shape", [(66, 64), (2, 4133)])
def test_codes_and_values_have_the_bits_of_the_cpu(format: WeightFormat, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    assert_same_values(assert_same_codes(weights(*shape).to(dtype), format))


@quantising
@settings(max_examples=10, deadline=None)
@given(values=hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 130)), elements=FINITE, fill=FINITE))
def test_awkward_values_have_the_bits_of_the_cpu(format: WeightFormat, values: npt.NDArray[np.float32]) -> None:
    assert_same_values(assert_same_codes(torch.from_numpy(values), format))


@quantising
def test_every_ratio_of_a_bf16_number_has_the_code_of_the_cpu(format: WeightFormat) -> None:
    positive = scales_from(TINY, 1.0)
    assert_same_codes(blocks_with_one(torch.cat((positive, -positive))), format)


def test_ratios_beside_the_limits_of_int4_have_the_codes_of_the_cpu() -> None:
    limits = torch.tensor(LIMITS, dtype=torch.float32) / (2 * STEPS)
    near = [limits, limits.nextafter(torch.tensor(-1.0)), limits.nextafter(torch.tensor(1.0))]
    for scale in (1.0, -3.0, 1.9921875, 2.0**-90, -(2.0**100)):
        assert_same_codes(blocks_with_one(torch.cat(near)) * scale, INT4)


@quantising
def test_products_of_all_significands_with_all_codes_have_the_bits_of_the_cpu(format: WeightFormat) -> None:
    low, top = (TINY, LARGEST / 2) if format is INT4 else (TINY / 128, LARGEST_STEP / 2)
    scales = torch.cat([scales_from(each, 2 * each) for each in (low, 1.0, top)])
    if format is INT4:
        codes, inputs = torch.arange(16, dtype=torch.uint8)[::2] * 17 + 16, 16
        scales = torch.cat((scales, -scales))
    else:
        codes, inputs = torch.arange(-127, 128, dtype=torch.int8), 255
    codes = codes.expand(len(scales), -1).contiguous()
    assert_same_values(QuantizedMatrix(format, (len(scales), inputs), codes, scales[:, None].repeat(1, -(-inputs // BLOCK))))


@quantising
@every_type
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_blocks_that_are_not_finite_have_a_nan_as_their_scale(format: WeightFormat, dtype: torch.dtype, bad: float) -> None:
    values = weights(2, 130).to(dtype)
    like = quantize(values, format)
    values[1, 127] = bad
    assert quantized_on_gpu(values, like).scales.isnan().tolist() == [[False] * 3, [False, True, False]]
