"""The growth of bets follows from the measurements of a rollout and from the run's rates for the two precisions."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.toploc import NOTHING_AGREES
from protocol.formats.bets import BETS, EXCHANGE_STAKES, MANTISSA_STAKES, SHORTFALL_STAKES, is_growth
from protocol.formats.rl import RlConfig
from trainer.rl.betting import LEAST_EXCHANGE_RATE, LEAST_MANTISSA_RATE, LEAST_SHORTFALL_RATE, HonestBounds

RL = RlConfig(shortfall_rate=1e-4, exchange_rate=0.005, mantissa_rate=0.4, same_shortfall_rate=1e-5, same_mantissa_rate=9.0)


def test_bounds_are_one_and_a_half_times_the_rates_of_the_two_precisions() -> None:
    mixed, same = (HonestBounds.of(RL, same_precision=each) for each in (False, True))
    assert (mixed.shortfall, mixed.exchange, mixed.mantissa) == pytest.approx((1.5e-4, 0.0075, 0.6))
    assert (same.shortfall, same.exchange, same.mantissa) == pytest.approx((1.5e-5, 1.5 * math.sqrt(1e-5), 0.6))
    zero = HonestBounds.of(RL.changed(shortfall_rate=0.0, mantissa_rate=0.0), same_precision=False)
    assert (zero.shortfall, zero.exchange, zero.mantissa) == (
        LEAST_SHORTFALL_RATE,
        LEAST_EXCHANGE_RATE,
        LEAST_MANTISSA_RATE,
    )


def test_growth_is_the_sum_of_the_logarithms_of_what_each_bet_wins() -> None:
    bounds = HonestBounds(0.001, 0.02, 0.5)
    growth = bounds.growth(torch.tensor([0.0, 0.25]), torch.tensor([0.5, 1.0]), [0.25, 1.0, 99.0])
    assert growth == pytest.approx(
        [
            *(math.log1p(-stake * 0.0005) + math.log1p(stake * 0.249) for stake in SHORTFALL_STAKES),
            *(math.log1p(-stake * 0.01) + math.log1p(stake * 0.98) for stake in EXCHANGE_STAKES),
            *(math.log1p(-stake * 0.5) + math.log1p(stake) + math.log1p(stake * 19) for stake in MANTISSA_STAKES),
        ]
    )


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.1])
def test_no_measurement_makes_growth_infinite(rate: float) -> None:
    """Shortfalls of NaN logits are infinite, and a chunk of which no exponent agrees is far away."""
    rl = RL.changed(shortfall_rate=rate, exchange_rate=1.0, mantissa_rate=127.0)
    bounds = HonestBounds.of(rl, same_precision=False)
    for short, dense in ((math.inf, 0.0), (0.0, 1.0), (1e30, 1.0)):
        growth = bounds.growth(torch.full((9,), short), torch.full((9,), dense), [NOTHING_AGREES, 0.0])
        assert is_growth(growth) and len(growth) == BETS
