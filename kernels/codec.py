"""Int8 block codec on the CPU.

`count` fp32 values become ceil(count / 256) fp32 little-endian scales followed by `count` int8 codes. A block's scale is
absmax / 127; a code is the value times (127 / absmax), rounded to the nearest, ties to even. This takes 8.125 bits per
parameter. Both divisions and the product are in fp32, each rounded once. The run's signed manifest fixes the codec, block
and count, so the bytes need no header, in which a peer could lie.

This implementation is numpy in cache-sized pieces, with elementwise IEEE fp32 in a fixed order. So every computer, and the
Triton kernel in `kernels.codec_triton`, gives the same bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 256
"""Values that share a scale."""
LEVELS = 127
PIECE = 1 << 16
"""Number of values processed at a time: 256 KiB of fp32, so that the scratch stays in the second-level cache."""
TINY = np.float32(2.0**-100)
"""Minimum absmax of a block that is not encoded as zeros; below it, 127 / absmax could overflow and products be denormal."""
LARGEST_SCALE = np.float32(2.0**120)
"""Largest scale. Values beyond 127 times this scale (1.7e38) are clamped, so that a mean of decoded values cannot
overflow."""
_WITHOUT_SIGN = np.int32(0x7FFFFFFF)
_INFINITY = 0x7F800000
"""Bits of infinity as an integer; the bits of a NaN are larger."""

Floats = npt.NDArray[np.float32]


def blocks_of(count: int) -> int:
    """Return the number of blocks that `count` values fill; the last block may be partly filled."""
    return -(-count // BLOCK)


def encoded_bytes(count: int) -> int:
    """Return the size of `count` encoded values in bytes."""
    return count + 4 * blocks_of(count)


def parts(data: Any, count: int) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Return views of the scales (fp32, ceil(count / 256)) and the codes (int8, count) inside encoded bytes."""
    raw = np.frombuffer(data, dtype=np.uint8)
    assert raw.size == encoded_bytes(count), f"{raw.size} bytes do not encode {count} values"
    split = 4 * blocks_of(count)
    return raw[:split].view("<f4"), raw[split:].view(np.int8)


def encode(values: Floats, out: Any) -> None:
    """Encode `values` (fp32, one dimension) into `out` (encoded_bytes(len(values)) writable bytes).

    Raises ValueError if a value is not finite, because such a value has no code.  The contents of `out` are then undefined.
    """
    assert values.ndim == 1 and values.dtype == np.float32
    scales, codes = parts(out, values.size)
    scratch = np.empty(min(PIECE, values.size), np.float32)
    for start in range(0, values.size, PIECE):
        piece = values[start : start + PIECE]
        rows = blocks_of(piece.size)
        encode_piece(piece, scratch, scales[start // BLOCK :][:rows], codes[start : start + piece.size])


def encode_piece(values: Floats, scratch: Floats, scales: Floats, codes: npt.NDArray[np.int8]) -> None:
    """Encode some blocks, the last of which may be short; `scratch` must have room for as many values."""
    whole = values.size - values.size % BLOCK
    if whole:
        rows = whole // BLOCK
        _encode_rows(
            values[:whole].reshape(-1, BLOCK),
            scratch[:whole].reshape(-1, BLOCK),
            scales[:rows],
            codes[:whole].reshape(-1, BLOCK),
        )
    if whole < values.size:
        _encode_rows(
            values[whole:].reshape(1, -1),
            scratch[: values.size - whole].reshape(1, -1),
            scales[-1:],
            codes[whole:].reshape(1, -1),
        )


def _encode_rows(rows: Floats, scratch: Floats, scales: Floats, codes: npt.NDArray[np.int8]) -> None:
    bits = scratch.view(np.int32)  # without the sign, floats and their bits have the same order
    np.bitwise_and(rows.view(np.int32), _WITHOUT_SIGN, out=bits)
    top = bits.max(axis=1)
    if int(top.max()) >= _INFINITY:
        raise ValueError("a value is not finite")
    absmax = top.view(np.float32)
    absmax[absmax < TINY] = 0
    np.divide(absmax, np.float32(LEVELS), out=scales)
    np.minimum(scales, LARGEST_SCALE, out=scales)
    inverse = np.zeros_like(absmax)
    np.divide(np.float32(LEVELS), absmax, out=inverse, where=absmax > 0)
    np.multiply(rows, inverse[:, None], out=scratch)
    np.rint(scratch, out=scratch)
    codes[...] = scratch


def decode(data: Any, count: int, out: Floats) -> None:
    """Decode `data` into `out` (fp32, count)."""
    scales, codes = parts(data, count)
    whole = count - count % BLOCK
    np.multiply(codes[:whole].reshape(-1, BLOCK), scales[: whole // BLOCK, None], out=out[:whole].reshape(-1, BLOCK))
    if whole < count:
        np.multiply(codes[whole:], scales[-1], out=out[whole:])


def is_sane(data: Any, count: int) -> bool:
    """Return True if `encode` could have made these bytes from `count` values.

    Such bytes have the right size, every scale is finite, not negative and at most `LARGEST_SCALE`, and no code is -128.
    """
    if memoryview(data).nbytes != encoded_bytes(count):
        return False
    if count == 0:
        return True
    scales, codes = parts(data, count)
    in_range = (scales >= 0) & (scales <= LARGEST_SCALE)  # also false for NaN
    return bool(in_range.all()) and int(codes.min()) >= -LEVELS


def norm(values: Floats) -> float:
    """Return the L2 norm, squared and summed in fp64, piece by piece.

    For display only: the last bits may differ between computers.
    """
    scratch = np.empty(min(PIECE, values.size), np.float64)
    total = 0.0
    for start in range(0, values.size, PIECE):
        piece = scratch[: min(PIECE, values.size - start)]
        np.copyto(piece, values[start : start + PIECE])
        np.multiply(piece, piece, out=piece)
        total += float(piece.sum())
    return math.sqrt(total)
