"""Thresholds follow from what honest peers measure, and are never wider than the usual ones."""

from __future__ import annotations

import math

import pytest

from benchmarks.calibration import LEAST, LEAST_CEILING, LEAST_RATE, LEAST_SHORTFALL, MARGIN, proposed, widest
from kernels.toploc import Mismatch, Thresholds
from protocol.formats.rl import RlConfig
from trainer.rl.verification import Measured, Tolerances


def measured(*mismatches: Mismatch, shortfall: float = 0.0, total: float = 0.0, density: float = 50.0) -> Measured:
    return Measured(mismatches, shortfall, 0, 1.0, 0.5, total, density)


def test_the_worst_chunk_counts_with_a_margin() -> None:
    found = proposed(
        [measured(Mismatch(4, 0.5, 1.0), Mismatch(1, 2.0, 2.0)), measured(Mismatch(0, 0.0, 0.0), shortfall=0.1)]
    )
    assert found.proofs.exponent_mismatches == 6 and found.proofs.mantissa_median == 3.0
    assert found.proofs.mantissa_mean == pytest.approx(2.0 * MARGIN)
    assert found.shortfall == pytest.approx(0.1 * MARGIN)


def test_equal_devices_do_not_make_thresholds_of_nothing() -> None:
    found = proposed([measured(Mismatch(0, 0.0, 0.0))])
    assert (found.proofs, found.shortfall) == (LEAST, LEAST_SHORTFALL)
    assert (found.ceiling, found.rate) == (LEAST_CEILING, LEAST_RATE)


def test_the_ceiling_is_four_times_the_worst_honest_token() -> None:
    assert proposed([measured(shortfall=0.05), measured(shortfall=0.15)]).ceiling == pytest.approx(0.6)
    assert proposed([measured(shortfall=0.3)]).ceiling == Tolerances.of(RlConfig()).ceiling


def test_the_rate_is_the_mean_of_all_tokens_per_near_tie_whatever_their_number() -> None:
    one = measured(total=0.01, density=100.0)
    for many in (1, 1000):
        assert proposed([one] * many).rate == pytest.approx(1e-4)
    assert proposed([one, measured(total=0.0, density=300.0)]).rate == pytest.approx(2.5e-5)


def test_proposals_for_several_devices_are_united_by_the_widest_of_each() -> None:
    coarse = proposed([measured(Mismatch(4, 0.5, 1.0), shortfall=0.2, total=0.02)])
    fine = proposed([measured(Mismatch(0, 2.0, 3.0))])
    both = widest([fine, coarse])
    assert (both.proofs.exponent_mismatches, both.proofs.mantissa_mean) == (6, 3.0)
    assert (both.shortfall, both.ceiling, both.rate) == (coarse.shortfall, coarse.ceiling, coarse.rate)


def test_no_threshold_is_wider_than_the_usual_one() -> None:
    found = proposed([measured(Mismatch(37, 9.0, 7.0), shortfall=0.9, total=5.0)])
    assert found == Tolerances.of(RlConfig())


def test_a_device_that_is_beyond_the_usual_thresholds_is_told() -> None:
    for device in (measured(Mismatch(39, 0.0, 0.0)), measured(shortfall=1.1), measured(shortfall=math.inf)):
        with pytest.raises(ValueError, match="precision"):
            proposed([device])


def test_what_is_proposed_is_what_a_run_file_says() -> None:
    found = proposed([measured(Mismatch(4, 0.5, 1.0), shortfall=0.1, total=0.01)])
    assert Tolerances.of(RlConfig(**found.fields())) == found


def test_the_usual_thresholds_are_those_of_the_proofs() -> None:
    assert Tolerances.of(RlConfig()).proofs == Thresholds()
