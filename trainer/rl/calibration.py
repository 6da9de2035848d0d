"""Thresholds for a model and its devices, from what honest peers' rollouts measure.

A report is made once a run, or for a new kind of device: rollouts are generated in the ways that honest peers may (other
batch, other precision, other pieces of the prompt), judged with the reference, and the worst that was seen, times a margin,
is proposed, as fields of the manifest's `[rl]`.  Tighter thresholds tell roundings of the weights from roundings of the
arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kernels.toploc import Mismatch, Thresholds
from trainer.rl.config import RlConfig
from trainer.rl.verification import Measured, Tolerances

MARGIN = 1.5
"""The worst of some thousand honest chunks is not the worst of all."""
LEAST = Thresholds(2, 0.25, 1.0)
"""No threshold is below what another order of summation may do."""
LEAST_SHORTFALL = 0.05


def proposed(honest: Iterable[Measured], margin: float = MARGIN) -> Tolerances:
    """The tolerances with which all of these pass, with a margin; never wider than the defaults.

    Raises ValueError where an honest rollout is beyond the defaults: such a device cannot take part.
    """
    widest = Tolerances.of(RlConfig())
    exponents, mean, median, shortfall = 0, 0.0, 0.0, 0.0
    for measured in honest:
        shortfall = max(shortfall, measured.shortfall)
        for each in measured.mismatches:
            exponents = max(exponents, each.exponent_mismatches)
            mean, median = max(mean, each.mantissa_mean), max(median, each.mantissa_median)
    if not widest.proofs.accept(Mismatch(exponents, mean, median)):
        raise ValueError(
            f"honest rollouts differ by {exponents} exponents and {mean:.3g} (median {median:.3g}) in their mantissas, "
            "more than is allowed at all; compute with the reference's precision"
        )
    return Tolerances(
        Thresholds(
            min(widest.proofs.exponent_mismatches, max(LEAST.exponent_mismatches, math.ceil(margin * exponents))),
            min(widest.proofs.mantissa_mean, max(LEAST.mantissa_mean, margin * mean)),
            min(widest.proofs.mantissa_median, max(LEAST.mantissa_median, math.ceil(margin * median))),
        ),
        min(widest.shortfall, max(LEAST_SHORTFALL, margin * shortfall)),
        widest.share_beyond,
        widest.end_probability,
    )
