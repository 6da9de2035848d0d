"""Patches between two versions of the weights: lossless, and small where few values change.

A step of reinforcement learning leaves about 99 of 100 bf16 weights as they were.  A patch names the places of the others as
gaps and gives their new values, not differences, so that what comes out is the new version to the bit.  Both versions are
files of the same size, read as 16-bit values; a patch goes through them block by block, and needs memory for one.

Form: `MAGIC`, the number of values (8 bytes); then for each block of `BLOCK` values the sizes of its four streams (4 bytes
each, little-endian like everything here) and the streams, each a zstd frame:

* gaps: how many values are left as they were before each changed one, a byte each; 255 where there are 255 or more,
* long gaps: for each of those the rest (4 bytes each),
* the low bytes of the new values, and their high bytes: the latter hold sign and exponent, which compress well.

A patch comes from a stranger: whatever is in it, applying it takes bounded memory and ends, or raises `Malformed`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import zstandard

from protocol.wire.canonical import Malformed

MAGIC = b"manyhands patch 1"
BLOCK = 1 << 22
"""Values of 16 bits: 8 MiB of each version."""
LEVEL = 3
ESCAPE = 255
_HEAD = struct.Struct(f"<{len(MAGIC)}sQ")
_SIZES = struct.Struct("<4I")

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]


def make_patch(old: memoryview, new: memoryview) -> Iterator[bytes]:
    """The pieces of the patch that leads from `old` to `new`, one for each block.  Both have one size, even in bytes."""
    before, after = _values(old), _values(new)
    assert len(before) == len(after), "versions of one size"
    yield _HEAD.pack(MAGIC, len(after))
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    for start in range(0, len(after), BLOCK):
        streams = _streams(before[start : start + BLOCK], after[start : start + BLOCK])
        frames = [compressor.compress(stream) for stream in streams]
        yield _SIZES.pack(*map(len, frames)) + b"".join(frames)


def _streams(before: U16, after: U16) -> list[bytes]:
    places = np.flatnonzero(before != after)
    gaps = np.diff(places, prepend=-1) - 1
    values = after[places]
    return [
        np.minimum(gaps, ESCAPE).astype(np.uint8).tobytes(),
        (gaps[gaps >= ESCAPE] - ESCAPE).astype("<u4").tobytes(),
        (values & 0xFF).astype(np.uint8).tobytes(),
        (values >> 8).astype(np.uint8).tobytes(),
    ]


def apply_patch(old: memoryview, patch: memoryview, into: memoryview) -> None:
    """Write the new version into `into`, which has the size of `old` and may be the same memory.  Raises `Malformed`."""
    before, after = _values(old), _values(into)
    assert len(before) == len(after)
    if len(patch) < _HEAD.size or _HEAD.unpack_from(patch) != (MAGIC, len(before)):
        raise Malformed("a patch for weights of another size")
    decompressor, at = zstandard.ZstdDecompressor(), _HEAD.size
    for start in range(0, len(before), BLOCK):
        count = min(BLOCK, len(before) - start)
        if len(patch) < at + _SIZES.size:
            raise Malformed("a patch that ends too soon")
        sizes = _SIZES.unpack_from(patch, at)
        at += _SIZES.size
        frames = []
        for size in sizes:
            frames.append(patch[at : at + size])
            at += size
        block = after[start : start + count]
        if into is not old:
            block[:] = before[start : start + count]
        _change(block, [_expand(decompressor, frame, 4 * count) for frame in frames])
    if at != len(patch):
        raise Malformed("a patch that does not end")


def _expand(decompressor: zstandard.ZstdDecompressor, frame: memoryview, most: int) -> bytes:
    """The content of a zstd frame that says to hold at most `most` bytes."""
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size > most:
            raise Malformed("a patch with more values than the weights have")
        return decompressor.decompress(frame, max_output_size=size) if size else b""
    except zstandard.ZstdError as error:
        raise Malformed(f"a patch with a damaged stream: {error}") from error


def _change(block: U16, streams: list[bytes]) -> None:
    short, rest, low, high = streams
    gaps = np.frombuffer(short, np.uint8).astype(np.int64)
    escaped = gaps == ESCAPE
    if not len(short) == len(low) == len(high) <= len(block) or len(rest) != 4 * int(escaped.sum()):
        raise Malformed("a patch whose streams do not fit together")
    gaps[escaped] += np.frombuffer(rest, "<u4")
    places = np.cumsum(gaps + 1) - 1
    if len(places) and places[-1] >= len(block):
        raise Malformed("a patch that reaches beyond the weights")
    block[places] = np.frombuffer(low, np.uint8) | np.frombuffer(high, np.uint8).astype(np.uint16) << 8


def _values(data: memoryview) -> U16:
    return np.frombuffer(data, "<u2")
