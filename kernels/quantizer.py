"""Quantiser of a frozen matrix of weights: `quantize` makes the codes, `dequantize` writes bf16 values again.

Proofs of rollouts depend on the bits of the weights, so codes and values are pure functions of the published values, the
same on every computer. `kernels.weight_format` defines blocks, levels and values. The codes:

1. A block's extreme is its value of largest magnitude (int4: with its sign, + if both signs have it; int8: without).
2. The scale is the extreme (int4), or the extreme / 127 in fp32 (int8), rounded to nearest even to bf16, and limited to
   `LARGEST` or `LARGEST_STEP`. It is 0 if the extreme is smaller than `TINY`.
3. A value's ratio is value / scale in fp32, rounded to nearest even; value / 1 where the scale is 0.
4. int8: the code is the ratio rounded to a whole number, ties to even, and limited to 127.
   int4: the code is the index of the nearest level; halfway between two levels, the lower one.

All are single elementwise IEEE operations, minima and maxima, which have one result. -0.0 is quantised as 0.0. A
dequantised 0 has the sign of its scale, so it may be -0.0 in int4. Published values of bf16, fp16 and fp32 are read exactly.

This module computes with torch on any device. On a GPU with Triton, `kernels.quantizer_triton` does the same in one pass.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from kernels.weight_format import (
    BLOCK,
    LARGEST,
    LARGEST_CODE,
    LARGEST_STEP,
    LEVELS,
    LIMITS,
    STEPS,
    TINY,
    WeightFormat,
)

CHUNK = 1 << 18
"""Number of values that each thread computes at a time, so that they stay in the caches."""
NOT_FINITE = "a value is not finite"


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix (out, in) of frozen weights in one of the formats, on one device.

    codes: bf16: the values; int8: int8 (out, in); int4: uint8 (out, in / 2 rounded up), the earlier value in the low half of
    a byte, and the code of 0 in the last half byte of a row with an odd number of values.
    scales: bf16 (out, number of blocks in a row); (out, 0) in the format bf16.
    """

    format: WeightFormat
    shape: tuple[int, int]
    codes: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        rows, inputs = self.shape
        width, dtype, blocks = {
            WeightFormat.BF16: (inputs, torch.bfloat16, 0),
            WeightFormat.INT8: (inputs, torch.int8, math.ceil(inputs / BLOCK)),
            WeightFormat.INT4: (math.ceil(inputs / 2), torch.uint8, math.ceil(inputs / BLOCK)),
        }[self.format]
        assert self.codes.shape == (rows, width) and self.codes.dtype == dtype and self.codes.is_contiguous()
        assert self.scales.shape == (rows, blocks) and self.scales.dtype == torch.bfloat16 and self.scales.is_contiguous()

    @classmethod
    def empty(cls, format: WeightFormat, shape: tuple[int, int], device: torch.device) -> Self:
        """Return a matrix with undefined values."""
        (rows, inputs), blocks = shape, math.ceil(shape[1] / BLOCK)
        width, dtype = {
            WeightFormat.BF16: (inputs, torch.bfloat16),
            WeightFormat.INT8: (inputs, torch.int8),
            WeightFormat.INT4: (math.ceil(inputs / 2), torch.uint8),
        }[format]
        codes = torch.empty((rows, width), dtype=dtype, device=device)
        scales = (rows, 0 if format is WeightFormat.BF16 else blocks)
        return cls(format, shape, codes, torch.empty(scales, dtype=torch.bfloat16, device=device))

    def to(self, device: torch.device) -> QuantizedMatrix:
        """Return the matrix on `device`."""
        return dataclasses.replace(self, codes=self.codes.to(device), scales=self.scales.to(device))

    def copy_to(self, other: QuantizedMatrix) -> None:
        """Copy codes and scales into `other`.  A GPU copies from pinned memory while the host goes on."""
        assert (other.format, other.shape) == (self.format, self.shape)
        other.codes.copy_(self.codes, non_blocking=True)
        other.scales.copy_(self.scales, non_blocking=True)

    def weights(self, scratch: Tensor) -> Tensor:
        """Return the values (out, in) in the type of `scratch`, valid until the scratch is used again.

        scratch: contiguous vector of at least out x in bf16 or fp32 numbers, which the matrices of a model share. It is not
        used if the matrix holds its values in this type.
        """
        if self.codes.dtype == scratch.dtype:
            return self.codes
        out = scratch[: math.prod(self.shape)].view(self.shape)
        dequantize(self, out)
        return out


def quantize(values: Tensor, format: WeightFormat) -> QuantizedMatrix:
    """Quantise a matrix (out, in) of bf16, fp16 or fp32 numbers, contiguous, on its device.

    In the format bf16, published bf16 values are kept without a copy.  Raises ValueError if a value is not finite (in the
    format bf16 also if it is too large for bf16), and for another shape or type.
    """
    if values.dim() != 2 or values.numel() == 0:
        raise ValueError(f"a tensor of the shape {tuple(values.shape)} is not a matrix")
    if values.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"weights of the type {str(values.dtype).removeprefix('torch.')} cannot be quantised")
    assert values.is_contiguous()
    rows, inputs = values.shape
    if format is WeightFormat.BF16:
        kept = values.to(torch.bfloat16)
        if not all(kept[span].isfinite().all() for span in _spans(rows, inputs)):
            raise ValueError(f"{NOT_FINITE}, or too large for bf16")
        return QuantizedMatrix(format, (rows, inputs), kept, kept.new_empty((rows, 0)))
    int4 = format is WeightFormat.INT4
    matrix = QuantizedMatrix.empty(format, (rows, inputs), values.device)
    if _has_triton(values.device):
        from kernels import quantizer_triton

        quantizer_triton.quantize(values, matrix)
    else:
        for span in _spans(rows, inputs):
            _quantize_rows(values[span], int4, matrix.codes[span], matrix.scales[span])
    if not matrix.scales.isfinite().all():
        raise ValueError(NOT_FINITE)
    return matrix


