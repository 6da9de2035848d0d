"""Thresholds follow from what honest peers measure, and are never wider than the usual ones."""

from __future__ import annotations

import pytest

from kernels.toploc import Mismatch, Thresholds
from trainer.rl.calibration import LEAST, LEAST_SHORTFALL, MARGIN, proposed
from trainer.rl.config import RlConfig
from trainer.rl.verification import Measured, Tolerances


def measured(*mismatches: Mismatch, shortfall: float = 0.0) -> Measured:
    return Measured(mismatches, shortfall, 0, 1.0, 0.5)


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


def test_no_threshold_is_wider_than_the_usual_one() -> None:
    found = proposed([measured(Mismatch(37, 9.0, 7.0), shortfall=5.0)])
    assert found == Tolerances.of(RlConfig())


def test_a_device_that_is_beyond_the_usual_thresholds_is_told() -> None:
    with pytest.raises(ValueError, match="precision"):
        proposed([measured(Mismatch(39, 0.0, 0.0))])


def test_what_is_proposed_is_what_a_run_file_says() -> None:
    found = proposed([measured(Mismatch(4, 0.5, 1.0), shortfall=0.1)])
    assert Tolerances.of(RlConfig(**found.fields())) == found


def test_the_usual_thresholds_are_those_of_the_proofs() -> None:
    assert Tolerances.of(RlConfig()).proofs == Thresholds()
