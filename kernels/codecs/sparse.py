"""Top-k: of each block of 4096 values the k of largest magnitude, each with its place, its sign and one of two magnitudes.

Of values of equal magnitude, the one at the lower place is larger here. Zeros are not entries, so a block may have fewer.
The larger half of the entries, one more than the smaller half if their number is odd, has the mean of its magnitudes as
common magnitude, and so has the smaller half; both are rounded to bf16.

Sections: for each block the two magnitudes, the larger first, and the number of entries, 2 bytes each; the places, 12 bits
each, ascending; for each entry a sign bit and a bit for the larger magnitude. Every block has room for k entries, a short
last block for as many as it has values. Fields are packed from the lowest bits of a byte up; unused bits are zero.

Means are sums of whole numbers, magnitudes times (65535 / absmax), below 2^24 and so exact in fp32; divided by the number of
entries and multiplied by (absmax / 65535), with an absmax of at most `LARGEST`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from kernels.codecs.format import (
    LARGEST,
    Bytes,
    Doubles,
    Floats,
    Format,
    absmax_of,
    from_bf16,
    quotient,
    to_bf16,
)

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

STEPS = 65535
"""Whole number of the largest magnitude of a block."""
MOST_ENTRIES = 512
"""Largest k: half of it times `STEPS` is below 2^24."""
MAGNITUDE_BYTES = 6
"""Bytes of a block's two magnitudes and number of entries."""


class TopK(Format):
    """The k values of largest magnitude of each block.  k: a multiple of 4, at most `MOST_ENTRIES`."""

    number, block = 4, 4096
    _LEAST: Final = np.uint16(0x0080)
    """Bits of the smallest normal bf16 number."""
    _LARGEST: Final = np.uint16(to_bf16(np.array([LARGEST]))[0])

    def __init__(self, k: int) -> None:
        assert 0 < k <= MOST_ENTRIES and k % 4 == 0
        self.parameter = k

    def widths(self, values: int) -> tuple[int, ...]:
        """Return the widths of magnitudes, places and bits."""
        room = self.room(values)
        return MAGNITUDE_BYTES, (3 * room + 1) // 2, (room + 3) // 4

    def room(self, values: int) -> int:
        """Return the largest number of entries of a block of so many values."""
        return min(self.parameter, values)

    def encode_rows(self, rows: Floats, sections: Sequence[Bytes]) -> None:
        """Encode as `Format.encode_rows` does."""
        magnitudes = np.empty(rows.shape, np.float32)
        absmax = absmax_of(rows, magnitudes)
        magnitudes *= absmax[:, None] > 0
        places = largest(magnitudes, self.room(rows.shape[1]))
        chosen = np.take_along_axis(magnitudes, places, 1)
        if not chosen.all():  # entries that are zero go to the end
            order = np.argsort(chosen == 0, axis=1, kind="stable")
            places, chosen = np.take_along_axis(places, order, 1), np.take_along_axis(chosen, order, 1)
        entries = np.count_nonzero(chosen, axis=1)
        larger = ranks(chosen) < larger_half(entries)[:, None]
        whole = np.rint(chosen * quotient(STEPS, absmax)[:, None])
        unit = np.minimum(absmax, LARGEST) / np.float32(STEPS)
        head = sections[0].view("<u2")
        for column, (half, count) in enumerate(((larger, larger_half(entries)), (~larger, entries - larger_half(entries)))):
            mean = (whole * half).sum(axis=1) / np.maximum(count, 1).astype(np.float32) * unit
            head[:, column] = to_bf16(np.minimum(mean, LARGEST))
        head[:, 2] = entries
        _pack_places(places * (chosen > 0), sections[1])
        _pack_bits(np.take_along_axis(rows < 0, places, 1) & (chosen > 0), larger, sections[2])

    def decode_rows(self, sections: Sequence[Bytes], out: Floats, factor: np.float32) -> None:
        """Decode as `Format.decode_rows` does."""
        room, head = self.room(out.shape[1]), sections[0].view("<u2")
        negative, larger = _unpack_bits(sections[2], room)
        high, low = (from_bf16(head[:, :2]) * factor).T[:, :, None]
        values = np.where(larger, high, low)
        np.negative(values, out=values, where=negative)
        out[...] = 0
        used = np.arange(room) < head[:, 2:]
        places = _unpack_places(sections[1], room)
        out[np.nonzero(used)[0], places[used]] = values[used]

    def rows_are_sane(self, sections: Sequence[Bytes], values: int) -> bool:
        """Return True if all fields are in range and order, half of the entries are large, and spare bits zero."""
        room, head = self.room(values), sections[0].view("<u2")
        high, low, entries = head.T
        if (entries > room).any() or ((high == 0) != (entries == 0)).any() or ((low != 0) & (entries < 2)).any():
            return False
        if (high > self._LARGEST).any() or (low > high).any() or ((head[:, :2] != 0) & (head[:, :2] < self._LEAST)).any():
            return False
        places, (negative, larger) = _unpack_places(sections[1], room), _unpack_bits(sections[2], room)
        used = np.arange(room) < entries[:, None]
        if ((np.diff(places, axis=1) <= 0) & used[:, 1:]).any() or (places[used] >= values).any():
            return False
        if (larger.sum(axis=1) != larger_half(entries)).any():
            return False
        packed = np.empty_like(sections[1]), np.empty_like(sections[2])
        _pack_places(places * used, packed[0])
        _pack_bits(negative & used, larger & used, packed[1])
        return bool((packed[0] == sections[1]).all() and (packed[1] == sections[2]).all())

    def squares_of_rows(self, sections: Sequence[Bytes], values: int) -> Doubles:
        """Return the squares of both magnitudes, each times the number of its entries."""
        head = sections[0].view("<u2")
        (high, low), entries = from_bf16(head[:, :2]).T.astype(np.float64), head[:, 2].astype(np.int64)
        larger = larger_half(entries)
        found: Doubles = larger * (high * high) + (entries - larger) * (low * low)
        return found


