"""Betting test of a rollout peer's honesty: growth of each bet from the measurements of one rollout.

The rules of `trainer.rl.verification` judge one batch, so a peer may stay within all tolerances in each of its batches. This
test adds up the deviations over all batches of a peer. A bet multiplies its wealth by 1 + stake (x - bound) for each
measurement x. If the mean of x, given everything before it, is at most the bound, the expected wealth does not grow, so the
wealth ever exceeds c times its beginning with a probability of at most 1 / c (Ville 1939; Waudby-Smith and Ramdas 2024 on
bets). This needs no distribution of x and allows any number of looks. The measurements and bounds are:

* the shortfall of each token, at most 1; v times the density of near-ties, 1 - sum p^2;
* 1 for each exchanged token, which is not the validator's own choice, else 0; e times the density. If rounding shifts the
  margin between the two best tokens by a random d, symmetric about 0, exchanges have the rate E[max(d, 0)] and shortfalls
  the rate E[max(d, 0)^2] / 2 per near-tie. So by the inequality of Cauchy and Schwarz the first is at most the root of the
  second, and it is much less if few tokens have any error at all;
* the mean difference of mantissas of each chunk of a proof, as a multiple of its bound.

Each bound is `SLACK_FACTOR` times the rate of the worst honest device. `protocol.rollouts.betting` has the wealth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from protocol.formats.bets import EXCHANGE_STAKES, MANTISSA_STAKES, SHORTFALL_STAKES, Growth, is_growth
from protocol.formats.rl import RlConfig

SLACK_FACTOR = 1.5
"""Multiple of the worst honest rate that no honest peer exceeds."""
LEAST_SHORTFALL_RATE = 1e-6
LEAST_EXCHANGE_RATE = 1e-4
LEAST_MANTISSA_RATE = 0.05
"""Least bounds: the differences that another order of summation may cause."""
MOST_SHORTFALL = 1.0
"""Largest shortfall that counts; larger ones break a rule, or come from NaN."""
MOST_TIMES = 20.0
"""Largest multiple of the bound that a chunk's mean difference of mantissas counts as."""
MOST_LOST = 0.75
"""Largest share of a bet's wealth that one measurement can take; larger stakes are reduced."""


@dataclass(frozen=True)
class HonestBounds:
    """Bounds on the mean measurements of honest peers.

    shortfall, exchange: per unit of density.  mantissa: of a chunk.
    """

    shortfall: float
    exchange: float
    mantissa: float

    @classmethod
    def of(cls, config: RlConfig, *, same_precision: bool) -> Self:
        """Return a run's bounds.  same_precision: True if the maker and we compute in the same precision."""
        rates = [config.shortfall_rate, config.exchange_rate, config.mantissa_rate]
        if same_precision:
            same = (config.same_shortfall_rate, config.same_exchange_rate, config.same_mantissa_rate)
            rates = [*map(min, rates, same)]
        shortfall, exchange, mantissa = rates
        exchange = min(exchange, shortfall**0.5)
        bounds = (SLACK_FACTOR * each for each in (shortfall, exchange, mantissa))
        return cls(*map(max, bounds, (LEAST_SHORTFALL_RATE, LEAST_EXCHANGE_RATE, LEAST_MANTISSA_RATE)))

    def growth(self, shortfalls_n: Tensor, densities_n: Tensor, mantissas: Sequence[float]) -> Growth:
        """Return the growth of the logarithm of each bet's wealth over one rollout.

        shortfalls, densities: (n), for each token that the model made.  mantissas: mean difference of each chunk.
        """
        short_n, dense_n = shortfalls_n.double().clamp(max=MOST_SHORTFALL), densities_n.double()
        chunks_c = torch.tensor(mantissas, dtype=torch.float64).div_(self.mantissa).clamp_(max=MOST_TIMES)
        growth = (
            *(_growth(short_n, self.shortfall * dense_n, self.shortfall, stake) for stake in SHORTFALL_STAKES),
            *(_growth((short_n > 0).double(), self.exchange * dense_n, self.exchange, stake) for stake in EXCHANGE_STAKES),
            *(_growth(chunks_c, torch.ones_like(chunks_c), 1.0, stake) for stake in MANTISSA_STAKES),
        )
        assert is_growth(growth), "every measurement is clamped"
        return growth


def _growth(found_n: Tensor, bounds_n: Tensor, most: float, stake: float) -> float:
    """Return the growth of one bet.  most: the largest possible bound."""
    return float((min(stake, MOST_LOST / most) * (found_n - bounds_n)).log1p_().sum())
