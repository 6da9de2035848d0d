"""Averages are those of the formula, in the order given, whatever the pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import codec
from kernels.aggregate import shares_of, weighted_mean
from tests.kernels.test_codec import by_definition, decoded, encoded
from tests.kernels.vectors import Floats, normal, vectors


def mean_of(parts: list[bytes], weights: list[int], count: int) -> bytes:
    out = bytearray(codec.encoded_bytes(count))
    weighted_mean([memoryview(part) for part in parts], weights, count, memoryview(out))
    return bytes(out)


def by_formula(parts: list[bytes], weights: list[int], count: int) -> bytes:
    total = np.zeros(count, np.float32)
    for part, share in zip(parts, shares_of(weights), strict=True):
        scales, codes = codec.parts(part, count)
        total = total + codes.astype(np.float32) * np.repeat(scales * share, codec.BLOCK)[:count]
    return by_definition(total)


@pytest.mark.parametrize("count", [1, 255, 256, 257, codec.PIECE, codec.PIECE + 1, 2 * codec.PIECE + 300])
@pytest.mark.parametrize("members", [1, 2, 5])
def test_mean_is_the_formula_bit_for_bit(count: int, members: int) -> None:
    parts = [encoded(normal(count, seed)) for seed in range(members)]
    weights = [3 + 1000 * seed for seed in range(members)]
    assert mean_of(parts, weights, count) == by_formula(parts, weights, count)


@settings(deadline=None)
@given(vectors(), st.lists(st.integers(1, 2**40), min_size=1, max_size=5))
def test_mean_of_sane_parts_is_sane(values: Floats, weights: list[int]) -> None:
    parts = [encoded(np.roll(values, place)) for place in range(len(weights))]
    mean = mean_of(parts, weights, values.size)
    assert mean == by_formula(parts, weights, values.size)
    assert codec.is_sane(mean, values.size)


def test_largest_values_of_many_members_do_not_overflow() -> None:
    part = np.full(3, codec.LARGEST_SCALE, "<f4").tobytes() + bytes([127]) * 600
    assert codec.is_sane(part, 600)
    assert codec.is_sane(mean_of([part] * 64, [7] * 64, 600), 600)


def test_mean_is_weighted_by_tokens() -> None:
    parts = [encoded(np.full(10, value, np.float32)) for value in (1.0, 5.0)]
    np.testing.assert_allclose(decoded(mean_of(parts, [300, 100], 10), 10), 2.0, rtol=1e-6)


def test_one_member_alone_is_returned_nearly_as_it_came() -> None:
    part = encoded(normal(700))
    assert codec.parts(mean_of([part], [9], 700), 700)[1].tobytes() == codec.parts(part, 700)[1].tobytes()


def test_parts_that_are_not_sane_are_a_bug_of_the_caller() -> None:
    part = encoded(normal(300))
    with pytest.raises(AssertionError):
        mean_of([part, np.float32(np.nan).tobytes() + part[4:]], [1, 1], 300)
    with pytest.raises(AssertionError):
        mean_of([part], [0], 300)
