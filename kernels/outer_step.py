"""Rate and momentum of a round's outer step: a pure function of the contributions and H, with the same bits everywhere.

They depend on the members for the following reason. The mean of n members' differences has less noise than one difference,
but is not longer, because each member took steps that fit its own noisy gradients. Data-parallel training on the n batches
goes further in the directions on which the batches agree, the more so the more noise there is: if the differences have
nothing in common, n members go n times as far, and if they are equal, no further than one. Momentum makes up for this, and
only in lasting directions: it multiplies these by rate / (1 - momentum), but noise and steep directions by little more than
the rate. So the step follows from the number of independent members (`independent_members`), which is 1 if all differences
are equal:

  * one: rate 1, momentum 0. The parameters become the mean of the members'; plain training has nothing to make up for.
  * up to `SEVERAL`: momentum remembers `REMEMBERED` rounds for each member beyond the first, and the rate falls with the
    square of the momentum to the value of `RATES` for H. This value is low for short rounds, because steep directions need
    many rounds to settle, and higher for long rounds, in which they settle before the averaging. With rounds in the
    hundreds the members agree so well that few count as independent, and the memory is twice as long.
  * more than `SEVERAL`: momentum stays, and the rate grows with the square root, up to `HIGHEST`.
  * sparse contributions: no momentum, and a rate that grows with the members (`sparse_rate`).
  * rollouts: the mean. Rollouts are some versions old, and momentum would take the policy too far. Several
    members take longer inner steps instead (`sharing_rate`).

The published recipe, rate 0.7 with momentum 0.9, was tuned for long rounds and several members. Charles et al. 2025
("Scaling laws for DiLoCo", arXiv 2503.09799) find that the best rate grows with the number of members, for any size of
model. The numbers here are from `python -m benchmarks.diloco` and `python -m benchmarks.convergence`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from kernels.codecs.format import PIECE, Floats, Format
from kernels.codecs.ladder import Codec
from kernels.codecs.sparse import TopK

# ------------------------------------------------------------------------------------------------------------------------
# Outer step: Nesterov SGD on the averaged pseudo-gradient (DiLoCo, Douillard et al. 2023).
#
#     m = mu * m + g;   theta = theta - lr * (g + mu * m)
#
# The operations are elementwise in fp32, in this order, each rounded once, so that every peer gets the same bits.


def nesterov_update(theta: Floats, momentum: Floats, gradient: Floats, lr: float, mu: float) -> None:
    """Update `theta` and `momentum` (fp32, same size) in place; `gradient` stays unchanged."""
    assert theta.size == momentum.size == gradient.size
    rate, decay = np.float32(lr), np.float32(mu)
    scratch = np.empty(min(PIECE, theta.size), np.float32)
    for start in range(0, theta.size, PIECE):
        t, m, g = (array[start : start + PIECE] for array in (theta, momentum, gradient))
        s = scratch[: t.size]
        np.multiply(m, decay, out=m)
        np.add(m, g, out=m)
        np.multiply(m, decay, out=s)
        np.add(g, s, out=s)
        np.multiply(s, rate, out=s)
        np.subtract(t, s, out=t)


def apply_result(theta: Floats, momentum: Floats, data: Any, format: Format, count: int, step: OuterStep) -> None:
    """Decode one chunk of a result, `count` values in `format`, and update its slice of the outer state.

    theta, momentum: fewer than `count` values if the chunk reaches beyond the parameters.  The caller must check that the
    bytes belong to a certified result; bytes that are not sane are a bug.
    """
    assert format.is_sane(data, count, is_result=True)
    gradient = np.empty(count, np.float32)
    format.decode(data, count, gradient)
    nesterov_update(theta, momentum, gradient[: theta.size], step.rate, step.momentum)


# ------------------------------------------------------------------------------------------------------------------------


SEVERAL = 4
REMEMBERED = ((100, Fraction(4)), (300, Fraction(8)))
"""Pairs (H, rounds that momentum remembers for each member beyond the first)."""
RATES = ((10, Fraction(1, 4)), (30, Fraction(2, 5)), (100, Fraction(7, 10)))
"""Pairs (H, rate for `SEVERAL` independent members).  In both tables, values between pairs are interpolated linearly."""
HIGHEST = Fraction(7, 8)
"""Rate for very many members."""
GRID = 1024
"""Denominator of rate and momentum.  Multiples of 1/1024 are exact in fp32, so the result does not depend on a library's
rounding."""


class OuterStep(NamedTuple):
    """Rate and momentum of one application of `kernels.outer_step.nesterov_update`."""

    rate: float
    momentum: float


MEAN = OuterStep(1.0, 0.0)
"""Outer step after which the parameters are the mean of the members'."""


