"""Thresholds follow from what honest peers measure, and are never wider than the usual ones."""

from __future__ import annotations

import math

import pytest

from benchmarks.calibration import LEAST, LEAST_CEILING, LEAST_RATE, LEAST_SHORTFALL, MARGIN, proposed
from kernels.toploc import Mismatch, Thresholds
from protocol.formats.rl import RlConfig
from trainer.rl.verification import Measured, Tolerances


def measured(*mismatches: Mismatch, shortfall: float = 0.0, total: float = 0.0, density: float = 50.0) -> Measured:
    return Measured(mismatches, shortfall, 0, 1.0, total, density)


def test_thresholds_are_the_worst_honest_measurement_with_a_margin_between_the_least_and_the_usual_ones() -> None:
    found = proposed(
        [measured(Mismatch(4, 0.5, 1.0), Mismatch(1, 2.0, 2.0)), measured(Mismatch(0, 0.0, 0.0), shortfall=0.1)]
    )
    assert found.proofs.exponent_mismatches == 6 and found.proofs.mantissa_median == 3.0
    assert (found.proofs.mantissa_mean, found.shortfall) == pytest.approx((2.0 * MARGIN, 0.1 * MARGIN))
    assert proposed([measured(shortfall=0.05), measured(shortfall=0.15)]).ceiling == pytest.approx(0.6), "four times"
    same = proposed([measured(Mismatch(0, 0.0, 0.0))])
    assert (same.proofs, same.shortfall, same.ceiling, same.rate) == (LEAST, LEAST_SHORTFALL, LEAST_CEILING, LEAST_RATE)
    usual = Tolerances.of(RlConfig())
    assert usual.proofs == Thresholds()
    assert proposed([measured(Mismatch(37, 9.0, 7.0), shortfall=0.9, total=5.0)]) == usual


def test_the_rate_is_the_mean_of_all_tokens_per_near_tie_whatever_their_number() -> None:
    one = measured(total=0.01, density=100.0)
    assert [proposed([one] * many).rate for many in (1, 1000)] == pytest.approx([1e-4, 1e-4])
    assert proposed([one, measured(total=0.0, density=300.0)]).rate == pytest.approx(2.5e-5)


def test_a_device_that_is_beyond_the_usual_thresholds_is_told() -> None:
    for device in (measured(Mismatch(39, 0.0, 0.0)), measured(shortfall=1.1), measured(shortfall=math.inf)):
        with pytest.raises(ValueError, match="precision"):
            proposed([device])
