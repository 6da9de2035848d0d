"""Each format by its definition, on ordinary values, on edges, and on bytes from a peer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.codecs.format import HEADER_BYTES, LARGEST, PIECE, TINY, Format, Squares, norm, squares_in, write_squares
from kernels.codecs.ladder import BF16, INT2, INT4, INT8, LADDER, TOP64, TOP256, codec_named
from kernels.codecs.sparse import TopK
from tests.kernels.vectors import Floats, normal, vectors

FORMATS: dict[str, Format] = {
    "int8": INT8,
    "int4": INT4,
    "int2": INT2,
    "top64": TOP64,
    "top256": TOP256,
    "bf16": BF16,
}
every_format = pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)


def encoded(format: Format, values: Floats) -> bytes:
    out = bytearray(format.encoded_bytes(values.size))
    format.encode(values, memoryview(out))
    return bytes(out)


def decoded(format: Format, data: bytes, count: int) -> Floats:
    out = np.empty(count, np.float32)
    format.decode(data, count, out)
    return out


# -- definitions, one block at a time, as the formats' docstrings say it -----------------------------------------------


def half(value: np.float32) -> tuple[bytes, np.float32]:
    """A bf16 number: its bytes and its value; of the two nearest, the even one."""
    bits = int(value.view(np.uint32))
    down, rest = bits >> 16, bits & 0xFFFF
    near = down + (rest > 0x8000 or (rest == 0x8000 and down % 2 == 1))
    return near.to_bytes(2, "little"), np.array([near << 16], np.uint32).view(np.float32)[0]


def bits_of(fields: list[int], width: int) -> bytes:
    number = sum(field << width * place for place, field in enumerate(fields))
    return number.to_bytes(-(-width * len(fields) // 8), "little")


def absmax_of(block: Floats) -> np.float32:
    absmax = np.abs(block).max()
    return absmax if absmax >= TINY else np.float32(0)


def int8_block(block: Floats) -> tuple[bytes, ...]:
    absmax = absmax_of(block)
    scale = np.minimum(absmax / np.float32(127), LARGEST / np.float32(127))
    inverse = np.float32(127) / absmax if absmax > 0 else np.float32(0)
    return np.float32(scale).tobytes(), np.rint(block * inverse).astype(np.int8).tobytes()


def int4_block(block: Floats) -> tuple[bytes, ...]:
    raw, scale = half(np.minimum(absmax_of(block) / np.float32(7), np.float32(2.0**124)))
    inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
    codes = np.clip(np.rint(block * inverse), -7, 7).astype(int)
    return raw, bits_of([int(code) % 16 for code in codes], 4)


def int2_block(block: Floats) -> tuple[bytes, ...]:
    absmax = absmax_of(block)
    steps = np.rint(block * (np.float32(511) / absmax)) if absmax > 0 else np.zeros_like(block)
    square = sum(int(step) ** 2 for step in steps)
    rms = np.sqrt(np.float32(square) / np.float32(block.size)) * (min(absmax, LARGEST) / np.float32(511))
    raw, scale = half(np.minimum(rms, np.float32(2.0**126)))
    limit = scale * np.float32(0.9816)
    codes = [int(value < 0) | int(abs(value) > limit) << 1 if scale > 0 else 0 for value in block]
    return raw, bits_of(codes, 2)


def topk_block(k: int) -> Callable[[Floats], tuple[bytes, ...]]:
    def encode(block: Floats) -> tuple[bytes, ...]:
        absmax, room = absmax_of(block), min(k, block.size)
        values = [float(value) if absmax > 0 else 0.0 for value in block]
        order = sorted(range(block.size), key=lambda place: (-abs(values[place]), place))[:room]
        order = [place for place in order if values[place] != 0]
        large, spare = set(order[: (len(order) + 1) // 2]), [0] * (room - len(order))
        factor = np.float32(65535) / absmax if absmax > 0 else np.float32(0)
        means = b""
        for half_of in ([place for place in order if place in large], [place for place in order if place not in large]):
            total = sum(int(np.rint(np.abs(np.float32(values[place])) * factor)) for place in half_of)
            mean = np.float32(total) / np.float32(max(1, len(half_of))) * (min(absmax, LARGEST) / np.float32(65535))
            means += half(np.minimum(mean, LARGEST))[0]
        places = sorted(order)
        signs = [int(values[place] < 0) | int(place in large) << 1 for place in places]
        return means + len(order).to_bytes(2, "little"), bits_of(places + spare, 12), bits_of(signs + spare, 2)

    return encode


def bf16_block(block: Floats) -> tuple[bytes, ...]:
    return (b"".join(bf16_value(value) for value in block),)


def bf16_value(value: np.float32) -> bytes:
    if abs(value) < TINY:
        return bytes(2)
    bits = int.from_bytes(half(np.minimum(np.abs(value), LARGEST))[0], "little")
    return (bits | int(value < 0) << 15).to_bytes(2, "little")


DEFINITIONS: dict[int, Callable[[Floats], tuple[bytes, ...]]] = {
    1: int8_block, 2: int4_block, 3: int2_block, 5: bf16_block
}  # fmt: skip


def by_definition(format: Format, values: Floats) -> bytes:
    block = topk_block(format.parameter) if isinstance(format, TopK) else DEFINITIONS[format.number]
    blocks = [block(values[start : start + format.block]) for start in range(0, values.size, format.block)]
    header = b"MHC\x01" + format.number.to_bytes(2, "little") + format.parameter.to_bytes(2, "little") + bytes(8)
    return header + b"".join(b"".join(section) for section in zip(*blocks, strict=True))


# -- sizes and values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("int8", [5, 260, 265, 66560]),
        ("int4", [3, 136, 139, 34816]),
        ("int2", [3, 72, 75, 18432]),
        ("top64", [9, 6 + 96 + 16, 6 + 96 + 16, 16 * 118]),
        ("top256", [9, 6 + 384 + 64, 6 + 384 + 64, 16 * 454]),
        ("bf16", [2, 512, 514, 131072]),
    ],
)
def test_the_size_follows_from_the_number_of_values(name: str, sizes: list[int]) -> None:
    format = FORMATS[name]
    assert [format.encoded_bytes(count) - HEADER_BYTES for count in (1, 256, 257, 1 << 16)] == sizes


@every_format
@settings(max_examples=100, deadline=None)
@given(values=vectors())
def test_bytes_are_those_of_the_definition_and_sane_for_all_finite_values(format: Format, values: Floats) -> None:
    with np.errstate(under="ignore"):
        data = encoded(format, values)
        assert data == by_definition(format, values)
    assert format.is_sane(data, values.size)
    assert np.abs(decoded(format, data, values.size)).max() <= LARGEST


@every_format
def test_any_range_of_whole_blocks_is_encoded_decoded_and_placed_alone(format: Format) -> None:
    count = 3 * 4096 + 77
    values = normal(count)
    whole = encoded(format, values)
    for start, stop in ((0, 4096), (4096, 3 * 4096), (2 * 4096, count)):
        out = bytearray(whole[:HEADER_BYTES]) + bytearray(len(whole) - HEADER_BYTES)
        format.encode_range(values[start:stop], out, count, start)
        placed = bytearray(whole[:HEADER_BYTES]) + bytearray(len(whole) - HEADER_BYTES)
        format.place(encoded(format, values[start:stop]), stop - start, placed, count, start)
        assert out == placed
        some = np.empty(stop - start, np.float32)
        format.decode(out, count, some, start)
        assert np.array_equal(some, decoded(format, whole, count)[start:stop])


@every_format
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 299, PIECE + 3])
def test_values_that_are_not_finite_are_refused(format: Format, bad: float, place: int) -> None:
    values = normal(PIECE + 300)
    values[place] = bad
    with pytest.raises(ValueError, match="not finite"):
        encoded(format, values)


@every_format
@pytest.mark.parametrize("count", [1, 300, 5000, PIECE + 70])
def test_the_sum_of_squares_is_that_of_the_decoded_values(format: Format, count: int) -> None:
    data = encoded(format, normal(count))
    values = decoded(format, data, count).astype(np.float64)
    assert format.sum_of_squares(data, count) == pytest.approx(float((values * values).sum()), rel=1e-6)


# -- bytes from a peer -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_format
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_bytes_are_judged_without_an_error_and_sane_ones_decode_to_finite_values(
    format: Format, data: st.DataObject
) -> None:
    """Random bytes behind a right header, and right bytes with some bits flipped or the end cut off."""
    count = data.draw(st.integers(1, 600))
    right = encoded(format, normal(count))
    if data.draw(st.booleans()):
        body = data.draw(st.binary(min_size=len(right) - HEADER_BYTES, max_size=len(right) - HEADER_BYTES))
        raw = bytearray(right[:HEADER_BYTES] + body)
    else:
        raw = bytearray(right[: data.draw(st.integers(0, len(right)))] if data.draw(st.booleans()) else right)
        for place in data.draw(st.lists(st.integers(0, 8 * len(raw) - 1), max_size=4)) if raw else []:
            raw[place // 8] ^= 1 << place % 8
    for is_result in (False, True):
        if format.is_sane(raw, count, is_result=is_result):
            assert np.abs(decoded(format, bytes(raw), count)).max() <= LARGEST
            assert format.sum_of_squares(raw, count) >= 0


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def top(places: list[int], fields: list[int], magnitudes: bytes = b"\x80\x3f\x00\x3f", entries: int = 5) -> bytes:
    """Bytes of five values by top-64, the larger magnitude being 1 and the smaller 0.5."""
    head = encoded(TOP64, FIVE)[:HEADER_BYTES] + magnitudes + entries.to_bytes(2, "little")
    return head + bits_of(places, 12) + bits_of(fields, 2)


FIVE = normal(5)
NO_ENCODER = {
    "a NaN for an int8 scale": (INT8, 16, b"\x00\x00\xc0\x7f"),
    "an infinite int8 scale": (INT8, 16, b"\x00\x00\x80\x7f"),
    "a negative int8 scale": (INT8, 16, b"\x00\x00\x80\xbf"),
    "-0 for an int8 scale": (INT8, 16, b"\x00\x00\x00\x80"),
    "an int8 scale that is too large": (INT8, 16, np.float32(2.0**121).tobytes()),
    "an int8 scale that is too small": (INT8, 16, np.float32(2.0**-108).tobytes()),
    "code -128": (INT8, 20, b"\x80"),
    "code -8 in a lower half": (INT4, 18, b"\x18"),
    "code -8 in a higher half": (INT4, 18, b"\x81"),
    "spare bits of int4": (INT4, 20, b"\x11"),
    "a NaN for an int4 scale": (INT4, 16, b"\xc0\x7f"),
    "-0 for an int4 scale": (INT4, 16, b"\x00\x80"),
    "an int4 scale that is too large": (INT4, 16, b"\x81\x7d"),
    "spare bits of int2": (INT2, 19, b"\x04"),
    "a negative int2 scale": (INT2, 16, b"\x80\xbf"),
    "an infinite bf16": (BF16, 16, b"\x80\x7f"),
    "a NaN for a bf16": (BF16, 18, b"\xc0\xff"),
    "-0 for a bf16": (BF16, 16, b"\x00\x80"),
    "a bf16 that is too large": (BF16, 16, b"\x7f\x7f"),
    "a bf16 that is too small": (BF16, 16, b"\x7f\x0d"),
}


@pytest.mark.parametrize("name", NO_ENCODER)
def test_bytes_that_no_encoder_makes_are_not_sane(name: str) -> None:
    format, at, new = NO_ENCODER[name]
    right = encoded(format, FIVE)
    assert format.is_sane(right, 5) and not format.is_sane(changed(right, at, new), 5)


def test_entries_that_no_encoder_makes_are_not_sane() -> None:
    places, fields = [0, 1, 2, 3, 4], [2, 3, 2, 1, 0]
    assert TOP64.is_sane(top(places, fields), 5)
    for wrong in ([0, 1, 2, 3, 5], [0, 1, 3, 2, 4], [0, 0, 1, 2, 3]):
        assert not TOP64.is_sane(top(wrong, fields), 5)
    assert not TOP64.is_sane(top(places, [2, 2, 0, 0, 0]), 5), "less than half of the entries are large"
    assert not TOP64.is_sane(top(places, fields, b"\x00\x3f\x80\x3f"), 5), "the smaller magnitude is larger"
    assert not TOP64.is_sane(top(places, fields, b"\x80\xbf\x00\x3f"), 5) and not TOP64.is_sane(
        top(places, fields, b"\x80\x7f\x00\x3f"), 5
    )
    data = top(places, fields)
    assert not TOP64.is_sane(changed(data, 16 + 6 + 7, b"\xf0"), 5), "spare bits behind the places"
    assert not TOP64.is_sane(data[:-1] + b"\x0c", 5), "spare bits behind the signs"
    assert TOP64.is_sane(top([0, 3, 0, 0, 0], [2, 1, 0, 0, 0], entries=2), 5), "three values are zero"
    for spare in ([0, 3, 4, 0, 0], [2, 1, 1, 0, 0]), ([0, 3, 4, 0, 0], [2, 1, 0, 0, 0]), ([0, 3, 0, 0, 0], [2, 1, 1, 0, 0]):
        assert not TOP64.is_sane(top(*spare, entries=2), 5), "more entries than their number"
    assert not TOP64.is_sane(top(places, fields, entries=6), 5)
    assert not TOP64.is_sane(top([0] * 5, [0] * 5, entries=0), 5)
    assert not TOP64.is_sane(top([0] * 5, [2, 0, 0, 0, 0], entries=1), 5), "one entry has one magnitude"
    assert TOP64.is_sane(top([0] * 5, [0] * 5, bytes(4), entries=0), 5)


@every_format
def test_a_header_of_anything_else_is_not_sane(format: Format) -> None:
    right = encoded(format, FIVE)
    assert format.is_sane(right, 5)
    assert not any(format.is_sane(right, count) for count in (4, 6)) or format.block > 5
    assert not format.is_sane(right[:-1], 5) and not format.is_sane(b"", 5) and not format.is_sane(right + b"\0", 5)
    for at in range(8):
        assert not format.is_sane(changed(right, at, bytes([right[at] ^ 1])), 5)
    for other in FORMATS.values():
        assert other is format or not other.is_sane(right, 5)


@every_format
def test_only_results_have_sums_of_squares(format: Format) -> None:
    data = bytearray(encoded(format, FIVE))
    assert squares_in(data) == (0, 0) and format.is_sane(data, 5, is_result=True)
    write_squares(data, Squares(1.5, 1e300))
    assert squares_in(data) == (1.5, float(np.finfo(np.float32).max))
    assert format.is_sane(data, 5, is_result=True) and not format.is_sane(data, 5)
    for bad in (np.nan, np.inf, -1.0, -0.0):
        for at in (8, 12):
            assert not format.is_sane(changed(bytes(data), at, np.float32(bad).tobytes()), 5, is_result=True)


# -- error feedback ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, codec in LADDER.items() if codec.feedback is not None])
def test_the_residual_is_what_the_format_left_out(name: str) -> None:
    codec, count = LADDER[name], PIECE + 4096 + 77
    format, residual, difference = codec.contribution, normal(count, 1), normal(count, 2)
    residual[5], residual[69_000] = np.nan, -np.inf
    kept = np.where(np.isfinite(residual), residual, 0).astype(np.float32)
    whole = difference + np.float32(codec.feedback or 0) * kept
    out = bytearray(encoded(format, np.zeros(count, np.float32)))
    codec.encode_range(difference.copy(), residual, out, count, 0)
    assert bytes(out) == encoded(format, whole)
    assert np.array_equal(residual, whole - decoded(format, bytes(out), count))


def test_a_codec_that_is_not_known_is_named() -> None:
    assert codec_named("int4") is LADDER["int4"]
    with pytest.raises(ValueError, match="unknown codec 'int3'"):
        codec_named("int3")


# -- the same everywhere -----------------------------------------------------------------------------------------------


def awkward(count: int) -> Floats:
    """Values from whole numbers alone, of all magnitudes, so that no library's generator is in the golden bytes."""
    place = np.arange(count, dtype=np.int64)
    whole = (place * 104729 + place * place * 31) % 2003 - 1001
    return (whole.astype(np.float64) * 2.0 ** -((place // 64) % 40)).astype(np.float32)


GOLDEN = {
    "int8": "9680dd9c7ee6b4ba",
    "int4": "1d988d8826896896",
    "int2": "220a27ef74457bf1",
    "top64": "130a775f915b8297",
    "top256": "371fd14272601eac",
    "bf16": "27c833e8cc5adf49",
}


@pytest.mark.parametrize("name", FORMATS)
def test_golden_bytes(name: str) -> None:
    """The same on every computer and in every version: peers that differ here cannot train together."""
    data = encoded(FORMATS[name], awkward(2 * PIECE + 333))
    assert hashlib.blake2b(data, digest_size=8).hexdigest() == GOLDEN[name]


def test_norm_does_not_overflow_where_fp32_would() -> None:
    assert norm(np.full(4, 1e30, np.float32)) == pytest.approx(2e30)
    assert norm(normal(3 * PIECE + 5)) == pytest.approx(float(np.linalg.norm(normal(3 * PIECE + 5))))
