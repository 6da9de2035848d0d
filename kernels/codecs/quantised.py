"""Formats with a code for each value: int8, int4 and int2, with a scale for each block, and bf16.

    int8  blocks of 256; scale absmax / 127, in fp32; a code is the value times (127 / absmax), rounded
    int4  blocks of 64; scale absmax / 7, rounded to bf16; a code is the value times (1 / scale), rounded, at most 7
    int2  blocks of 64; scale rms, rounded to bf16; a code is a sign and one of two levels times the scale
    bf16  blocks of 256; values alone, rounded to bf16

All round to nearest, ties to even; each division and product is in fp32, rounded once. Codes of int4 and int2 are packed
from the lowest bits of a byte up; unused bits are zero. Below `TINY` a block, or a value of bf16, is encoded as zeros.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.codecs.format import (
    LARGEST,
    TINY,
    Bytes,
    Doubles,
    Floats,
    Format,
    absmax_of,
    from_bf16,
    quotient,
    sum_by_halving,
    to_bf16,
)

Halves = npt.NDArray[np.uint16]
"""Bits of bf16 numbers."""


class WholeNumbers(Format):
    """Format whose codes are whole numbers, times a scale of their block."""

    @abstractmethod
    def scales(self, sections: Sequence[Bytes]) -> Floats:
        """Return the blocks' scales (blocks, 1)."""

    @abstractmethod
    def codes(self, sections: Sequence[Bytes], out: Floats) -> None:
        """Write the codes into `out`."""

    @abstractmethod
    def encode_codes(self, rows: Floats, sections: Sequence[Bytes]) -> Floats:
        """Encode as `encode_rows` does, and return the codes."""

    def encode_rows(self, rows: Floats, sections: Sequence[Bytes]) -> None:
        """Encode as `Format.encode_rows` does."""
        self.encode_codes(rows, sections)

    def encode_and_square_rows(self, rows: Floats, sections: Sequence[Bytes]) -> Doubles:
        """Encode as `Format.encode_and_square_rows` does."""
        return self._squares(self.encode_codes(rows, sections), self.scales(sections))

    def decode_rows(self, sections: Sequence[Bytes], out: Floats, factor: np.float32) -> None:
        """Decode as `Format.decode_rows` does."""
        self.codes(sections, out)
        np.multiply(out, self.scales(sections) * factor, out=out)

    def decode_and_square_rows(self, sections: Sequence[Bytes], out: Floats, factor: np.float32) -> Doubles:
        """Decode as `Format.decode_and_square_rows` does."""
        self.codes(sections, out)
        scales = self.scales(sections)
        squares = self._squares(out, scales)
        np.multiply(out, scales * factor, out=out)
        return squares

    def squares_of_rows(self, sections: Sequence[Bytes], values: int) -> Doubles:
        """Return the blocks' sums of squares."""
        scales = self.scales(sections)
        codes = np.empty((len(scales), values), np.float32)
        self.codes(sections, codes)
        return self._squares(codes, scales)

    def _squares(self, codes: Floats, scales: Floats) -> Doubles:
        """Return scale^2 times the sum of squares of the codes, a whole number below 2^24 and so exact in fp32."""
        wide = scales[:, 0].astype(np.float64)
        found: Doubles = wide * wide * np.vecdot(codes, codes)
        return found


class Int8(WholeNumbers):
    """Signed bytes with an fp32 scale for each block."""

    number, block = 1, 256
    LEVELS: Final = 127
    LARGEST_SCALE: Final = np.float32(LARGEST / np.float32(127))
    LEAST_SCALE: Final = np.float32(TINY / np.float32(127))

    def widths(self, values: int) -> tuple[int, ...]:
        """Return the widths of scales and codes."""
        return 4, values

    def scales(self, sections: Sequence[Bytes]) -> Floats:
        """Return the blocks' scales (blocks, 1)."""
        return sections[0].view("<f4")

    def codes(self, sections: Sequence[Bytes], out: Floats) -> None:
        """Write the codes into `out`."""
        np.copyto(out, sections[1].view(np.int8))

    def encode_codes(self, rows: Floats, sections: Sequence[Bytes]) -> Floats:
        """Encode as `WholeNumbers.encode_codes` does."""
        codes = np.empty(rows.shape, np.float32)
        absmax = absmax_of(rows, codes)
        sections[0].view("<f4")[:, 0] = np.minimum(absmax / np.float32(self.LEVELS), self.LARGEST_SCALE)
        np.multiply(rows, quotient(self.LEVELS, absmax)[:, None], out=codes)
        np.rint(codes, out=codes)
        sections[1].view(np.int8)[...] = codes
        return codes

    def rows_are_sane(self, sections: Sequence[Bytes], values: int) -> bool:
        """Return True if scales are in range, and no code is -128."""
        scales = sections[0].view("<u4")  # as bits, so that neither a NaN nor -0 is in range
        least, largest = self.LEAST_SCALE.view(np.uint32), self.LARGEST_SCALE.view(np.uint32)
        in_range = ((scales >= least) & (scales <= largest)) | (scales == 0)
        return bool(in_range.all()) and int(sections[1].view(np.int8).min()) >= -self.LEVELS


