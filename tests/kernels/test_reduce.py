"""Averages are those of the formula, in the order given, whatever the pieces and formats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.aggregate import aggregate, shares_of
from kernels.codecs.format import HEADER_BYTES, squares_in
from kernels.codecs.ladder import LADDER, Codec
from tests.kernels.test_codecs import by_definition, decoded, encoded
from tests.kernels.vectors import Floats, normal, vectors

every_codec = pytest.mark.parametrize("codec", LADDER.values(), ids=LADDER)


def mean_of(codec: Codec, parts: list[bytes], weights: list[int], count: int) -> bytes:
    out = bytearray(codec.result.encoded_bytes(count))
    aggregate("mean", codec, [memoryview(part) for part in parts], weights, count, memoryview(out))
    return bytes(out)


def by_formula(codec: Codec, parts: list[bytes], weights: list[int], count: int) -> bytes:
    """The body of the mean."""
    total, value = np.zeros(count, np.float32), np.empty(count, np.float32)
    for part, share in zip(parts, shares_of(weights), strict=True):
        codec.contribution.decode(part, count, value, factor=share)
        total = total + value
    return by_definition(codec.result, total)[HEADER_BYTES:]


@pytest.mark.slow
@every_codec
@settings(deadline=None, max_examples=50)
@given(values=vectors(), weights=st.lists(st.integers(1, 2**40), min_size=1, max_size=5))
def test_mean_of_sane_parts_is_sane(codec: Codec, values: Floats, weights: list[int]) -> None:
    parts = [encoded(codec.contribution, np.roll(values, place)) for place in range(len(weights))]
    mean = mean_of(codec, parts, weights, values.size)
    assert mean[HEADER_BYTES:] == by_formula(codec, parts, weights, values.size)
    assert codec.result.is_sane(mean, values.size, is_result=True)


@every_codec
def test_the_header_of_a_result_tells_how_much_the_members_agree(codec: Codec) -> None:
    same = [encoded(codec.contribution, normal(8192))] * 4
    other = [encoded(codec.contribution, normal(8192, seed)) for seed in range(4)]
    for parts in (same, other):
        squares = squares_in(mean_of(codec, parts, [1, 2, 3, 4], 8192))
        each = [codec.contribution.sum_of_squares(part, 8192) for part in parts]
        mean = sum(weight * square for weight, square in zip((1, 2, 3, 4), each, strict=True)) / 10
        assert squares.members == pytest.approx(mean, rel=1e-6)
        result = decoded(codec.result, mean_of(codec, parts, [1, 2, 3, 4], 8192), 8192).astype(np.float64)
        assert squares.result == pytest.approx(float(result @ result), rel=1e-6)
    agreeing, apart = (squares_in(mean_of(codec, parts, [1] * 4, 8192)) for parts in (same, other))
    assert agreeing.result == pytest.approx(agreeing.members, rel=0.02)
    assert apart.result < 0.4 * apart.members
