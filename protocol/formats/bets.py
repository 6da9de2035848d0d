"""Bets of the test that adds up a rollout peer's deviations, in the order in which a trainer process reports their growth.

Each kind of deviation has several stakes, because no single stake is best against all cheats: large stakes grow quickly
against rare, large deviations, small ones against many that are slightly above the honest rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

SHORTFALL_STAKES = (1.0, 4.0, 16.0, 64.0, 256.0)
"""Stakes on each token's shortfall, as multiples of 1 / (units of logits over temperature)."""
EXCHANGE_STAKES = (0.25, 1.0, 4.0, 16.0)
"""Stakes on each token that is not the validator's own choice."""
MANTISSA_STAKES = (0.03, 0.1, 0.3, 0.7)
"""Stakes on each chunk's mean difference of mantissas, as a multiple of its bound."""
KINDS = (
    ("shortfalls", len(SHORTFALL_STAKES)),
    ("exchanged tokens", len(EXCHANGE_STAKES)),
    ("differences of mantissas", len(MANTISSA_STAKES)),
)
"""Name of each kind of deviation, and the number of its bets."""
BETS = sum(count for _, count in KINDS)

Growth = tuple[float, ...]
"""Growth of the logarithm of each bet's wealth; `BETS` finite numbers, or none without a measurement."""


def total_growth(parts: Iterable[Growth]) -> Growth:
    """Return the sum of the growths of several rollouts; empty if none was measured."""
    return tuple(map(sum, zip(*filter(None, parts), strict=True)))


def is_growth(values: Growth) -> bool:
    """Return True if these can be the growth of all bets."""
    return len(values) == BETS and all(map(isfinite, values))
