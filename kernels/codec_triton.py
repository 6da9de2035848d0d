"""GPU version of the formats in `kernels.codecs`, which makes their bytes.

`encode_difference` fuses the difference, error feedback, encoding, the new residual, and the sum of squares for the norm.
`weighted_mean` fuses decoding, weighted sum and encoding. Both give the same bytes as the CPU, because they do the same fp32
operations in the same order. Divisions and roots are rounded to nearest (`div_rn`, `sqrt_rn`; Triton's `/` is not exact),
and multiply-add is not fused (`enable_fp_fusion=False`). Adding and subtracting 1.5 * 2^23 rounds ties to even without a
library function, so that Triton's interpreter can also run the kernels.

Top-k finds the k-th largest magnitude by bisection over the bits of magnitudes, and the place of each entry by a cumulative
sum. Its few entries are packed, and read, by operations of torch on whole numbers.

Tensors are contiguous and on one device; encoded bytes are uint8 tensors, aligned to 16 bytes.
Sizes are specialised, so that chunks of a multiple of 16 values are read in vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aggregate import shares_of
from kernels.codecs.format import HEADER_BYTES, LARGEST, TINY, Format
from kernels.codecs.ladder import Codec
from kernels.codecs.quantised import BFloat16, Int2, Int4, Int8
from kernels.codecs.sparse import STEPS, TopK

TILE = 4096
"""Number of values per Triton program."""
_TILE = tl.constexpr(TILE)
_HEADER = tl.constexpr(HEADER_BYTES)
_TINY = tl.constexpr(float(TINY))
_LARGEST = tl.constexpr(float(LARGEST))
_INFINITY = tl.constexpr(float("inf"))
ROUNDER = tl.constexpr(12582912.0)
"""Constant 1.5 * 2^23. Near it, fp32 numbers have steps of 1, so adding it rounds to an integer, with ties to even."""
_INT8, _INT4, _INT2, _BF16 = (tl.constexpr(format.number) for format in (Int8, Int4, Int2, BFloat16))
_LARGEST8, _LARGEST4, _LARGEST2 = (tl.constexpr(float(format.LARGEST_SCALE)) for format in (Int8, Int4, Int2))
_LOW, _HIGH = (tl.constexpr(float(level)) for level in Int2.LEVELS)
_THRESHOLD = tl.constexpr(float(Int2.THRESHOLD))
_STEPS2 = tl.constexpr(float(Int2.STEPS))
_STEPS = tl.constexpr(float(STEPS))


# ------------------------------------------------------------------------------------------------------------------------
# Parts of the kernels.


@triton.jit
def _quotient(numerator, divisor):
    """Return numerator / divisor, 0 where the divisor is 0."""
    some = divisor > 0.0
    return tl.where(some, tl.div_rn(tl.full(divisor.shape, numerator, tl.float32), tl.where(some, divisor, 1.0)), 0.0)


@triton.jit
def _over(numerators, divisor):
    return tl.div_rn(numerators, tl.full(numerators.shape, divisor, tl.float32))


@triton.jit
def to_bf16(values):
    """Return the bits of bf16 numbers, rounded to nearest even; the high half of an integer repeats the number's sign."""
    bits = values.to(tl.int32, bitcast=True)
    return (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16


@triton.jit
def from_bf16(bits):
    """Return the numbers whose bits are the low halves of integers."""
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _with_residual(difference, residual_ptr, places, inside, decay):
    left = tl.load(residual_ptr + places, mask=inside, other=0.0) * decay
    return difference + tl.where(tl.abs(left) < _INFINITY, left, 0.0)


@triton.jit
def _square(difference, values):
    """Return the squares of differences in fp64, infinite if the value that is encoded is not finite."""
    wide = difference.to(tl.float64)
    return tl.where(tl.abs(values) < _INFINITY, wide * wide, _INFINITY)


@triton.jit
def _encode_tile(values, rows, places, inside, count, count_rows, packed_bytes, out_ptr, FORMAT: tl.constexpr):
    """Store the codes of `values` (rows, BLOCK), whose lanes that are not `inside` hold 0; return the decoded values."""
    body = out_ptr + _HEADER
    if FORMAT == _BF16:
        magnitudes = tl.abs(values)
        bits = tl.where(magnitudes < _TINY, 0, to_bf16(tl.minimum(magnitudes, _LARGEST)))
        negative = (values < 0.0) & (bits > 0)
        signed = tl.where(negative, bits | 0x8000, bits)
        tl.store(body.to(tl.pointer_type(tl.int16)) + places, signed.to(tl.int16), mask=inside)
        return tl.where(negative, -from_bf16(bits), from_bf16(bits))
    absmax = tl.max(tl.abs(values), axis=1)
    absmax = tl.where(absmax < _TINY, 0.0, absmax)
    wanted = rows < count_rows
    if FORMAT == _INT8:
        scales = tl.minimum(_over(absmax, 127.0), _LARGEST8)
        codes = (values * _quotient(127.0, absmax)[:, None] + ROUNDER) - ROUNDER
        tl.store(body.to(tl.pointer_type(tl.float32)) + rows, scales, mask=wanted)
        tl.store((body + 4 * count_rows.to(tl.int64)).to(tl.pointer_type(tl.int8)) + places, codes.to(tl.int8), mask=inside)
        return codes * scales[:, None]
    packed_ptr = body + 2 * count_rows.to(tl.int64)
    if FORMAT == _INT4:
        bits = to_bf16(tl.minimum(_over(absmax, 7.0), _LARGEST4))
        scales = from_bf16(bits)
        rounded = values * _quotient(1.0, scales)[:, None] + ROUNDER
        rounded = tl.minimum(tl.maximum(rounded, ROUNDER - 7.0), ROUNDER + 7.0)
        decoded = (rounded - ROUNDER) * scales[:, None]
        fields = rounded.to(tl.int32, bitcast=True) & 15
        low, high = tl.split(tl.reshape(fields, (fields.shape[0], fields.shape[1] // 2, 2)))
        packed = low | (high << 4)
        bytes_of_row = fields.shape[1] // 2
    else:
        steps = (values * _quotient(_STEPS2, absmax)[:, None] + ROUNDER) - ROUNDER
        lengths = tl.minimum(count - rows * values.shape[1], values.shape[1])
        mean = tl.div_rn(tl.sum(steps * steps, axis=1), tl.where(wanted, lengths, 1).to(tl.float32))
        bits = to_bf16(tl.minimum(tl.sqrt_rn(mean) * _over(tl.minimum(absmax, _LARGEST), _STEPS2), _LARGEST2))
        scales = from_bf16(bits)
        some = (scales > 0.0)[:, None]
        larger = (tl.abs(values) > (scales * _THRESHOLD)[:, None]) & some
        negative = (values < 0.0) & some
        magnitudes = tl.where(larger, _HIGH, _LOW) * scales[:, None]
        decoded = tl.where(negative, -magnitudes, magnitudes)
        fields = tl.where(inside, negative.to(tl.int32) | (larger.to(tl.int32) << 1), 0)
        even, odd = tl.split(tl.reshape(fields, (fields.shape[0], fields.shape[1] // 2, 2)))
        pairs = even | (odd << 2)
        low, high = tl.split(tl.reshape(pairs, (fields.shape[0], fields.shape[1] // 4, 2)))
        packed = low | (high << 4)
        bytes_of_row = fields.shape[1] // 4
    tl.store(body.to(tl.pointer_type(tl.int16)) + rows, bits.to(tl.int16), mask=wanted)
    at = rows[:, None] * bytes_of_row + tl.arange(0, packed.shape[1])[None, :]
    tl.store(packed_ptr + at, packed.to(tl.uint8), mask=at < packed_bytes)
    return decoded


@triton.jit
def _packed(packed_ptr, rows, packed_bytes, WIDTH: tl.constexpr):
    """Return the packed bytes of `rows` as integers (rows, WIDTH); 0 outside."""
    at = rows[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(packed_ptr + at, mask=at < packed_bytes, other=0).to(tl.int32)


@triton.jit
def _decode_tile(address, rows, places, inside, count_rows, packed_bytes, factor, FORMAT: tl.constexpr, BLOCK: tl.constexpr):
    """Return the values of `rows` of encoded bytes, with `factor` multiplied into the scales."""
    body = tl.multiple_of(address.to(tl.pointer_type(tl.uint8)), 16) + _HEADER
    if FORMAT == _BF16:
        bits = tl.load(body.to(tl.pointer_type(tl.int16)) + places, mask=inside, other=0).to(tl.int32)
        return from_bf16(bits) * factor
    wanted = rows < count_rows
    if FORMAT == _INT8:
        scales = tl.load(body.to(tl.pointer_type(tl.float32)) + rows, mask=wanted, other=0.0) * factor
        codes_ptr = (body + 4 * count_rows.to(tl.int64)).to(tl.pointer_type(tl.int8))
        return tl.load(codes_ptr + places, mask=inside, other=0).to(tl.float32) * scales[:, None]
    bits = tl.load(body.to(tl.pointer_type(tl.int16)) + rows, mask=wanted, other=0).to(tl.int32)
    scales = (from_bf16(bits) * factor)[:, None]
    packed_ptr = body + 2 * count_rows.to(tl.int64)
    if FORMAT == _INT4:
        packed = _packed(packed_ptr, rows, packed_bytes, BLOCK // 2)
        packed = packed ^ 0x88  # from -8 to 7, to 0 to 15
        return tl.interleave(_whole(packed & 15, 8.0) * scales, _whole(packed >> 4, 8.0) * scales)
    packed = _packed(packed_ptr, rows, packed_bytes, BLOCK // 4)
    low, high = _LOW * scales, _HIGH * scales
    even = tl.interleave(_signed_level(packed, low, high, 0), _signed_level(packed, low, high, 4))
    odd = tl.interleave(_signed_level(packed, low, high, 2), _signed_level(packed, low, high, 6))
    return tl.interleave(even, odd)


@triton.jit
def _whole(bits, less):
    """Return bits, a whole number below 2^22, less another, exactly; converting integers is slow."""
    return (bits | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + less)


@triton.jit
def _signed_level(packed, low, high, AT: tl.constexpr):
    """Return the values of two bits, from bit `AT` on: a sign, and one of two levels."""
    level = tl.where((packed & (2 << AT)) == 0, low, high)
    return (level.to(tl.int32, bitcast=True) ^ ((packed & (1 << AT)) << (31 - AT))).to(tl.float32, bitcast=True)


# ------------------------------------------------------------------------------------------------------------------------
# Kernels of formats with a code for each value.


@triton.jit(do_not_specialize=["decay"])
def _encode_kernel(
    base_ptr,
    values_ptr,
    residual_ptr,
    out_ptr,
    squares_ptr,
    count,
    count_rows,
    packed_bytes,
    decay,
    FEEDBACK: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Encode base - values, and store the rows' sums of squares in fp64 (not finite if a value is not)."""
    rows = tl.program_id(0).to(tl.int64) * (_TILE // BLOCK) + tl.arange(0, _TILE // BLOCK)
    places = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = places < count
    difference = tl.load(base_ptr + places, mask=inside, other=0.0) - tl.load(values_ptr + places, mask=inside, other=0.0)
    values = difference
    if FEEDBACK:
        values = _with_residual(difference, residual_ptr, places, inside, decay)
    tl.store(squares_ptr + rows, tl.sum(_square(difference, values), axis=1), mask=rows < count_rows)
    decoded = _encode_tile(values, rows, places, inside, count, count_rows, packed_bytes, out_ptr, FORMAT)
    if FEEDBACK:
        tl.store(residual_ptr + places, values - decoded, mask=inside)


@triton.jit
def _mean_kernel(
    addresses_ptr,
    shares_ptr,
    out_ptr,
    count,
    count_rows,
    sent_bytes,
    packed_bytes,
    MEMBERS: tl.constexpr,
    SENT: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Encode the sum of the members' decoded values times their shares, in order.  addresses_ptr: addresses of the bytes."""
    rows = tl.program_id(0).to(tl.int64) * (_TILE // BLOCK) + tl.arange(0, _TILE // BLOCK)
    places = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = places < count
    mean = tl.zeros((_TILE // BLOCK, BLOCK), tl.float32)
    for member in tl.range(0, MEMBERS, loop_unroll_factor=4):  # so that several members' bytes are under way
        address, share = tl.load(addresses_ptr + member), tl.load(shares_ptr + member)
        mean = mean + _decode_tile(address, rows, places, inside, count_rows, sent_bytes, share, SENT, BLOCK)
    mean = tl.where(inside, mean, 0.0)
    _encode_tile(mean, rows, places, inside, count, count_rows, packed_bytes, out_ptr, FORMAT)


# ------------------------------------------------------------------------------------------------------------------------
# Kernel of top-k.


@triton.jit
def _largest(bits, wanted):
    """Return a mask of the `wanted` largest of `bits`; of equal ones, the lower places win; -1 is never among them."""
    least = tl.zeros((), tl.int32)
    for step in range(31):
        higher = least | (tl.full((), 1, tl.int32) << (30 - step))
        least = tl.where(tl.sum((bits >= higher).to(tl.int32), axis=0) >= wanted, higher, least)
    above, equal = bits > least, bits == least
    missing = wanted - tl.sum(above.to(tl.int32), axis=0)
    return above | (equal & (tl.cumsum(equal.to(tl.int32), axis=0) <= missing))


@triton.jit
def _common_magnitude(whole, members, count, unit):
    total = tl.sum(tl.where(members, whole, 0.0), axis=0)
    return to_bf16(tl.minimum(tl.div_rn(total, tl.maximum(count, 1).to(tl.float32)) * unit, _LARGEST))


@triton.jit(do_not_specialize=["count", "decay"])
def _choose_kernel(
    base_ptr,
    values_ptr,
    residual_ptr,
    out_ptr,
    squares_ptr,
    places_ptr,
    fields_ptr,
    count,
    decay,
    FEEDBACK: tl.constexpr,
    K: tl.constexpr,
):
    """Choose the entries of one block of base - values; store magnitudes, and the entries' places, signs and sizes."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, _TILE)
    places = row * _TILE + columns
    inside = places < count
    difference = tl.load(base_ptr + places, mask=inside, other=0.0) - tl.load(values_ptr + places, mask=inside, other=0.0)
    values = difference
    if FEEDBACK:
        values = _with_residual(difference, residual_ptr, places, inside, decay)
    tl.store(squares_ptr + row, tl.sum(_square(difference, values), axis=0))
    magnitudes = tl.abs(values)
    absmax = tl.max(magnitudes, axis=0)
    absmax = tl.where(absmax < _TINY, 0.0, absmax)
    some = absmax > 0.0
    magnitudes = tl.where(some, magnitudes, 0.0)
    bits = tl.where(inside, magnitudes.to(tl.int32, bitcast=True), -1)
    chosen = _largest(bits, tl.minimum(count - row * _TILE, K).to(tl.int32)) & (bits > 0)
    entries = tl.sum(chosen.to(tl.int32), axis=0)
    larger_entries = (entries + 1) // 2
    larger = _largest(tl.where(chosen, bits, -1), larger_entries)
    whole = (magnitudes * _quotient(_STEPS, absmax) + ROUNDER) - ROUNDER
    unit = _over(tl.minimum(absmax, _LARGEST), _STEPS)
    high = _common_magnitude(whole, larger, larger_entries, unit)
    low = _common_magnitude(whole, chosen & (larger == 0), entries - larger_entries, unit)
    head = (out_ptr + _HEADER).to(tl.pointer_type(tl.int16)) + 3 * row
    tl.store(head, high.to(tl.int16))
    tl.store(head + 1, low.to(tl.int16))
    tl.store(head + 2, entries.to(tl.int16))
    negative = values < 0.0
    at = row * K + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(places_ptr + at, columns.to(tl.int32), mask=chosen)
    tl.store(fields_ptr + at, negative.to(tl.int32) | (larger.to(tl.int32) << 1), mask=chosen)
    if FEEDBACK:
        decoded = tl.where(larger, from_bf16(high), from_bf16(low))
        decoded = tl.where(chosen, tl.where(negative, -decoded, decoded), 0.0)
        tl.store(residual_ptr + places, values - decoded, mask=inside)


# ------------------------------------------------------------------------------------------------------------------------


def encode_difference(codec: Codec, base: Tensor, values: Tensor, residual: Tensor | None, out: Tensor) -> float:
    """Encode `base` - `values` (fp32, same size) as a chunk into `out`; return the L2 norm of the difference.

    residual: as `Codec.encode_range` describes it; None without error feedback.  Raises ValueError if a difference is not
    finite; the contents of `out` and `residual` are then undefined.
    """
    assert base.shape == values.shape and base.dtype == values.dtype == torch.float32
    assert base.is_contiguous() and values.is_contiguous()
    feedback = residual if codec.feedback is not None else None
    squares = _encode(codec.contribution, base, values, feedback, codec.feedback or 0.0, out)
    norm = math.sqrt(float(squares.sum()))
    if not math.isfinite(norm):
        raise ValueError("a value is not finite")
    return norm


def weighted_mean(codec: Codec, contributions: Sequence[Tensor], weights: Sequence[int], count: int, out: Tensor) -> None:
    """Average sane encoded chunks on the GPU, as the rule `mean` of `kernels.aggregate` does on the CPU.

    The sums of squares in the header of the result are 0.
    """
    assert len(contributions) == len(weights) > 0 and all(weight > 0 for weight in weights)
    sent, device = codec.contribution, out.device
    for contribution in contributions:
        _check(sent, contribution, count)
    shares = torch.tensor(shares_of(weights), dtype=torch.float32).to(device, non_blocking=True)
    if isinstance(sent, TopK):
        mean = torch.zeros(count, device=device)
        for contribution, share in zip(contributions, shares, strict=True):
            _add_entries(sent, contribution, count, share, mean)
        _encode(codec.result, mean, torch.zeros_like(mean), None, 0.0, out)
        return
    assert not isinstance(codec.result, TopK), "only sparse contributions have a sparse result"
    assert sent.block == codec.result.block, "a program decodes the blocks that it encodes"
    addresses = torch.tensor([part.data_ptr() for part in contributions]).to(device, non_blocking=True)
    block = codec.result.block
    _write_header(codec.result, out, count)
    _mean_kernel[(triton.cdiv(count, TILE),)](
        addresses,
        shares,
        out,
        count,
        triton.cdiv(count, block),
        sent.section_bytes(count)[-1],
        codec.result.section_bytes(count)[-1],
        MEMBERS=len(contributions),
        SENT=sent.number,
        FORMAT=codec.result.number,
        BLOCK=block,
        enable_fp_fusion=False,
    )


def _encode(format: Format, base: Tensor, values: Tensor, residual: Tensor | None, decay: float, out: Tensor) -> Tensor:
    """Encode `base` - `values`; return sums of squares of the difference, not finite if an encoded value is not."""
    count, device = values.numel(), values.device
    _write_header(format, out, count)
    block = format.block
    rows = triton.cdiv(count, block)
    squares = torch.empty(rows, dtype=torch.float64, device=device)
    left: Any = values if residual is None else residual  # a kernel needs a pointer
    if not isinstance(format, TopK):
        _encode_kernel[(triton.cdiv(count, TILE),)](
            base,
            values,
            left,
            out,
            squares,
            count,
            rows,
            format.section_bytes(count)[-1],
            decay,
            FEEDBACK=residual is not None,
            FORMAT=format.number,
            BLOCK=block,
            enable_fp_fusion=False,
            num_warps=8,
        )
        return squares
    k = format.parameter
    places, fields = (torch.zeros((rows, k), dtype=torch.int32, device=device) for _ in range(2))
    _choose_kernel[(rows,)](
        base,
        values,
        left,
        out,
        squares,
        places,
        fields,
        count,
        decay,
        FEEDBACK=residual is not None,
        K=k,
        enable_fp_fusion=False,
    )
    _, to_places, to_fields = _sections(format, out, count)
    for rows_of, values_of in _row_groups(format, count):
        width, field_width = format.widths(values_of)[1:]
        packed = _pack_places(places[rows_of])[:, :width]
        to_places[rows_of.start * format.widths(block)[1] :][: packed.numel()] = packed.flatten()
        packed = _pack_fields(fields[rows_of])[:, :field_width]
        to_fields[rows_of.start * format.widths(block)[2] :][: packed.numel()] = packed.flatten()
    return squares


def _row_groups(format: TopK, count: int) -> list[tuple[slice, int]]:
    """Return the whole blocks, and the last if it is shorter, each with the number of values of a block."""
    whole, rest = divmod(count, format.block)
    groups = [(slice(0, whole), format.block)] if whole else []
    return groups + ([(slice(whole, whole + 1), rest)] if rest else [])


def _pack_places(places: Tensor) -> Tensor:
    first, second = places[:, ::2], places[:, 1::2]
    packed = torch.stack((first & 0xFF, (first >> 8) | ((second & 0x0F) << 4), second >> 4), dim=2)
    return packed.to(torch.uint8).flatten(1)


def _pack_fields(fields: Tensor) -> Tensor:
    quads = fields.reshape(len(fields), -1, 4)
    return (quads << torch.arange(0, 8, 2, dtype=torch.int32, device=fields.device)).sum(dim=2).to(torch.uint8)


def _add_entries(format: TopK, data: Tensor, count: int, share: Tensor, mean: Tensor) -> None:
    """Add the decoded entries times `share` to `mean`; no place occurs twice, so that the order does not matter."""
    head, packed_places, packed_fields = _sections(format, data, count)
    numbers = head.view(torch.int16).to(torch.int32).view(-1, 3)
    halves = (numbers[:, :2] << 16).contiguous().view(torch.float32) * share
    for rows_of, values in _row_groups(format, count):
        room, (_, width, field_width) = format.room(values), format.widths(values)
        rows, start = rows_of.stop - rows_of.start, rows_of.start
        raw = packed_places[start * format.widths(format.block)[1] :][: rows * width].view(rows, width).to(torch.int64)
        raw = torch.nn.functional.pad(raw, (0, -width % 3)).view(rows, -1, 3)
        low, middle, high = raw.unbind(2)
        places = torch.stack((low | ((middle & 0x0F) << 8), (middle >> 4) | (high << 4)), dim=2).flatten(1)[:, :room]
        raw = packed_fields[start * format.widths(format.block)[2] :][: rows * field_width].view(rows, field_width)
        shifts = torch.arange(0, 8, 2, dtype=torch.int64, device=data.device)
        fields = ((raw.to(torch.int64)[:, :, None] >> shifts) & 3).flatten(1)[:, :room]
        own = halves[rows_of]
        signed = torch.where(fields > 1, own[:, :1], own[:, 1:]) * torch.where(fields % 2 == 1, -1.0, 1.0)
        first = torch.arange(start, start + rows, device=data.device)[:, None] * format.block
        used = torch.arange(room, device=data.device) < numbers[rows_of, 2:]
        mean[(first + places)[used]] += signed[used]


def _write_header(format: Format, out: Tensor, count: int) -> None:
    _check(format, out, count)
    out[:HEADER_BYTES] = _header(format, out.device)


@lru_cache
def _header(format: Format, device: torch.device) -> Tensor:
    """Return the header of a format, which stays on the device, because a copy from the host would wait for kernels."""
    header = bytearray(HEADER_BYTES)
    format.write_header(header)
    return torch.frombuffer(header, dtype=torch.uint8).to(device)


def _sections(format: Format, data: Tensor, count: int) -> list[Tensor]:
    """Return views of the sections of encoded bytes."""
    return list(torch.split(data[HEADER_BYTES:], format.section_bytes(count)))


def _check(format: Format, data: Tensor, count: int) -> None:
    assert data.dtype == torch.uint8 and data.is_contiguous() and data.numel() == format.encoded_bytes(count)
    assert data.data_ptr() % 16 == 0, "encoded bytes on the GPU are aligned to 16 bytes"
