"""Calibration of tolerances for a model and its devices, from measurements of honest peers' rollouts.

A report is made once per run, or for a new kind of device.  Rollouts are generated in the ways that honest peers may use
(other batch, other precision, other pieces of the prompt) and judged with the reference.  The worst measurement, times a
margin, is proposed as fields of the manifest's `[rl]`.  Tighter thresholds distinguish rounding of the weights from rounding
of the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kernels.toploc import Mismatch, Thresholds
from protocol.formats.rl import RlConfig
from trainer.rl.verification import SLACK, Measured, Tolerances

MARGIN = 1.5
"""Factor on the worst measurement: the worst of some thousand honest chunks is not the worst of all."""
LEAST = Thresholds(2, 0.25, 1.0)
"""Least thresholds: the differences that another order of summation may cause."""
LEAST_SHORTFALL = 0.05
CEILING_MARGIN, LEAST_CEILING = 4.0, 0.4
"""Margin and least value of the ceiling on a single token: one honest token beyond it would refuse a whole batch."""
LEAST_RATE = 1e-5
"""Least mean shortfall per near-tie that is allowed, even if none was seen: peers of one precision measure about as much."""


def proposed(honest: Iterable[Measured], margin: float = MARGIN) -> Tolerances:
    """Return tolerances that accept all of these measurements, with a margin; never wider than the defaults.

    honest: the measurements of one kind of device; combine the proposals for several kinds with `widest`.  Raises ValueError
    if an honest rollout is beyond the defaults: such a device cannot take part.
    """
    usual = Tolerances.of(RlConfig())
    exponents, mean, median, shortfall, stretch, total, density = 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for measured in honest:
        shortfall, stretch = max(shortfall, measured.shortfall), max(stretch, measured.stretch)
        total, density = total + measured.total, density + measured.density
        for each in measured.mismatches:
            exponents = max(exponents, each.exponent_mismatches)
            mean, median = max(mean, each.mantissa_mean), max(median, each.mantissa_median)
    if not usual.proofs.accept(Mismatch(exponents, mean, median)):
        raise ValueError(
            f"honest rollouts differ by {exponents} exponents and {mean:.3g} (median {median:.3g}) in their mantissas, "
            "more than is allowed at all; compute with the reference's precision"
        )
    if not (shortfall <= usual.ceiling and stretch <= SLACK):
        raise ValueError(
            f"honest tokens fall short by {shortfall:.3g}, and by {stretch:.3g} together, more than is allowed at all; "
            "compute with the reference's precision"
        )
    return Tolerances(
        Thresholds(
            min(usual.proofs.exponent_mismatches, max(LEAST.exponent_mismatches, math.ceil(margin * exponents))),
            min(usual.proofs.mantissa_mean, max(LEAST.mantissa_mean, margin * mean)),
            min(usual.proofs.mantissa_median, max(LEAST.mantissa_median, math.ceil(margin * median))),
        ),
        min(usual.shortfall, max(LEAST_SHORTFALL, margin * shortfall)),
        min(usual.ceiling, max(LEAST_CEILING, CEILING_MARGIN * shortfall)),
        min(usual.rate, max(LEAST_RATE, total / density if density else 0.0)),
        usual.end_probability,
    )


def widest(proposals: Iterable[Tolerances]) -> Tolerances:
    """Return the tightest tolerances that accept everything that any of these accepts."""
    first, *others = proposals
    for other in others:
        first = Tolerances(
            Thresholds(
                max(first.proofs.exponent_mismatches, other.proofs.exponent_mismatches),
                max(first.proofs.mantissa_mean, other.proofs.mantissa_mean),
                max(first.proofs.mantissa_median, other.proofs.mantissa_median),
            ),
            max(first.shortfall, other.shortfall),
            max(first.ceiling, other.ceiling),
            max(first.rate, other.rate),
            min(first.end_probability, other.end_probability),
        )
    return first
