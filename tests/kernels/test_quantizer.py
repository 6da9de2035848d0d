"""Frozen weights in int8 and int4: codes and values that are pure functions of the published values, bit for bit."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from kernels import quantizer
from kernels.quantizer import QuantizedMatrix, dequantize, quantize
from kernels.weight_format import BLOCK, LARGEST, LARGEST_STEP, LEVELS, LIMITS, STEPS, TINY, WeightFormat
from tests.kernels.test_codec_triton import run
from tests.kernels.vectors import FINITE

BF16, INT8, INT4 = WeightFormat
quantising = pytest.mark.parametrize("format", [INT8, INT4])
every_type = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
LEVELS_OF_INT4 = np.array(LEVELS) / STEPS
ZERO = LEVELS.index(0)


def decoded(matrix: QuantizedMatrix) -> Tensor:
    """The values in bf16, which are also those in fp32."""
    values, wide = torch.empty(matrix.shape, dtype=torch.bfloat16), torch.empty(matrix.shape)
    dequantize(matrix, values)
    dequantize(matrix, wide)
    assert torch.equal(values.view(torch.int16).to(torch.int32) << 16, wide.view(torch.int32))
    return values


def unpacked(matrix: QuantizedMatrix) -> Tensor:
    """The codes of int4, one by one."""
    return torch.stack((matrix.codes & 15, matrix.codes >> 4), dim=2).flatten(1)[:, : matrix.shape[1]]


def scales_from(smallest: float, largest: float) -> Tensor:
    """All bf16 numbers in a range of positive ones."""
    numbers = torch.arange(1, 0x7F80, dtype=torch.int16).view(torch.bfloat16)
    return numbers[(numbers >= smallest) & (numbers <= largest)]


def bits_of_product(levels: npt.NDArray[np.float64], scales: Tensor) -> npt.NDArray[np.int16]:
    """The exact products (scales, levels), rounded to nearest even by their bits alone."""
    exact = np.outer(scales.to(torch.float64).numpy(), levels)
    narrow = exact.astype(np.float32)
    assert (narrow == exact).all(), "products are exact in fp32"
    bits = narrow.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(np.int16)


def weights(rows: int, inputs: int) -> Tensor:
    """Numbers from -1 to 1, denser near 0, the same with every library."""
    places = np.arange(rows * inputs, dtype=np.int64).reshape(rows, inputs)
    x = (places * 40503 % 65521 - 32760) / 32768.0
    return torch.from_numpy((x * x * x).astype(np.float32))


# ------------------------------------------------------------------------------------------------------------------------
# Bytes.


@pytest.mark.parametrize(
    ("format", "dtype", "digest"),
    [
        (INT8, torch.bfloat16, "5073b68df9aa03a7"),
        (INT8, torch.float16, "d7f9be248d81b7ea"),
        (INT8, torch.float32, "b3a7461f5a815069"),
        (INT4, torch.bfloat16, "0dcbf1fbdf167933"),
        (INT4, torch.float16, "bbda715a69cf337b"),
        (INT4, torch.float32, "343d3131f637bac8"),
    ],
)
def test_codes_scales_and_values_are_the_golden_ones(format: WeightFormat, dtype: torch.dtype, digest: str) -> None:
    matrix = quantize(weights(7, 331).to(dtype), format)
    parts = matrix.codes, matrix.scales.view(torch.int16), decoded(matrix).view(torch.int16)
    assert hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16] == digest


def test_a_row_in_int8() -> None:
    matrix = quantize(torch.tensor([[254.0, -254.0, 1.0, 3.0, -5.0, 0.0, -0.0]]), INT8)
    assert matrix.scales.tolist() == [[2.0]]
    assert matrix.codes.tolist() == [[127, -127, 0, 2, -2, 0, 0]], "ties to even"


def test_a_row_in_int4_has_the_sign_of_its_largest_value_in_the_scale_and_the_earlier_code_in_the_low_half() -> None:
    matrix = quantize(torch.tensor([[-2.0, 0.0, 1.75, -1.0, -0.0]]), INT4)
    assert matrix.scales.tolist() == [[-2.0]]
    assert matrix.codes.tolist() == [[15 | ZERO << 4, 0 | 12 << 4, ZERO | ZERO << 4]]
    assert decoded(matrix).tolist() == [[-2.0, 0.0, 2 * 219 / 256, -2 * 125 / 256, 0.0]]
    assert quantize(torch.tensor([[-1.0, 1.0]]), INT4).scales.item() == 1.0


# ------------------------------------------------------------------------------------------------------------------------
# Every scale and every level.


def test_every_product_of_int4_is_rounded_once() -> None:
    scales = scales_from(TINY, LARGEST)
    for signed in (scales, -scales):
        codes = (torch.arange(16, dtype=torch.uint8)[::2] * 17 + 16).expand(len(signed), -1).contiguous()
        matrix = QuantizedMatrix(INT4, (len(signed), 16), codes, signed[:, None].contiguous())
        assert (decoded(matrix).view(torch.int16).numpy() == bits_of_product(LEVELS_OF_INT4, signed)).all()


def test_products_of_all_significands_with_all_codes_of_int8_are_rounded_once() -> None:
    scales = torch.cat([scales_from(low, 2 * low) for low in (TINY / 128, 1.0, LARGEST_STEP / 2)])
    codes = torch.arange(-127, 128, dtype=torch.int8).expand(len(scales), -1).contiguous()
    values = decoded(QuantizedMatrix(INT8, (len(scales), 255), codes, scales[:, None].repeat(1, 4)))
    assert (values.view(torch.int16).numpy() == bits_of_product(np.arange(-127.0, 128.0), scales)).all()
    assert values.isfinite().all()


def test_dequantised_levels_of_every_scale_are_quantised_as_the_same_codes() -> None:
    for signed in (scales_from(TINY, LARGEST), -scales_from(TINY, LARGEST)):
        codes = (torch.arange(16, dtype=torch.uint8)[::2] * 17 + 16).expand(len(signed), -1).contiguous()
        matrix = QuantizedMatrix(INT4, (len(signed), 16), codes, signed[:, None].contiguous())
        again = quantize(decoded(matrix), INT4)
        assert torch.equal(again.codes, matrix.codes) and torch.equal(again.scales, matrix.scales)


# ------------------------------------------------------------------------------------------------------------------------
# Every ratio.


def blocks_with_one(values: Tensor) -> Tensor:
    """Rows of one block, whose first value is 1, with all of the values."""
    values = torch.nn.functional.pad(values, (0, -len(values) % (BLOCK - 1))).view(-1, BLOCK - 1)
    return torch.cat((torch.ones((len(values), 1), dtype=values.dtype), values), dim=1)


def test_int4_takes_the_nearest_level_of_every_bf16_number_and_the_lower_of_two() -> None:
    values = scales_from(TINY, 1.0)
    for signed in (values, -values):
        given = blocks_with_one(signed)
        distances = np.abs(given.to(torch.float64).numpy()[:, :, None] - LEVELS_OF_INT4)
        assert (unpacked(quantize(given, INT4)).numpy() == distances.argmin(2)).all()


def test_limits_between_levels_of_int4_belong_to_the_lower_one() -> None:
    limits = torch.tensor(LIMITS, dtype=torch.float32) / (2 * STEPS)
    lower, higher = torch.arange(15).tolist(), torch.arange(1, 16).tolist()
    for values, codes in (
        (limits, lower),
        (limits.nextafter(torch.tensor(-1.0)), lower),
        (limits.nextafter(torch.tensor(1.0)), higher),
    ):
        matrix = quantize(torch.cat((values, torch.ones(1)))[None], INT4)
        assert unpacked(matrix).tolist() == [[*codes, 15]]


def test_int8_rounds_every_ratio_to_nearest_even() -> None:
    values = blocks_with_one(torch.cat((scales_from(TINY, 1.0), -scales_from(TINY, 1.0))))
    scale = np.float32(quantize(torch.ones(1, 1), INT8).scales.item())
    expected = np.rint(values.to(torch.float32).numpy() / scale).astype(np.int8)
    assert (quantize(values, INT8).codes.numpy() == expected).all()


# ------------------------------------------------------------------------------------------------------------------------
# Values at the edges.


@quantising
def test_blocks_of_zeros_and_of_tiny_values_are_positive_zeros(format: WeightFormat) -> None:
    values = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 2.0**-101, -(2.0**-101)])[:, None].expand(6, BLOCK).contiguous()
    values[5, 0] = torch.tensor(-TINY).nextafter(torch.tensor(0.0))
    matrix = quantize(values, format)
    assert not matrix.scales.view(torch.int16).any() and not decoded(matrix).view(torch.int16).any()
    values[5, 0] = -TINY
    assert decoded(quantize(values, format))[5, 0].item() == pytest.approx(-TINY, rel=2**-7)


@quantising
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_stay_finite(format: WeightFormat, sign: int) -> None:
    largest = torch.finfo(torch.float32).max
    values = torch.tensor([[sign * largest, -sign * largest, LARGEST, -LARGEST, 1.0, largest / 2]])
    read = decoded(quantize(values, format)).to(torch.float64)
    assert read.isfinite().all() and ((read - values.to(torch.float64)).abs() <= 0.15 * largest).all()


@quantising
@every_type
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(format: WeightFormat, dtype: torch.dtype, bad: float) -> None:
    values = weights(5, 70).to(dtype)
    values[3, 69] = bad
    with pytest.raises(ValueError, match="a value is not finite"):
        quantize(values, format)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3.4e38])
def test_bf16_refuses_values_that_it_cannot_hold(bad: float) -> None:
    with pytest.raises(ValueError, match="a value is not finite"):
        quantize(torch.tensor([[1.0, bad]]), BF16)


@pytest.mark.parametrize("format", WeightFormat)
def test_tensors_that_are_no_matrices_of_weights_are_refused(format: WeightFormat) -> None:
    for shape in ((8,), (2, 2, 2), (0, 8), (8, 0)):
        with pytest.raises(ValueError, match="is not a matrix"):
            quantize(torch.ones(shape), format)
    for dtype in (torch.float64, torch.int8, torch.complex64):
        with pytest.raises(ValueError, match="cannot be quantised"):
            quantize(torch.ones((2, 2), dtype=dtype), format)


# ------------------------------------------------------------------------------------------------------------------------
# Blocks, chunks and buffers.


@quantising
@pytest.mark.parametrize("inputs", [1, 7, 63, 65, 100, 128, 191])
def test_blocks_of_a_row_are_independent_and_the_last_may_be_short(format: WeightFormat, inputs: int) -> None:
    values = weights(3, inputs)
    matrix = quantize(values, format)
    parts = [quantize(part.contiguous(), format) for part in values.split(BLOCK, dim=1)]
    assert torch.equal(matrix.codes, torch.cat([part.codes for part in parts], dim=1))
    assert torch.equal(matrix.scales, torch.cat([part.scales for part in parts], dim=1))
    assert torch.equal(decoded(matrix), torch.cat([decoded(part) for part in parts], dim=1))


@quantising
@pytest.mark.parametrize("inputs", [64, 100])
def test_chunks_change_no_bit(format: WeightFormat, inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = weights(11, inputs)
    whole = quantize(values, format)
    expected = decoded(whole)
    monkeypatch.setattr(quantizer, "CHUNK", 300)
    parts = quantize(values, format)
    assert torch.equal(parts.codes, whole.codes) and torch.equal(parts.scales, whole.scales)
    assert torch.equal(decoded(parts), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_of_several_matrices_are_read_through_one_scratch(dtype: torch.dtype) -> None:
    scratch = torch.full((300,), math.nan, dtype=dtype)
    for format in (INT8, INT4, BF16):
        for shape in ((3, 100), (4, 5)):
            matrix = quantize(weights(*shape), format)
            read = matrix.weights(scratch)
            assert read.dtype == dtype and torch.equal(read.to(torch.bfloat16), decoded(matrix))
            is_kept = format is BF16 and dtype is torch.bfloat16
            assert read.data_ptr() == (matrix.codes if is_kept else scratch).data_ptr()


def test_published_bf16_values_are_kept_without_a_copy() -> None:
    values = weights(3, 100).to(torch.bfloat16)
    assert quantize(values, BF16).codes.data_ptr() == values.data_ptr()


@pytest.mark.parametrize("format", WeightFormat)
def test_bytes_a_value_are_those_of_codes_and_scales(format: WeightFormat) -> None:
    matrix = quantize(weights(3, 128), format)
    assert sum(each.numel() * each.element_size() for each in (matrix.codes, matrix.scales)) == 384 * format.bytes_per_value


# ------------------------------------------------------------------------------------------------------------------------
# Errors.


@pytest.mark.slow
@quantising
@given(values=hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 130)), elements=FINITE, fill=FINITE))
def test_errors_are_within_half_a_gap_and_the_rounding_to_bf16(
    format: WeightFormat, values: npt.NDArray[np.float32]
) -> None:
    matrix = quantize(torch.from_numpy(values), format)
    error = (decoded(matrix).to(torch.float64) - torch.from_numpy(values)).abs()
    scales = matrix.scales.to(torch.float64).abs().repeat_interleave(BLOCK, dim=1)[:, : values.shape[1]]
    # int4: below the lowest level there is none as far as -1, and a scale may be 2^-8 smaller than the largest value.
    # int8: only where the scale is limited, the largest value is a whole step from its code.
    largest = (LEVELS[0] + STEPS + 1) / STEPS if format is INT4 else torch.where(scales == LARGEST_STEP, 1.0, 0.5)
    reach = 1 if format is INT4 else 127
    assert (error <= scales * (largest + reach * 2.0**-8) + TINY).all()


@pytest.fixture
def normal() -> Iterator[Tensor]:
    yield torch.randn((256, 1024), generator=torch.Generator().manual_seed(1)) / 50


def test_relative_errors_of_normal_weights(normal: Tensor) -> None:
    """For NF4 (blocks of 64, fp32 scales) it is 9.2 %, for int8 with fp32 scales 0.62 %."""
    for format, expected in ((INT8, 0.0062), (INT4, 0.0857)):
        error = decoded(quantize(normal, format)).to(torch.float32) - normal
        assert float(error.norm() / normal.norm()) == pytest.approx(expected, rel=0.02)


# ------------------------------------------------------------------------------------------------------------------------
# GPUs.


@pytest.mark.slow
def test_interpreted_kernels_make_the_bits_of_the_cpu() -> None:
    report = run("pytest", "-p", "no:cacheprovider", "tests/kernels/interpreted_quantizer.py", interpret=True)
    assert re.search(r"^\d+ passed", report, re.MULTILINE), report
