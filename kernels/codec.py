"""The int8 block codec on the CPU.

`count` fp32 values become ceil(count / 256) fp32 little-endian scales followed by `count` int8 codes.  A block's scale is
absmax / 127; a code is the value times (127 / absmax), rounded to the nearest even integer.  8.125 bits a parameter.
Which codec and which count apply is fixed by the run's manifest, so the bytes carry no header.

numpy in cache-sized pieces: elementwise IEEE fp32 in a fixed order, so that every computer, and the Triton kernel in
`kernels.codec_triton`, gives the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 256
"""Values that share a scale."""
LEVELS = 127
PIECE = 1 << 16
"""Values worked on at a time: 256 KiB of fp32, so that the scratch stays in the second-level cache."""
TINY = np.float32(1e-36)
"""A block whose absmax is below is encoded as zeros: 127 / absmax would overflow."""

Bytes = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def blocks_of(count: int) -> int:
    return -(-count // BLOCK)


def encoded_bytes(count: int) -> int:
    """Bytes of `count` encoded values."""
    return count + 4 * blocks_of(count)


def parts(data: Any, count: int) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Views of the scales (fp32, ceil(count / 256)) and the codes (int8, count) inside encoded bytes."""
    raw = np.frombuffer(data, dtype=np.uint8)
    assert raw.size == encoded_bytes(count), f"{raw.size} bytes do not encode {count} values"
    split = 4 * blocks_of(count)
    return raw[:split].view("<f4"), raw[split:].view(np.int8)


def encode(values: Floats, out: Any) -> None:
    """Encode `values` (fp32, one dimension) into `out` (encoded_bytes(len(values)) writable bytes).

    Raises ValueError when a value is not finite: there is no code for it.
    """
    scales, codes = parts(out, values.size)
    scratch = np.empty(PIECE, np.float32)
    for start in range(0, values.size, PIECE):
        piece = values[start : start + PIECE]
        whole = piece.size - piece.size % BLOCK
        first = start // BLOCK
        if whole:
            rows = whole // BLOCK
            _encode_rows(piece[:whole].reshape(-1, BLOCK), scratch[:whole].reshape(-1, BLOCK),
                         scales[first : first + rows], codes[start : start + whole].reshape(-1, BLOCK))
        if whole < piece.size:
            rest = piece.size - whole
            _encode_rows(piece[whole:].reshape(1, -1), scratch[:rest].reshape(1, -1),
                         scales[first + whole // BLOCK :][:1], codes[start + whole : start + whole + rest].reshape(1, -1))


def _encode_rows(rows: Floats, scratch: Floats, scales: Floats, codes: npt.NDArray[np.int8]) -> None:
    np.abs(rows, out=scratch)
    absmax = scratch.max(axis=1)
    if not np.isfinite(absmax).all():
        raise ValueError("a value is not finite")
    absmax[absmax < TINY] = 0
    np.divide(absmax, np.float32(LEVELS), out=scales)
    inverse = np.zeros_like(absmax)
    np.divide(np.float32(LEVELS), absmax, out=inverse, where=absmax > 0)
    np.multiply(rows, inverse[:, None], out=scratch)
    np.rint(scratch, out=scratch)
    codes[...] = scratch


def decode(data: Any, count: int, out: Floats) -> None:
    """Decode into `out` (fp32, count)."""
    scales, codes = parts(data, count)
    whole = count - count % BLOCK
    np.multiply(codes[:whole].reshape(-1, BLOCK), scales[: whole // BLOCK, None], out=out[:whole].reshape(-1, BLOCK))
    if whole < count:
        np.multiply(codes[whole:], scales[-1], out=out[whole:])


def is_sane(data: Any, count: int) -> bool:
    """Whether bytes from a peer encode `count` finite values: right size, scales finite and not negative, no code -128."""
    if memoryview(data).nbytes != encoded_bytes(count):
        return False
    scales, codes = parts(data, count)
    top = np.float32(np.finfo(np.float32).max / LEVELS)
    return bool(np.isfinite(scales).all() and (scales >= 0).all() and (scales <= top).all() and codes.min() >= -LEVELS)


def norm(values: Floats) -> float:
    """L2 norm, summed in fp64 piece by piece."""
    total = 0.0
    for start in range(0, values.size, PIECE):
        piece = values[start : start + PIECE].astype(np.float64)
        total += float(np.dot(piece, piece))
    return float(total**0.5)