def dequantize(matrix: QuantizedMatrix, out: Tensor) -> None:
    """Write the values of `matrix` into `out`, contiguous bf16 or fp32 numbers (out, in) on the same device.

    fp32 numbers have the same values as bf16 numbers.
    """
    assert out.shape == matrix.shape and out.dtype in (torch.bfloat16, torch.float32) and out.is_contiguous()
    assert out.device == matrix.codes.device
    if matrix.format is WeightFormat.BF16:
        out.copy_(matrix.codes)
    elif _has_triton(out.device):
        from kernels import quantizer_triton

        quantizer_triton.dequantize(matrix, out)
    else:
        _dequantize_with_torch(matrix, out)


def _dequantize_with_torch(matrix: QuantizedMatrix, out: Tensor) -> None:
    """Write the values of a matrix of int8 or int4 with operations of torch, on any device."""
    rows, inputs = matrix.shape
    width = 2 * math.ceil(inputs / 2)
    spans = list(_spans(rows, inputs))
    room = torch.empty((spans[0].stop, width), dtype=torch.bfloat16, device=out.device)
    for span in spans:
        codes = matrix.codes[span]
        levels = room[: len(codes)]
        if matrix.format is WeightFormat.INT8:
            levels[:, :inputs].copy_(codes)
        else:  # torch divides a gather of rows between threads, and an index_select not
            pairs = _pairs(out.device).expand(len(codes), -1)
            torch.gather(pairs, 1, codes.to(torch.int64), out=levels.view(torch.int32))
        _multiply(levels[:, :inputs], matrix.scales[span], out[span])


def _multiply(levels: Tensor, scales: Tensor, out: Tensor) -> None:
    """Write the products of levels and their blocks' scales, each rounded once to bf16."""
    blocks, rest = divmod(levels.shape[1], BLOCK)
    if blocks:
        whole, columns = (len(levels), blocks, BLOCK), slice(blocks * BLOCK)
        torch.mul(levels[:, columns].view(whole), scales[:, :blocks, None], out=out[:, columns].view(whole))
    if rest:
        torch.mul(levels[:, -rest:], scales[:, -1:], out=out[:, -rest:])


def _quantize_rows(values: Tensor, int4: bool, codes: Tensor, scales: Tensor) -> None:
    """Quantise some rows; a block with a value that is not finite gets a NaN as its scale."""
    rows, inputs = values.shape
    blocks = scales.shape[1]
    padded = torch.zeros((rows, blocks * BLOCK), dtype=torch.float32, device=values.device)
    padded[:, :inputs].copy_(values)
    ratios = padded.view(rows, blocks, BLOCK)
    low, high = ratios.amin(2), ratios.amax(2)  # aminmax is six times as slow
    extreme = torch.maximum(high, -low)
    if int4:
        scale = torch.where(-low > high, -extreme, extreme).clamp_(-LARGEST, LARGEST)
    else:
        # By a tensor, since torch multiplies with the reciprocal of a number on a GPU.
        scale = (extreme / torch.full_like(extreme, LARGEST_CODE)).clamp_(max=LARGEST_STEP)
    scale.masked_fill_(extreme < TINY, 0.0)
    scale.masked_fill_(~extreme.isfinite(), math.nan)
    scales.copy_(scale)
    ratios.div_(scales.to(torch.float32).masked_fill_(scales == 0, 1.0)[:, :, None])
    if int4:
        pairs = _codes_of_ratios(padded).view(torch.int16)
        codes.copy_((pairs | (pairs >> 4))[:, : codes.shape[1]])
    else:
        codes.copy_(padded.round_().clamp_(-LARGEST_CODE, LARGEST_CODE)[:, :inputs])


def _codes_of_ratios(ratios: Tensor) -> Tensor:
    """Return the codes of int4 as bytes; replace the ratios.

    The limits between levels are multiples of 1 / (2 * STEPS), so the ratio may be rounded up to such a multiple first.
    """
    ratios.mul_(2 * STEPS).ceil_().clamp_(-2 * STEPS, 2 * STEPS).nan_to_num_().add_(2 * STEPS)
    return torch.index_select(_codes(ratios.device), 0, ratios.view(-1).to(torch.int32)).view(ratios.shape)


def _spans(rows: int, inputs: int) -> Iterator[slice]:
    """Yield slices of rows with about `CHUNK` values for each thread."""
    step = max(1, CHUNK * torch.get_num_threads() // inputs)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


@lru_cache
def _codes(device: torch.device) -> Tensor:
    """Return the code of each multiple of 1 / (2 * STEPS) from -1 to 1."""
    multiples = torch.arange(-2 * STEPS, 2 * STEPS + 1)
    return torch.bucketize(multiples, torch.tensor(LIMITS)).to(torch.uint8).to(device)


@lru_cache
def _pairs(device: torch.device) -> Tensor:
    """Return the two bf16 levels of each byte, in the bits of an int32."""
    levels = (torch.tensor(LEVELS, dtype=torch.float32) / STEPS).to(torch.bfloat16)
    each = torch.arange(256)
    return torch.stack((levels[each & 15], levels[each >> 4]), dim=1).view(torch.int32).view(-1).to(device)


@lru_cache
def _has_triton(device: torch.device) -> bool:
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None
