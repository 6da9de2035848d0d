"""The outer step follows from the members, and is applied bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import outer_step
from kernels.codecs.format import PIECE, Squares
from kernels.codecs.ladder import INT4, LADDER
from kernels.outer_step import (
    GRID,
    HIGHEST,
    RATES,
    SEVERAL,
    SPARSE_MOST,
    OuterStep,
    apply_result,
    effective_members,
    nesterov_update,
    sharing_rate,
)
from tests.kernels.test_codecs import changed, decoded, encoded
from tests.kernels.vectors import normal

claims = st.lists(st.integers(1, 2**40), min_size=1, max_size=256)
lengths = st.integers(1, 10_000)


APART = Fraction(0)
"""Agreement of members whose differences have nothing in common, however many they are."""


def automatic(weights: Sequence[int], inner_steps: int, codec: str = "int4", agreement: Fraction = APART) -> OuterStep:
    return outer_step.automatic(weights, inner_steps, LADDER[codec], agreement)


@given(claims, lengths, st.sampled_from(["int8", "int2", "bf16"]))
def test_of_the_codec_only_sparse_contributions_matter(weights: list[int], inner_steps: int, codec: str) -> None:
    assert automatic(weights, inner_steps, codec) == automatic(weights, inner_steps)


@given(claims, lengths)
def test_sparse_contributions_have_no_momentum_and_a_rate_that_grows_with_the_members(
    weights: list[int], inner_steps: int
) -> None:
    rate, momentum = automatic(weights, inner_steps, "top64")
    assert momentum == 0 and 1.5 <= rate <= 0.75 * float(SPARSE_MOST) and (rate * GRID).is_integer()
    for agreement, wanted in ((Fraction(1, 4), 3.0), (Fraction(1, 2), 3.0), (Fraction(2, 3), 2.25), (Fraction(1), 1.5)):
        assert automatic([7] * 4, inner_steps, "top64", agreement=agreement) == (wanted, 0.0)


@given(claims)
def test_who_shares_rollouts_has_the_root_of_the_members_on_its_rate(weights: list[int]) -> None:
    assert 1 <= sharing_rate(weights) <= 8**0.5
    assert [sharing_rate([7] * members) for members in (0, 1, 4, 64)] == [1.0, 1.0, 2.0, pytest.approx(8**0.5)]
    assert sharing_rate([4096, 4096, 1, 1]) == pytest.approx(2**0.5, abs=0.002), "small weights count little"


def test_with_one_member_the_parameters_become_the_members_and_old_momentum_is_forgotten() -> None:
    theta, momentum, local = normal(1000, 1), normal(1000, 2), normal(1000, 3)
    data = encoded(INT4, theta - local)
    wanted = theta - decoded(INT4, data, theta.size)
    apply_result(theta, momentum, data, INT4, theta.size, automatic([4096], 10))
    assert theta.tobytes() == wanted.tobytes()
    assert np.array_equal(momentum, decoded(INT4, data, theta.size))


@pytest.mark.slow
@given(claims, lengths)
def test_whatever_members_claim_the_step_stays_in_its_range(tokens: list[int], inner_steps: int) -> None:
    rate, momentum = automatic(tokens, inner_steps)
    assert 1 <= effective_members(tokens) <= len(tokens)
    assert float(RATES[0][1]) <= rate <= 1 and 0 <= momentum <= automatic([1] * SEVERAL, inner_steps).momentum < 1
    assert rate == np.float32(rate) and momentum == np.float32(momentum)
    assert (rate * GRID).is_integer() and (momentum * GRID).is_integer()


@pytest.mark.parametrize("inner_steps", [1, 10, 30, 100, 500])
def test_the_more_members_the_further_a_steady_direction_is_followed(inner_steps: int) -> None:
    steps = [automatic([4096] * members, inner_steps) for members in range(1, 257)]
    momenta = [step.momentum for step in steps]
    assert momenta == sorted(momenta) and max(momenta) == automatic([1] * SEVERAL, inner_steps).momentum
    gains = [step.rate / (1 - step.momentum) for step in steps]
    assert gains == sorted(gains) and gains[0] == 1 and gains[:5] == sorted(set(gains[:5]))


def test_records_without_tokens_divide_by_nothing() -> None:
    for tokens in ([], [0], [0, 0], [-1, 0]):
        assert automatic(tokens, 10) == (1.0, 0.0)
    assert automatic([0, 5, 5], 10) == automatic([5, 5], 10)


def test_known_values() -> None:
    """A change of any of these is a change of the protocol: peers of two versions would part."""
    known = {
        (1, 10): (1024, 0),
        (2, 10): (447, 819),
        (3, 30): (454, 910),
        (4, 100): (717, 945),
        (8, 10): (362, 945),
        (8, 30): (579, 945),
        (256, 100): (896, 945),
    }
    for (members, inner_steps), (rate, momentum) in known.items():
        assert automatic([4096] * members, inner_steps) == (rate / GRID, momentum / GRID)
    assert automatic([4096] * 256, 1) == (float(HIGHEST), 945 / GRID)


def test_members_whose_differences_are_equal_are_one_member() -> None:
    assert automatic([4096] * 8, 30, agreement=Fraction(1)) == (1.0, 0.0)
    assert automatic([4096] * 8, 30, agreement=Squares(5.0, 10.0).agreement) == automatic([4096] * 2, 30)
    assert Squares(6.0, 5.0).agreement == 1, "clipping can make a result longer"
    assert Squares(0.0, 5.0).agreement == 1, "no result, no step"


@pytest.mark.slow
@given(claims, lengths, st.fractions(0, 1), st.fractions(0, 1))
def test_the_less_members_agree_the_more_momentum(
    tokens: list[int], inner_steps: int, one: Fraction, other: Fraction
) -> None:
    less, more = sorted((one, other))
    low, high = (automatic(tokens, inner_steps, agreement=each) for each in (more, less))
    assert low.momentum <= high.momentum <= automatic(tokens, inner_steps).momentum


# -- applying it ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, PIECE, PIECE + 7])
@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_update_is_the_formula_bit_for_bit(count: int, mu: float) -> None:
    theta, momentum, gradient = normal(count, 1), normal(count, 2), normal(count, 3)
    lr, decay = np.float32(0.7), np.float32(mu)
    wanted_momentum = momentum * decay + gradient
    wanted_theta = theta - (gradient + wanted_momentum * decay) * lr
    kept = gradient.copy()
    nesterov_update(theta, momentum, gradient, 0.7, mu)
    assert theta.tobytes() == wanted_theta.tobytes() and momentum.tobytes() == wanted_momentum.tobytes()
    assert gradient.tobytes() == kept.tobytes()


def test_applying_chunks_one_by_one_is_applying_the_whole() -> None:
    count, chunk = 3000, 1024
    theta, momentum, gradient = normal(count, 1), normal(count, 2), normal(count, 3)
    data = encoded(INT4, gradient)
    whole_theta, whole_momentum = theta.copy(), momentum.copy()
    nesterov_update(whole_theta, whole_momentum, decoded(INT4, data, count), 0.7, 0.9)
    for start in range(0, count, chunk):
        span = slice(start, start + chunk)
        apply_result(theta[span], momentum[span], encoded(INT4, gradient[span]), INT4, len(theta[span]), OuterStep(0.7, 0.9))
    assert theta.tobytes() == whole_theta.tobytes() and momentum.tobytes() == whole_momentum.tobytes()


def test_bytes_that_are_not_sane_change_nothing() -> None:
    theta, momentum = normal(300, 1), normal(300, 2)
    before = theta.tobytes() + momentum.tobytes()
    bad = changed(encoded(INT4, normal(300)), 16, b"\x80\x7f")
    with pytest.raises(AssertionError):
        apply_result(theta, momentum, bad, INT4, theta.size, OuterStep(0.7, 0.9))
    assert theta.tobytes() + momentum.tobytes() == before