def larger_half(entries: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return the numbers of entries that have the larger magnitude."""
    return (entries + 1) // 2


def largest(magnitudes: Floats, count: int) -> Places:
    """Return the places of the `count` largest magnitudes of each row, ascending; of equal ones, the lower places."""
    rows, columns = magnitudes.shape
    if count == columns:
        return np.broadcast_to(np.arange(columns), magnitudes.shape)
    bits = magnitudes.view(np.int32)
    least = np.partition(bits, columns - count, axis=1)[:, columns - count, None]
    chosen: Mask = bits > least
    equal = bits == least
    missing = count - chosen.sum(axis=1, keepdims=True)
    if (equal.sum(axis=1, keepdims=True) > missing).any():
        equal &= np.cumsum(equal, axis=1, dtype=np.int32) <= missing
    return np.nonzero(chosen | equal)[1].reshape(rows, count)


def ranks(magnitudes: Floats) -> Places:
    """Return the rank of each magnitude in its row, 0 for the largest; of equal ones, the first is larger."""
    order = np.argsort(-magnitudes, axis=1, kind="stable")
    found = np.empty_like(order)
    np.put_along_axis(found, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), 1)
    return found


def _pack_places(places: Places, out: Bytes) -> None:
    rows, room = places.shape
    even = np.zeros((rows, room + room % 2), np.int64)
    even[:, :room] = places
    packed = np.empty((rows, even.shape[1] // 2, 3), np.uint8)
    first, second = even[:, ::2], even[:, 1::2]
    packed[:, :, 0] = first & 0xFF
    packed[:, :, 1] = (first >> 8) | ((second & 0x0F) << 4)
    packed[:, :, 2] = second >> 4
    out[...] = packed.reshape(rows, -1)[:, : out.shape[1]]


def _unpack_places(packed: Bytes, room: int) -> Places:
    rows, width = packed.shape
    even = np.zeros((rows, -(-width // 3) * 3), np.int64)
    even[:, :width] = packed
    low, middle, high = even.reshape(rows, -1, 3).transpose(2, 0, 1)
    places = np.stack((low | ((middle & 0x0F) << 8), (middle >> 4) | (high << 4)), axis=2)
    return places.reshape(rows, -1)[:, :room]


def _pack_bits(negative: Mask, larger: Mask, out: Bytes) -> None:
    both = np.stack((negative, larger), axis=2).reshape(len(negative), -1)
    out[...] = np.packbits(both, axis=1, bitorder="little")


def _unpack_bits(packed: Bytes, room: int) -> tuple[Mask, Mask]:
    both = np.unpackbits(packed, axis=1, count=2 * room, bitorder="little").view(np.bool_)
    return both[:, ::2], both[:, 1::2]
