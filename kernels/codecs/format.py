"""Formats of encoded chunks: the header, the division into blocks, and the arithmetic that all formats share.

A chunk is encoded alone. It begins with a header of 16 bytes, little endian:

    magic         4 bytes, with the version of all formats
    format        2 bytes, the number of the format
    parameter     2 bytes, the k of top-k; 0 in other formats
    squares       fp32: in a result, the sum of squares of the decoded result; 0 in a contribution
    mean_squares  fp32: in a result, the weighted mean of the members' sums of squares; 0 in a contribution

Then follow the sections of the format, for example all scales and then all codes. In each section every block of values has
the same number of bytes; a short last block may have fewer. So the size is a pure function of the number of values, and any
range of whole blocks can be encoded or decoded alone.

The bytes are the same on every computer because encoders use only elementwise IEEE fp32 operations in a fixed order, maxima,
and sums of whole numbers that are exact in any order. Values are processed in pieces that fit into the cache.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

PIECE = 1 << 16
"""Number of values processed at a time, a multiple of every block: 256 KiB of fp32, so that the scratch stays in the
second-level cache."""
TINY = np.float32(2.0**-100)
"""Minimum absmax of a block that is not encoded as zeros; below it, reciprocals could overflow and products be denormal."""
LARGEST = np.float32(127 * 2.0**120)
"""Limit on decoded values (1.7e38), to which larger ones are clamped, so that neither a mean nor a difference overflows."""
ONE = np.float32(1)
_WITHOUT_SIGN = np.int32(0x7FFFFFFF)
_INFINITY = 0x7F800000
"""Bits of infinity as an integer; the bits of a NaN are larger."""
CHECKED = 4 * PIECE
"""Number of values checked at a time; a check needs less scratch than encoding."""


# ------------------------------------------------------------------------------------------------------------------------
# The header.


MAGIC = b"MHC\x01"
_HEADER = struct.Struct("<4sHHff")
_SQUARES = struct.Struct("<ff")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 16
_LARGEST_SQUARES = float(np.finfo(np.float32).max)


class Squares(NamedTuple):
    """Sums of squares in the header of a result.

    result: sum of squares of the decoded result.  members: weighted mean of the sums of the members' contributions.
    """

    result: float
    members: float

    @property
    def agreement(self) -> Fraction:
        """Agreement of the members, the first over the second, from 0 to 1; it is 1 if either is 0."""
        if not self.result or not self.members:
            return Fraction(1)
        return min(Fraction(1), Fraction(self.result) / Fraction(self.members))


def squares_in(data: Any) -> Squares:
    """Return the sums of squares in the header of a chunk, which has at least a header."""
    return Squares(*_SQUARES.unpack_from(data, HEADER_BYTES - _SQUARES.size))


def write_squares(data: Any, squares: Squares) -> None:
    """Write sums of squares into the header of a chunk, rounded to fp32, and at most the largest fp32 number."""
    each = (float(np.float32(min(value, _LARGEST_SQUARES))) for value in squares)
    _SQUARES.pack_into(data, HEADER_BYTES - _SQUARES.size, *each)


# ------------------------------------------------------------------------------------------------------------------------


class Format(ABC):
    """Format of encoded chunks.

    number, parameter: numbers in the header.  block: number of values encoded together.  Subclasses see the values of some
    blocks as rows (blocks, values), and each of their sections as rows of bytes (blocks, width).
    """

    number: int
    parameter: int = 0
    block: int

    @abstractmethod
    def widths(self, values: int) -> tuple[int, ...]:
        """Return the bytes that a block of so many values, at most `block`, has in each section."""

    @abstractmethod
    def encode_rows(self, rows: Floats, sections: Sequence[Bytes]) -> None:
        """Encode blocks of equal length.  Raises ValueError if a value is not finite."""

    @abstractmethod
    def decode_rows(self, sections: Sequence[Bytes], out: Floats, factor: np.float32) -> None:
        """Decode blocks of equal length, with `factor` multiplied into their scales."""

    @abstractmethod
    def rows_are_sane(self, sections: Sequence[Bytes], values: int) -> bool:
        """Return True if these bytes keep to the format, as all that `encode_rows` makes of blocks of so many values do."""

    @abstractmethod
    def squares_of_rows(self, sections: Sequence[Bytes], values: int) -> Doubles:
        """Return the sum of squares of each block, the same number on every computer."""

    def encode_and_square_rows(self, rows: Floats, sections: Sequence[Bytes]) -> Doubles:
        """Encode as `encode_rows` does, and return the sums of squares of the decoded blocks."""
        self.encode_rows(rows, sections)
        return self.squares_of_rows(sections, rows.shape[1])

    def decode_and_square_rows(self, sections: Sequence[Bytes], out: Floats, factor: np.float32) -> Doubles:
        """Decode as `decode_rows` does, and return the sums of squares of the blocks, without `factor`."""
        self.decode_rows(sections, out, factor)
        return self.squares_of_rows(sections, out.shape[1])

    def encoded_bytes(self, count: int) -> int:
        """Return the size of `count` encoded values in bytes."""
        return HEADER_BYTES + sum(self.section_bytes(count))

    def encode(self, values: Floats, out: Any) -> None:
        """Encode `values` (fp32, one dimension) into `out` (encoded_bytes(len(values)) writable bytes).

        Raises ValueError if a value is not finite, because such a value has no code.  The contents of `out` are then
        undefined.
        """
        self.write_header(out)
        self.encode_range(values, out, values.size, 0)

    def zeros(self, count: int) -> bytearray:
        """Return `count` encoded zeros."""
        data = bytearray(self.encoded_bytes(count))
        self.encode(np.zeros(count, np.float32), data)
        return data

    def write_header(self, out: Any) -> None:
        """Write the header of a contribution."""
        _HEADER.pack_into(out, 0, MAGIC, self.number, self.parameter, 0.0, 0.0)

    def encode_range(self, values: Floats, out: Any, count: int, start: int) -> None:
        """Encode `values` as a range of a chunk of `count` values, from `start` on; the header stays as it is.

        The range begins with a block, and ends with a block or the chunk.
        """
        assert values.ndim == 1 and values.dtype == np.float32
        for at, length, rows, sections in self._rows(out, count, start, values.size):
            self.encode_rows(values[at - start : at - start + rows * length].reshape(rows, length), sections)

    def encode_and_square(self, values: Floats, out: Any, count: int, start: int) -> Doubles:
        """Encode as `encode_range` does, and return the sums of squares of the decoded blocks."""
        assert values.ndim == 1 and values.dtype == np.float32
        return np.concatenate(
            [
                self.encode_and_square_rows(values[at - start : at - start + rows * length].reshape(rows, length), sections)
                for at, length, rows, sections in self._rows(out, count, start, values.size)
            ]
        )

    def decode(self, data: Any, count: int, out: Floats, start: int = 0, factor: np.float32 = ONE) -> None:
        """Decode the values from `start` on into `out`, multiplied by `factor`.

        The range begins with a block, and ends with a block or the chunk.
        """
        for at, length, rows, sections in self._rows(data, count, start, out.size):
            self.decode_rows(sections, out[at - start : at - start + rows * length].reshape(rows, length), factor)

    def decode_and_square(self, data: Any, count: int, out: Floats, start: int = 0, factor: np.float32 = ONE) -> Doubles:
        """Decode as `decode` does, and return the sums of squares of the blocks, without `factor`."""
        return np.concatenate(
            [
                self.decode_and_square_rows(
                    sections, out[at - start : at - start + rows * length].reshape(rows, length), factor
                )
                for at, length, rows, sections in self._rows(data, count, start, out.size)
            ]
        )

    def is_sane(self, data: Any, count: int, *, is_result: bool = False) -> bool:
        """Return True if these bytes keep to the format, as all that `encode` makes of `count` values do."""
        if memoryview(data).nbytes != self.encoded_bytes(count):
            return False
        magic, number, parameter, *squares = _HEADER.unpack_from(data)
        if (magic, number, parameter) != (MAGIC, self.number, self.parameter):
            return False
        if not all(0 <= value < math.inf and math.copysign(1, value) > 0 for value in squares):
            return False
        if any(squares) and not is_result:
            return False
        parts = self._rows(data, count, 0, count, CHECKED)
        return all(self.rows_are_sane(sections, length) for _, length, _, sections in parts)

    def sum_of_squares(self, data: Any, count: int) -> float:
        """Return the sum of squares of the decoded values: the sums of the blocks, added by halving."""
        parts = self._rows(data, count, 0, count)
        return total_of([self.squares_of_rows(sections, length) for _, length, _, sections in parts])

    def place(self, encoded: Any, size: int, out: Any, count: int, start: int) -> None:
        """Copy the blocks of an encoded chunk of `size` values into a chunk of `count` values, from `start` on."""
        own, target = self.sections(encoded, size), self.sections(out, count)
        for width, part, section in zip(self.widths(self.block), own, target, strict=True):
            first = start // self.block * width
            section[first : first + part.size] = part

    def sections(self, data: Any, count: int) -> list[Bytes]:
        """Return views of the sections of encoded bytes."""
        raw, found, at = np.frombuffer(data, np.uint8), [], HEADER_BYTES
        assert raw.size == self.encoded_bytes(count), f"{raw.size} bytes do not encode {count} values"
        for size in self.section_bytes(count):
            found.append(raw[at : at + size])
            at += size
        return found

    def section_bytes(self, count: int) -> list[int]:
        """Return the size of each section of `count` encoded values in bytes."""
        whole, rest = divmod(count, self.block)
        sizes = [whole * width for width in self.widths(self.block)]
        return [size + width for size, width in zip(sizes, self.widths(rest), strict=True)] if rest else sizes

    def _rows(
        self, data: Any, count: int, start: int, size: int, longest: int = PIECE
    ) -> Iterator[tuple[int, int, int, list[Bytes]]]:
        """Yield pieces of a range: (first value, values in a block, blocks, sections); the last block may be a piece."""
        stop, sections = start + size, self.sections(data, count)
        assert start % self.block == 0 and (stop == count or stop % self.block == 0)
        whole = stop - size % self.block
        for begin in range(start, whole, longest):
            yield self._part(sections, begin, self.block, (min(begin + longest, whole) - begin) // self.block)
        if whole < stop:
            yield self._part(sections, whole, stop - whole, 1)

    def _part(self, sections: list[Bytes], at: int, length: int, rows: int) -> tuple[int, int, int, list[Bytes]]:
        found, widths = [], zip(self.widths(self.block), self.widths(length), strict=True)
        for section, (width, own) in zip(sections, widths, strict=True):
            first = at // self.block * width
            found.append(section[first : first + rows * own].reshape(rows, own))
        return at, length, rows, found


# ------------------------------------------------------------------------------------------------------------------------
# Arithmetic.


def absmax_of(rows: Floats, scratch: Floats) -> Floats:
    """Return the largest magnitude in each row, 0 below `TINY`; raise ValueError if a value is not finite.

    scratch: an array of the rows' shape, which contains the magnitudes afterwards.
    """
    bits = scratch.view(np.int32)  # without the sign, floats and their bits have the same order
    np.bitwise_and(rows.view(np.int32), _WITHOUT_SIGN, out=bits)
    top = np.maximum.reduceat(bits.ravel(), np.arange(0, bits.size, bits.shape[1]))
    if int(top.max()) >= _INFINITY:
        raise ValueError("a value is not finite")
    absmax: Floats = top.view(np.float32)
    absmax[absmax < TINY] = 0
    return absmax


def quotient(numerator: float, divisor: Floats) -> Floats:
    """Return `numerator` / `divisor`, 0 where the divisor is 0."""
    found = np.zeros_like(divisor)
    np.divide(np.float32(numerator), divisor, out=found, where=divisor > 0)
    return found


def to_bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """Return finite values as the bits of bf16 numbers, rounded to nearest even."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return rounded.astype("<u2")


def from_bf16(bits: npt.NDArray[np.uint16]) -> Floats:
    """Return bf16 numbers, given as bits, as fp32."""
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def sum_by_halving(values: Doubles) -> Doubles:
    """Return the sum along the first axis, overwriting `values`: add the second half to the first until one is left."""
    while (size := len(values)) > 1:
        half = (size + 1) // 2
        np.add(values[: size - half], values[half:], out=values[: size - half])
        values = values[:half]
    total: Doubles = values[0]
    return total


def total_of(squares: Sequence[Doubles]) -> float:
    """Return the sum of the blocks' sums of squares of a chunk, which come in pieces of any size, by halving."""
    return float(sum_by_halving(np.concatenate(squares)))


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