def _least_half(value: float) -> np.uint16:
    return np.uint16(to_bf16(np.array([value], np.float32))[0])


def in_range(bits: Halves, least: np.uint16, largest: np.uint16) -> bool:
    """Return True if bf16 numbers, given as bits, are 0 or in a range of positive numbers."""
    return bool((((bits >= least) & (bits <= largest)) | (bits == 0)).all())


class Int4(WholeNumbers):
    """Codes from -7 to 7, two in a byte, with a bf16 scale for each block."""

    number, block = 2, 64
    LEVELS: Final = 7
    LARGEST_SCALE: Final = np.float32(2.0**124)
    _LEAST: Final = _least_half(float(TINY) / 7)
    _LARGEST: Final = _least_half(2.0**124)
    _DECODED: Final = np.array([[(n ^ 8) - 8 for n in (byte & 15, byte >> 4)] for byte in range(256)], np.float32)
    """Codes of each byte, (256, 2): first the code in the low four bits, then the code in the high four bits."""

    def widths(self, values: int) -> tuple[int, ...]:
        """Return the widths of scales and codes."""
        return 2, (values + 1) // 2

    def scales(self, sections: Sequence[Bytes]) -> Floats:
        """Return the blocks' scales (blocks, 1)."""
        return from_bf16(sections[0].view("<u2"))

    def codes(self, sections: Sequence[Bytes], out: Floats) -> None:
        """Write the codes into `out`."""
        _unpack(self._DECODED, sections[1], out)

    def encode_codes(self, rows: Floats, sections: Sequence[Bytes]) -> Floats:
        """Encode as `WholeNumbers.encode_codes` does."""
        codes = np.empty(rows.shape, np.float32)
        scales = to_bf16(np.minimum(absmax_of(rows, codes) / np.float32(self.LEVELS), self.LARGEST_SCALE))
        sections[0].view("<u2")[:, 0] = scales
        np.multiply(rows, quotient(1, from_bf16(scales))[:, None], out=codes)
        np.rint(codes, out=codes)
        if scales.max() == self._LARGEST:  # only values beyond the largest scale have larger codes
            np.clip(codes, -self.LEVELS, self.LEVELS, out=codes)
        pairs = np.empty((len(rows), sections[1].shape[1]), "<u2")
        pairs[:, -1] = 0
        pairs.view(np.int8)[:, : rows.shape[1]] = codes
        low = pairs & np.uint16(0x0F)
        pairs >>= np.uint16(4)
        pairs &= np.uint16(0xF0)
        pairs |= low
        sections[1][...] = pairs
        return codes

    def rows_are_sane(self, sections: Sequence[Bytes], values: int) -> bool:
        """Return True if scales are in range, no code is -8, and the spare half of a last byte is zero."""
        scales, codes = sections[0].view("<u2"), sections[1]
        if not in_range(scales, self._LEAST, self._LARGEST):
            return False
        if ((codes & 0x0F) == 0x08).any() or ((codes & 0xF0) == 0x80).any():
            return False
        return not (values % 2 and (codes[:, -1] >> 4).any())


def _unpack(table: Floats, packed: Bytes, out: Floats) -> None:
    """Write the values of each row's bytes into `out`, by a table of the values of each byte (256, values in a byte)."""
    rows, width = packed.shape
    full = out.shape[1] == width * table.shape[1]
    found = out if full else np.empty((rows, width * table.shape[1]), np.float32)
    each = {2: np.dtype(np.uint64), 4: np.dtype(np.complex128)}[table.shape[1]]  # types of as many bytes
    np.take(table.view(each)[:, 0], packed, out=found.view(each), mode="clip")  # with a mode, numpy needs no buffer
    if not full:
        out[...] = found[:, : out.shape[1]]