SHARING_MOST = Fraction(8)
"""Number of members above which the rate on shared rollouts does not grow; more were not measured."""


def sharing_rate(weights: Sequence[int]) -> float:
    """Return the factor on each member's inner learning rate if members of these weights share a version's rollouts.

    Each learns from a part of the rollouts, so from noisier gradients, which Adam scales to steps of the same length: what
    they have in common is shorter by the square root of their number than in one trainer's steps.  The factor makes up for
    this, for at most `SHARING_MOST` members.  The same factor on the mean falls short, and so does one that follows from the
    agreement (`python -m benchmarks.rl_trainers`).
    """
    return float(_root(min(SHARING_MOST, effective_members(weights))))


SPARSE_MOST = Fraction(8)
"""Number of members above which the rate with sparse contributions does not grow."""


def automatic(weights: Sequence[int], inner_steps: int, codec: Codec, agreement: Fraction) -> OuterStep:
    """Return the outer step after a round of H = `inner_steps` with members of these weights (`aggregate.weights_of`).

    agreement: agreement of the members, from 0 to 1 (`kernels.aggregate.agreement_of`).
    """
    effective = effective_members(weights)
    members, several = independent_members(effective, agreement), _between(RATES, inner_steps)
    if isinstance(codec.contribution, TopK):
        return OuterStep(_on_grid(sparse_rate(effective, members)), 0.0)
    momentum = _momentum(members, _between(REMEMBERED, inner_steps))
    if members > SEVERAL:
        return OuterStep(_on_grid(min(HIGHEST, several * _root(members / SEVERAL))), _on_grid(momentum))
    share = min(Fraction(1), momentum / _momentum(Fraction(SEVERAL), REMEMBERED[0][1]))
    return OuterStep(_on_grid(1 - (1 - several) * share**2), _on_grid(momentum))


def _momentum(members: Fraction, rounds: Fraction) -> Fraction:
    """Return the momentum that remembers `rounds` rounds for each member beyond the first, of at most `SEVERAL`."""
    remembered = rounds * (min(members, Fraction(SEVERAL)) - 1)
    return remembered / (1 + remembered)


def independent_members(members: Fraction, agreement: Fraction) -> Fraction:
    """Return the number of independent members among `members`, from 1 (all differences are equal) to all of them.

    If the differences have a common part and independent noise, and c is the cosine of two of them, then the result's square
    over the members' mean square, the agreement, is 1 / n + (1 - 1 / n) c.  The number is the inverse of the agreement.
    """
    return min(members, 1 / agreement) if agreement else members


def effective_members(weights: Sequence[int]) -> Fraction:
    """Return the effective number of members, n = (sum w)^2 / (sum w^2), at least 1; 1 if no weight is positive."""
    positive = [weight for weight in weights if weight > 0]
    return Fraction(sum(positive) ** 2, sum(weight * weight for weight in positive)) if positive else Fraction(1)


def _between(table: Sequence[tuple[int, Fraction]], inner_steps: int) -> Fraction:
    """Return the value for H = `inner_steps`."""
    for (low, before), (high, after) in itertools.pairwise(table):
        if inner_steps <= high:
            return before + (after - before) * Fraction(max(inner_steps - low, 0), high - low)
    return table[-1][1]


def sparse_rate(members: Fraction, independent: Fraction) -> Fraction:
    """Return the rate with sparse contributions of so many effective members: three quarters of them, within limits.

    Of each block a member sends only a few values, most of them sent by no other member, so the mean over all members is
    short; and what it does not send comes late, by error feedback, which a rate above 1 makes up for in part.  With momentum
    the loss is higher (`python -m benchmarks.ladder`).  If members send the same values, so that fewer than half of them are
    independent, the mean is longer and the rate lower.
    """
    return Fraction(3, 2) * max(Fraction(1), min(members / 2, SPARSE_MOST / 2, independent))


def _root(value: Fraction) -> Fraction:
    """Return the square root, rounded down to a multiple of 1/1024^2, in integer arithmetic."""
    return Fraction(isqrt(int(value * GRID**4)), GRID**2)


def _on_grid(value: Fraction) -> float:
    return round(value * GRID) / GRID
