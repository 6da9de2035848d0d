"""The codec by its definition, on ordinary values, on edges, and on bytes from a peer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import codec
from tests.kernels.vectors import Floats, normal, vectors


def encoded(values: Floats) -> bytes:
    out = bytearray(codec.encoded_bytes(values.size))
    codec.encode(values, memoryview(out))
    return bytes(out)


def decoded(data: bytes, count: int) -> Floats:
    out = np.empty(count, np.float32)
    codec.decode(data, count, out)
    return out


def by_definition(values: Floats) -> bytes:
    """One block at a time, as the codec's docstring says it."""
    scales, codes = b"", b""
    for start in range(0, values.size, codec.BLOCK):
        block = values[start : start + codec.BLOCK]
        absmax = np.abs(block).max()
        if absmax < codec.TINY:
            absmax = np.float32(0)
        scale = min(absmax / np.float32(127), codec.LARGEST_SCALE)
        inverse = np.float32(127) / absmax if absmax > 0 else np.float32(0)
        scales += np.float32(scale).tobytes()
        codes += np.rint(block * inverse).astype(np.int8).tobytes()
    return scales + codes


def test_size_is_a_byte_a_value_and_four_a_block() -> None:
    assert [codec.encoded_bytes(count) for count in (1, 256, 257, 1 << 20)] == [5, 260, 265, (1 << 20) + (1 << 14)]


@settings(max_examples=200, deadline=None)
@given(vectors())
def test_bytes_are_those_of_the_definition_and_sane_for_all_finite_values(values: Floats) -> None:
    data = encoded(values)
    assert data == by_definition(values)
    assert codec.is_sane(data, values.size)
    assert np.isfinite(decoded(data, values.size)).all()


@pytest.mark.parametrize("count", [1, 256, codec.PIECE - 1, codec.PIECE, codec.PIECE + 1, 2 * codec.PIECE + 257])
def test_pieces_leave_no_seam(count: int) -> None:
    values = normal(count)
    assert encoded(values) == by_definition(values)
    error = np.abs(decoded(encoded(values), count) - values)
    absmax = np.maximum.reduceat(np.abs(values), np.arange(0, count, codec.BLOCK))
    assert (error <= np.repeat(absmax, codec.BLOCK)[:count] / 253).all()


def test_relative_error_on_normal_values_is_below_one_percent() -> None:
    values = normal(1 << 16)
    assert codec.norm(decoded(encoded(values), values.size) - values) < 0.01 * codec.norm(values)


def test_ties_go_to_even() -> None:
    values = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert list(codec.parts(encoded(values), values.size)[1]) == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-38, 2.0**-101])
def test_blocks_too_small_for_a_scale_are_zeros(value: float) -> None:
    assert not any(encoded(np.full(300, value, np.float32)))


def test_values_beyond_the_largest_are_encoded_as_the_largest() -> None:
    top = np.finfo(np.float32).max
    values = decoded(encoded(np.array([top, -top], np.float32)), 2)
    assert list(values) == [127 * 2.0**120, -127 * 2.0**120]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 299, codec.PIECE + 3])
def test_values_that_are_not_finite_are_refused(bad: float, place: int) -> None:
    values = normal(codec.PIECE + 300)
    values[place] = bad
    with pytest.raises(ValueError, match="not finite"):
        encoded(values)


@settings(deadline=None)
@given(st.binary(max_size=700), st.integers(0, 600))
def test_any_bytes_are_judged_without_an_error_and_sane_ones_decode_to_finite_values(data: bytes, count: int) -> None:
    if codec.is_sane(data, count) and count:
        assert np.isfinite(decoded(data, count)).all()


def test_bytes_that_no_encoder_makes_are_not_sane() -> None:
    data = encoded(normal(300))
    assert codec.is_sane(data, 300)
    assert not codec.is_sane(data, 299) and not codec.is_sane(data[:-1], 300) and not codec.is_sane(b"", 300)
    for scale in (np.nan, np.inf, -1e-9, 2.0**121):
        assert not codec.is_sane(np.float32(scale).tobytes() + data[4:], 300)
    assert not codec.is_sane(data[:-1] + b"\x80", 300)


def test_norm_does_not_overflow_where_fp32_would() -> None:
    assert codec.norm(np.full(4, 1e30, np.float32)) == pytest.approx(2e30)
    assert codec.norm(normal(3 * codec.PIECE + 5)) == pytest.approx(float(np.linalg.norm(normal(3 * codec.PIECE + 5))))