class Int2(Format):
    """Codes of a sign and one of two levels, four in a byte, with a bf16 scale for each block.

    The levels are those of the best quantiser with four levels for a normal distribution (Lloyd 1982, Max 1960). The rms is
    computed from whole numbers, values times (511 / absmax), the sum of whose squares is below 2^24 and so exact in fp32.
    """

    number, block = 3, 64
    LEVELS: Final = (np.float32(0.4528), np.float32(1.510))
    THRESHOLD: Final = np.float32(0.9816)
    """Magnitude over the scale above which a value has the larger level."""
    STEPS: Final = 511
    LARGEST_SCALE: Final = np.float32(2.0**126)
    _LEAST: Final = _least_half(float(TINY) / 8)
    _LARGEST: Final = _least_half(2.0**126)
    _DECODED: Final = np.array(
        [
            [(-1, 1)[not code & 1] * (np.float32(0.4528), np.float32(1.510))[code >> 1] for code in codes]
            for codes in ([byte >> shift & 3 for shift in (0, 2, 4, 6)] for byte in range(256))
        ],
        np.float32,
    )
    """Factors on the scale of the four codes of each byte."""

    def widths(self, values: int) -> tuple[int, ...]:
        """Return the widths of scales and codes."""
        return 2, (values + 3) // 4

    def encode_rows(self, rows: Floats, sections: Sequence[Bytes]) -> None:
        """Encode as `Format.encode_rows` does."""
        scratch = np.empty(rows.shape, np.float32)
        absmax, values = absmax_of(rows, scratch), np.float32(rows.shape[1])
        np.multiply(rows, quotient(self.STEPS, absmax)[:, None], out=scratch)
        np.rint(scratch, out=scratch)
        rms = np.sqrt(np.einsum("ij,ij->i", scratch, scratch) / values) * (
            np.minimum(absmax, LARGEST) / np.float32(self.STEPS)
        )
        scales = to_bf16(np.minimum(rms, self.LARGEST_SCALE))
        sections[0].view("<u2")[:, 0] = scales
        scale = from_bf16(scales)[:, None]
        np.abs(rows, out=scratch)
        quads = np.zeros((len(rows), sections[1].shape[1]), "<u4")
        codes = quads.view(np.uint8)[:, : rows.shape[1]]
        np.greater(scratch, scale * self.THRESHOLD, out=codes.view(np.bool_))
        codes <<= 1
        codes |= rows < 0
        codes *= scale > 0
        shifted = [quads >> np.uint32(6 * place) for place in range(4)]
        sections[1][...] = (shifted[0] | shifted[1] | shifted[2] | shifted[3]) & np.uint32(0xFF)

    def decode_rows(self, sections: Sequence[Bytes], out: Floats, factor: np.float32) -> None:
        """Decode as `Format.decode_rows` does."""
        _unpack(self._DECODED, sections[1], out)
        np.multiply(out, from_bf16(sections[0].view("<u2")) * factor, out=out)

    def rows_are_sane(self, sections: Sequence[Bytes], values: int) -> bool:
        """Return True if scales are in range, and the spare bits of a last byte are zero."""
        scales, codes = sections[0].view("<u2"), sections[1]
        if not in_range(scales, self._LEAST, self._LARGEST):
            return False
        return not (values % 4 and (codes[:, -1] >> (values % 4 * 2)).any())

    def squares_of_rows(self, sections: Sequence[Bytes], values: int) -> Doubles:
        """Return the squares of both decoded levels, each times the number of its codes."""
        large = (sections[1] >> 1) & 0x55  # spare bits are zero
        larger = np.bitwise_count(large).sum(axis=1, dtype=np.float64)
        scales = from_bf16(sections[0].view("<u2"))[:, 0]
        low, high = ((scales * level).astype(np.float64) for level in self.LEVELS)
        found: Doubles = larger * (high * high) + (values - larger) * (low * low)
        return found


class BFloat16(Format):
    """Values in bf16, at most `LARGEST`.  A block shares nothing but its sum of squares."""

    number, block = 5, 256
    _LEAST: Final = _least_half(float(TINY))
    _LARGEST: Final = _least_half(float(LARGEST))

    def widths(self, values: int) -> tuple[int, ...]:
        """Return the width of a value."""
        return (2 * values,)

    def encode_rows(self, rows: Floats, sections: Sequence[Bytes]) -> None:
        """Encode as `Format.encode_rows` does."""
        magnitudes = np.empty(rows.shape, np.float32)
        absmax_of(rows, magnitudes)
        bits = np.minimum(to_bf16(magnitudes), self._LARGEST)
        bits |= (rows < 0).astype("<u2") << np.uint16(15)
        bits *= magnitudes >= TINY
        sections[0].view("<u2")[...] = bits

    def decode_rows(self, sections: Sequence[Bytes], out: Floats, factor: np.float32) -> None:
        """Decode as `Format.decode_rows` does."""
        np.multiply(from_bf16(sections[0].view("<u2")), factor, out=out)

    def rows_are_sane(self, sections: Sequence[Bytes], values: int) -> bool:
        """Return True if all magnitudes are in range, and no zero has a sign."""
        bits = sections[0].view("<u2")
        return in_range(bits & np.uint16(0x7FFF), self._LEAST, self._LARGEST) and not (bits == 0x8000).any()

    def squares_of_rows(self, sections: Sequence[Bytes], values: int) -> Doubles:
        """Return the sums of the values' squares, which are exact in fp64, by halving."""
        wide = from_bf16(sections[0].view("<u2")).astype(np.float64)
        return sum_by_halving(np.multiply(wide, wide, out=wide).T)
