"""GPU version of the int8 codec, which makes the bytes of `kernels.codec` in one pass over the memory.

`encode_difference` fuses the difference, its quantisation and the sum of squares for the norm.  `weighted_mean` fuses
dequantisation, weighted sum and quantisation. Both give the same bytes as the CPU, because they do the same fp32 operations
in the same order. Divisions are rounded to nearest (`div_rn`; Triton's `/` is not exact), and multiply-add is not fused
(`enable_fp_fusion=False`). Adding and subtracting 1.5 * 2^23 rounds ties to even without a library function, so that
Triton's interpreter can also run the kernels.

Tensors are contiguous and on one device; encoded bytes are uint8 tensors in the layout of `kernels.codec`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aggregate import shares_of
from kernels.codec import BLOCK, LARGEST_SCALE, TINY, blocks_of, encoded_bytes

ROWS = 16
"""Number of blocks per Triton program."""
_BLOCK = tl.constexpr(BLOCK)
_TINY = tl.constexpr(float(TINY))
_LARGEST_SCALE = tl.constexpr(float(LARGEST_SCALE))
_ROUNDER = tl.constexpr(12582912.0)
"""Constant 1.5 * 2^23. Near it, fp32 numbers have steps of 1, so adding it rounds to an integer, with ties to even."""


@triton.jit
def _quantise(values, rows, count_rows, columns, inside, scales_ptr, codes_ptr):
    """Store the scales and codes of `values` (ROWS, BLOCK); lanes that are not `inside` hold 0."""
    absmax = tl.max(tl.abs(values), axis=1)
    absmax = tl.where(absmax < _TINY, 0.0, absmax)
    scales = tl.minimum(tl.div_rn(absmax, tl.full(absmax.shape, 127.0, tl.float32)), _LARGEST_SCALE)
    some = absmax > 0.0
    inverse = tl.where(some, tl.div_rn(tl.full(absmax.shape, 127.0, tl.float32), tl.where(some, absmax, 1.0)), 0.0)
    codes = (values * inverse[:, None] + _ROUNDER) - _ROUNDER
    tl.store(scales_ptr + rows, scales, mask=rows < count_rows)
    tl.store(codes_ptr + rows[:, None] * _BLOCK + columns[None, :], codes.to(tl.int8), mask=inside)


@triton.jit(do_not_specialize=["count", "count_rows"])
def _encode_kernel(base_ptr, values_ptr, scales_ptr, codes_ptr, squares_ptr, count, count_rows, ROWS: tl.constexpr):
    """Encode base - values into scales and codes, and the blocks' sums of squares in fp64 (not finite if a value is not)."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, _BLOCK)
    places = rows[:, None] * _BLOCK + columns[None, :]
    inside = places < count
    difference = tl.load(base_ptr + places, mask=inside, other=0.0) - tl.load(values_ptr + places, mask=inside, other=0.0)
    wide = difference.to(tl.float64)
    tl.store(squares_ptr + rows, tl.sum(wide * wide, axis=1), mask=rows < count_rows)
    _quantise(difference, rows, count_rows, columns, inside, scales_ptr, codes_ptr)


@triton.jit(do_not_specialize=["count", "count_rows"])
def _mean_kernel(
    addresses_ptr, shares_ptr, scales_ptr, codes_ptr, count, count_rows, MEMBERS: tl.constexpr, ROWS: tl.constexpr
):
    """Encode the sum of code * (scale * share) over the members, in order; `addresses_ptr`: their bytes' addresses."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, _BLOCK)
    places = rows[:, None] * _BLOCK + columns[None, :]
    inside = places < count
    mean = tl.zeros((ROWS, _BLOCK), tl.float32)
    for member in range(MEMBERS):
        address = tl.load(addresses_ptr + member)
        share = tl.load(shares_ptr + member)
        scales = tl.load(address.to(tl.pointer_type(tl.float32)) + rows, mask=rows < count_rows, other=0.0) * share
        codes_of = address.to(tl.pointer_type(tl.int8)) + count_rows.to(tl.int64) * 4
        codes = tl.load(codes_of + places, mask=inside, other=0).to(tl.float32)
        mean = mean + codes * scales[:, None]
    _quantise(mean, rows, count_rows, columns, inside, scales_ptr, codes_ptr)


def encode_difference(base: Tensor, values: Tensor, out: Tensor) -> float:
    """Encode `base` - `values` (fp32, same size) into `out`; return the L2 norm of the difference.

    Raises ValueError if a difference is not finite; the contents of `out` are then undefined.
    """
    count = values.numel()
    assert base.shape == values.shape and base.dtype == values.dtype == torch.float32
    assert base.is_contiguous() and values.is_contiguous()
    scales, codes = _parts(out, count)
    squares = torch.empty(blocks_of(count), dtype=torch.float64, device=values.device)
    _encode_kernel[(triton.cdiv(blocks_of(count), ROWS),)](
        base, values, scales, codes, squares, count, blocks_of(count), ROWS=ROWS, enable_fp_fusion=False
    )
    norm = math.sqrt(float(squares.sum()))
    if not math.isfinite(norm):
        raise ValueError("a value is not finite")
    return norm


def weighted_mean(contributions: Sequence[Tensor], weights: Sequence[int], count: int, out: Tensor) -> None:
    """Average sane codec bytes on the GPU, as `kernels.aggregate.weighted_mean` does on the CPU."""
    assert len(contributions) == len(weights) > 0 and all(weight > 0 for weight in weights)
    for contribution in contributions:
        _parts(contribution, count)
    device = out.device
    addresses = torch.tensor([part.data_ptr() for part in contributions], dtype=torch.int64, device=device)
    shares = torch.tensor(shares_of(weights), dtype=torch.float32, device=device)
    scales, codes = _parts(out, count)
    _mean_kernel[(triton.cdiv(blocks_of(count), ROWS),)](
        addresses,
        shares,
        scales,
        codes,
        count,
        blocks_of(count),
        MEMBERS=len(contributions),
        ROWS=ROWS,
        enable_fp_fusion=False,
    )


def _parts(data: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return views of the scales and the codes inside encoded bytes."""
    assert data.dtype == torch.uint8 and data.is_contiguous() and data.numel() == encoded_bytes(count)
    assert data.data_ptr() % 4 == 0, "encoded bytes on the GPU are aligned to their scales"
    split = 4 * blocks_of(count)
    return data[:split].view(torch.float32), data[split:].view(torch.int8)
