"""GPU version of `kernels.quantizer`, in one pass over a matrix; it makes the same bits.

The kernels use the same single fp32 operations. Division is rounded to nearest (`div_rn`; Triton's `/` is not exact), and
no product is followed by a sum that could be fused with it. bf16 numbers are read and written as their bits, so that they
are rounded in the same way on every GPU and in Triton's interpreter. Tensors are contiguous and on one device.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.codec_triton import ROUNDER, from_bf16, to_bf16
from kernels.quantizer import QuantizedMatrix
from kernels.weight_format import BLOCK, LARGEST, LARGEST_CODE, LARGEST_STEP, LEVELS, LIMITS, STEPS, TINY, WeightFormat

BLOCKS = 64
"""Number of blocks per Triton program."""
_BLOCKS = tl.constexpr(BLOCKS)
_BLOCK = tl.constexpr(BLOCK)
_TINY = tl.constexpr(TINY)
_LARGEST = tl.constexpr(LARGEST)
_LARGEST_STEP = tl.constexpr(LARGEST_STEP)
_LARGEST_CODE = tl.constexpr(float(LARGEST_CODE))
_COUNT_LIMITS = tl.constexpr(len(LIMITS))
_INFINITY = tl.constexpr(float("inf"))
_NAN_BITS = tl.constexpr(0x7FC0)


@triton.jit
def _places(count_blocks, blocks_of_row, width, WHOLE: tl.constexpr, WIDTH: tl.constexpr):
    """Return the places of the `WIDTH` entries of each of the program's blocks, and a mask of those that exist.

    width: entries in a row.  WHOLE: all blocks of a row are whole, so that entries are read in vectors.
    """
    blocks = tl.program_id(0).to(tl.int64) * _BLOCKS + tl.arange(0, _BLOCKS)
    lanes = tl.arange(0, WIDTH)[None, :]
    wanted = (blocks < count_blocks)[:, None]
    if WHOLE:
        return blocks[:, None] * WIDTH + lanes, tl.broadcast_to(wanted, (_BLOCKS, WIDTH))
    columns = (blocks % blocks_of_row)[:, None] * WIDTH + lanes
    return (blocks // blocks_of_row)[:, None] * width + columns, wanted & (columns < width)


@triton.jit
def _quantize_kernel(
    values_ptr,
    codes_ptr,
    scales_ptr,
    limits_ptr,
    count_blocks,
    blocks_of_row,
    inputs,
    width,
    BF16: tl.constexpr,
    INT4: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Quantise blocks; a block with a value that is not finite gets a NaN as its scale.

    limits_ptr: limits between the levels of int4.  width: bytes of a row of codes.
    """
    blocks = tl.program_id(0).to(tl.int64) * _BLOCKS + tl.arange(0, _BLOCKS)
    wanted = blocks < count_blocks
    places, inside = _places(count_blocks, blocks_of_row, inputs, WHOLE, _BLOCK)
    values = tl.load(values_ptr + places, mask=inside, other=0)
    values = from_bf16(values.to(tl.int32)) if BF16 else values.to(tl.float32)
    low, high = tl.min(values, axis=1), tl.max(values, axis=1)
    extreme = tl.maximum(high, -low)
    some = extreme >= _TINY
    if INT4:
        bits = to_bf16(tl.minimum(extreme, _LARGEST))
        bits = tl.where(-low > high, bits | 0x8000, bits)
    else:
        step = tl.div_rn(extreme, tl.full(extreme.shape, _LARGEST_CODE, tl.float32))
        bits = to_bf16(tl.minimum(step, _LARGEST_STEP))
    bits = tl.where(some, bits, 0)
    infinite = tl.max(tl.where(tl.abs(values) < _INFINITY, 0, 1), axis=1) > 0
    tl.store(scales_ptr + blocks, tl.where(infinite, _NAN_BITS, bits).to(tl.int16), mask=wanted)
    divisors = tl.where(some, from_bf16(bits), 1.0)[:, None]
    ratios = tl.div_rn(values, tl.broadcast_to(divisors, values.shape))
    if INT4:
        codes = tl.zeros(values.shape, tl.int32)
        for index in tl.static_range(_COUNT_LIMITS):
            codes += (ratios > tl.load(limits_ptr + index)).to(tl.int32)
        first, second = tl.split(tl.reshape(codes, (_BLOCKS, _BLOCK // 2, 2)))
        places, inside = _places(count_blocks, blocks_of_row, width, WHOLE, _BLOCK // 2)
        tl.store(codes_ptr + places, (first | (second << 4)).to(tl.uint8), mask=inside)
    else:
        codes = (ratios + ROUNDER) - ROUNDER
        codes = tl.minimum(tl.maximum(codes, -_LARGEST_CODE), _LARGEST_CODE)
        tl.store(codes_ptr + places, codes.to(tl.int8), mask=inside)


@triton.jit
def _dequantize_kernel(
    codes_ptr,
    scales_ptr,
    levels_ptr,
    out_ptr,
    count_blocks,
    blocks_of_row,
    inputs,
    width,
    BF16: tl.constexpr,
    INT4: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Store the products of levels and scales, as bits of bf16 or as fp32 numbers.  levels_ptr: levels of int4, in fp32."""
    blocks = tl.program_id(0).to(tl.int64) * _BLOCKS + tl.arange(0, _BLOCKS)
    wanted = blocks < count_blocks
    places, inside = _places(count_blocks, blocks_of_row, inputs, WHOLE, _BLOCK)
    scales = from_bf16(tl.load(scales_ptr + blocks, mask=wanted, other=0).to(tl.int32))[:, None]
    if INT4:
        byte_places, existing = _places(count_blocks, blocks_of_row, width, WHOLE, _BLOCK // 2)
        packed = tl.load(codes_ptr + byte_places, mask=existing, other=0).to(tl.int32)
        first, second = tl.load(levels_ptr + (packed & 15)), tl.load(levels_ptr + (packed >> 4))
        bits = tl.interleave(to_bf16(first * scales), to_bf16(second * scales))
    else:
        bits = to_bf16(tl.load(codes_ptr + places, mask=inside, other=0).to(tl.float32) * scales)
    if BF16:
        tl.store(out_ptr + places, bits.to(tl.int16), mask=inside)
    else:
        tl.store(out_ptr + places, from_bf16(bits), mask=inside)


def quantize(values: Tensor, matrix: QuantizedMatrix) -> None:
    """Write codes and scales of `values` into a matrix of int8 or int4; a NaN is the scale of a block that is not finite."""
    limits = _numbers(tuple(limit / (2 * STEPS) for limit in LIMITS), values.device)
    _run(_quantize_kernel, matrix, values.dtype, (_bits(values), matrix.codes, _bits(matrix.scales), limits))


def dequantize(matrix: QuantizedMatrix, out: Tensor) -> None:
    """Write the values of a matrix of int8 or int4 into `out` (out, in), bf16 or fp32."""
    levels = _numbers(tuple(level / STEPS for level in LEVELS), out.device)
    _run(_dequantize_kernel, matrix, out.dtype, (matrix.codes, _bits(matrix.scales), levels, _bits(out)))


def _run(kernel: triton.JITFunction, matrix: QuantizedMatrix, dtype: torch.dtype, tensors: tuple[Tensor, ...]) -> None:
    inputs, (rows, blocks_of_row) = matrix.shape[1], matrix.scales.shape
    count_blocks = rows * blocks_of_row
    kernel[(triton.cdiv(count_blocks, BLOCKS),)](
        *tensors,
        count_blocks,
        blocks_of_row,
        inputs,
        matrix.codes.shape[1],
        BF16=dtype == torch.bfloat16,
        INT4=matrix.format is WeightFormat.INT4,
        WHOLE=inputs % BLOCK == 0,
        enable_fp_fusion=False,
        num_warps=8,
    )


def _bits(tensor: Tensor) -> Tensor:
    """Return a view of bf16 numbers as integers, and other tensors as they are."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


@lru_cache
def _numbers(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).to(device)
