"""Rate and momentum of a round's outer step: a pure function of its members' weights and of H, the same bits everywhere.

Why they depend on the members.  The mean of n members' differences has n times less noise than one of them, but it is no
longer: each took steps that fit its own noisy gradients.  Data-parallel training on the n batches goes further, about
sqrt(n) times where noise rules, in the directions that the batches agree on.  Momentum makes up for that, and only there: a
direction that stays is multiplied by rate / (1 - momentum), noise and steep directions by little more than the rate.  So

  * one member: rate 1, momentum 0.  The parameters become the member's: plain training, there is nothing to make up for.
  * up to `SEVERAL` members momentum remembers `ROUNDS_A_MEMBER` rounds for each beyond the first, and the rate falls to the
    one of `RATES` for H: low for short rounds, of which many fall into the time in which steep directions settle, higher for
    long ones, in which they settle before anybody averages.
  * beyond `SEVERAL` momentum stays and the rate grows like sqrt(n), to `HIGHEST`.

The published recipe, 0.7 with 0.9, was tuned for long rounds and several members; Charles et al. 2025 ("Scaling laws for
DiLoCo", arXiv 2503.09799) find that the best rate grows with the members, whatever the model's size.  The numbers here
are from `python -m benchmarks.diloco`.

Members count by their weights under the aggregation rule: n = (sum w)^2 / (sum w^2), between 1 and their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from math import isqrt
from typing import NamedTuple

ROUNDS_A_MEMBER = 3
SEVERAL = 4
MOST = Fraction(ROUNDS_A_MEMBER * (SEVERAL - 1), ROUNDS_A_MEMBER * (SEVERAL - 1) + 1)
"""Momentum of `SEVERAL` and more."""
RATES = ((10, Fraction(1, 4)), (30, Fraction(2, 5)), (100, Fraction(7, 10)))
"""(H, rate of `SEVERAL` members); in between along straight lines, outside as at the nearer end."""
HIGHEST = Fraction(7, 8)
"""Rate of very many."""
GRID = 1024
"""Rate and momentum are multiples of 1/1024: exact in fp32, so nothing depends on how a library rounds."""


class OuterStep(NamedTuple):
    """Rate and momentum of one application of `kernels.outer.nesterov_update`."""

    rate: float
    momentum: float


MEAN = OuterStep(1.0, 0.0)
"""The parameters become the mean of the members': in rounds that learn from rollouts, which are some versions old, momentum
takes the policy too far (`python -m benchmarks.rl_trainers`)."""


def automatic(weights: Sequence[int], inner_steps: int) -> OuterStep:
    """The outer step after a round of H = `inner_steps` whose members have these weights (`aggregate.weights_of`)."""
    members, several = effective_members(weights), rate_of_several(inner_steps)
    if members > SEVERAL:
        return OuterStep(_on_grid(min(HIGHEST, several * _root(members / SEVERAL))), _on_grid(MOST))
    remembered = ROUNDS_A_MEMBER * (members - 1)
    momentum = remembered / (1 + remembered)
    return OuterStep(_on_grid(1 - (1 - several) * momentum / MOST), _on_grid(momentum))


def effective_members(weights: Sequence[int]) -> Fraction:
    """Return how many equal members would weigh as these do: from 1 to the number with a weight; 1 for nobody."""
    positive = [weight for weight in weights if weight > 0]
    return Fraction(sum(positive) ** 2, sum(weight * weight for weight in positive)) if positive else Fraction(1)


def rate_of_several(inner_steps: int) -> Fraction:
    """The rate with `SEVERAL` members."""
    for (low, before), (high, after) in itertools.pairwise(RATES):
        if inner_steps <= high:
            return before + (after - before) * Fraction(max(inner_steps - low, 0), high - low)
    return RATES[-1][1]


def _root(value: Fraction) -> Fraction:
    """The square root to four digits or so, from below, in whole numbers."""
    return Fraction(isqrt(int(value * GRID**4)), GRID**2)


def _on_grid(value: Fraction) -> float:
    return round(value * GRID) / GRID
