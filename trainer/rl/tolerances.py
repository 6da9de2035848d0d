"""Tolerances of verification: the largest differences between an honest peer's device and ours.

A cheating peer uses a known tolerance up, so none may be a share of the output: a long one would have room for a false
answer.  Three rules limit the shortfall of tokens from the tokens that the noise chooses
(`trainer.generate.sampling.shortfall`):

* no token falls short by more than `ceiling`;
* at most `MOST_BEYOND` tokens of a rollout fall short by more than `shortfall`;
* over any stretch of a batch's tokens the shortfalls sum to at most `SLACK` + `RATE_FACTOR` x rate x the density of
  near-ties.  Rounding exchanges two tokens only if they are nearly tied, which has the density 1 - sum p^2; the expected
  shortfall is then a constant, `rate`, times this density.  So while the model is certain, length adds no allowance.

The third rule is a one-sided CUSUM (Page 1954): allowance that honest tokens leave unused is not saved up for later ones.
It continues from one rollout of a batch to the next, so that a batch has the slack once and not once per rollout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from kernels.toploc import Mismatch, Thresholds
from trainer.rl.config import RlConfig
from trainer.rl.form import RejectionReason

MOST_BEYOND = 2
"""Most tokens of a rollout of any length that may fall short by more than the run's `max_shortfall`."""
SLACK = 0.5
"""Largest sum of shortfalls over any stretch of tokens, beyond the part that rounding explains."""
RATE_FACTOR = 3.0
"""Multiple of the mean honest shortfall that a stretch of any length may have."""
DEVICES_APART = 2 / 3
"""Share of a tolerance by which two honest devices may measure the same rollout differently; it follows from the margin of
proposed tolerances (`trainer.rl.calibration.MARGIN`)."""


@dataclass(frozen=True)
class Choices:
    """Tokens of a rollout that the model made, on the host, each field a tensor (n).

    tokens: int64.  shortfalls, probabilities: of these tokens.  densities: of near-ties, 1 - sum p^2, at their places.
    """

    tokens: Tensor
    shortfalls: Tensor
    probabilities: Tensor
    densities: Tensor


@dataclass(frozen=True)
class Tolerances:
    """Tolerances: differences that an honest peer's device may cause.

    shortfall, ceiling, rate: see the module; in units of logits over temperature.
    end_probability: least probability of an end token that falls short by more than `shortfall`.
    """

    proofs: Thresholds
    shortfall: float
    ceiling: float
    rate: float
    end_probability: float
    slack: float = SLACK
    rate_factor: float = RATE_FACTOR

    @classmethod
    def of(cls, config: RlConfig) -> Self:
        """Return the tolerances of a run."""
        return cls(
            Thresholds(config.max_exponent_mismatches, config.max_mantissa_mean, config.max_mantissa_median),
            config.max_shortfall,
            config.shortfall_ceiling,
            config.shortfall_rate,
            config.min_end_probability,
        )

    def times(self, factor: float) -> Self:
        """Return tolerances for a device that measures `factor` times as much.

        The multiple of the honest rate grows only half as much: it is a mean of many tokens, in which devices differ less
        than in one token.
        """
        proofs = self.proofs
        return replace(
            self,
            proofs=Thresholds(
                int(factor * proofs.exponent_mismatches), factor * proofs.mantissa_mean, factor * proofs.mantissa_median
            ),
            shortfall=factor * self.shortfall,
            ceiling=factor * self.ceiling,
            slack=factor * self.slack,
            rate_factor=(1 + factor) / 2 * self.rate_factor,
            end_probability=min(1.0, self.end_probability / factor),
        )

    def fields(self) -> dict[str, Any]:
        """Return these tolerances as fields of a run's `[rl]`."""
        return {
            "max_exponent_mismatches": self.proofs.exponent_mismatches,
            "max_mantissa_mean": self.proofs.mantissa_mean,
            "max_mantissa_median": self.proofs.mantissa_median,
            "max_shortfall": self.shortfall,
            "shortfall_ceiling": self.ceiling,
            "shortfall_rate": self.rate,
        }


@dataclass(frozen=True)
class Measured:
    """Measurements of a rollout, also for calibration.

    mismatches: of each chunk of tokens.  shortfall: the largest.  beyond: number of tokens beyond the tolerance.
    end_probability: the least among end tokens beyond the tolerance; 1 if there is none.
    mean_probability: of the chosen tokens.  total, density: sums of the shortfalls, and of 1 - sum p^2.  stretch: the
    largest sum over a stretch of this rollout alone, less the allowance for its densities.
    """

    mismatches: tuple[Mismatch, ...]
    shortfall: float
    beyond: int
    end_probability: float
    mean_probability: float
    total: float = 0.0
    density: float = 0.0
    stretch: float = 0.0


class BatchBounds:
    """Tolerances applied to the rollouts of one batch, one after the other."""

    def __init__(self, tolerances: Tolerances, ends: Sequence[int], chunk_values: int) -> None:
        """ends: tokens that end a turn.  chunk_values: values that a whole chunk's proof commits to."""
        self.tolerances, self._ends, self._chunk_values = tolerances, torch.tensor(ends), chunk_values
        self._level = 0.0
        """The CUSUM after the accepted rollouts so far."""

    def measured(self, mismatches: Sequence[Mismatch], choices: Choices) -> Measured:
        """Return the measurements that these tolerances limit."""
        short_n, likely_n = choices.shortfalls, choices.probabilities
        beyond_n = ~(short_n <= self.tolerances.shortfall)
        ends_n = likely_n[beyond_n & torch.isin(choices.tokens, self._ends)]
        return Measured(
            tuple(mismatches),
            float(short_n.max()),
            int(beyond_n.sum()),
            float(ends_n.min()) if len(ends_n) else 1.0,
            float(likely_n.mean()),
            float(short_n.double().sum()),
            float(choices.densities.double().sum()),
            self._stretch(choices, 0.0)[0],
        )

    def flaw(
        self, measured: Measured, choices: Choices, values: Sequence[int], stop: str
    ) -> tuple[RejectionReason, str] | None:
        """Return why the batch's next rollout is rejected, or None; an accepted rollout counts in the CUSUM of later ones.

        values: number of values that each chunk's proof commits to.  stop: the flaw in the output's end, empty for none.
        """
        far = [number for number, each in enumerate(measured.mismatches) if not self._accepts(each, values[number])]
        if far:
            return RejectionReason.WRONG_COMPUTATION, _told(far[0], measured.mismatches[far[0]])
        if stop:
            return RejectionReason.BAD_TERMINATION, stop
        if not measured.end_probability >= self.tolerances.end_probability:
            detail = f"a turn ends with a token of probability {measured.end_probability:.2g}"
            return RejectionReason.BAD_TERMINATION, f"{detail}, which the sampling does not choose"
        worst, level = self._stretch(choices, self._level)
        if detail := self._sampling(measured, len(choices.tokens), worst):
            return RejectionReason.BAD_SAMPLING, detail
        self._level = level
        return None

    def _accepts(self, mismatch: Mismatch, values: int) -> bool:
        """Return True if a chunk's mismatch is within the tolerance; fewer values of a short chunk may differ."""
        proofs = self.tolerances.proofs
        if values < self._chunk_values:
            most = math.ceil(proofs.exponent_mismatches * values / self._chunk_values)
            proofs = replace(proofs, exponent_mismatches=most)
        return proofs.accept(mismatch)

    def _sampling(self, measured: Measured, count: int, worst: float) -> str:
        """Return the flaw in the choice of the tokens, as a sentence; empty for none."""
        if not measured.shortfall <= self.tolerances.ceiling:
            return f"a token falls short of the one that the sampling chooses by {measured.shortfall:.3g}"
        if measured.beyond > MOST_BEYOND:
            return f"{measured.beyond} of {count} tokens are not those that the sampling chooses"
        if not worst <= self.tolerances.slack:
            return f"tokens fall short of those that the sampling chooses by {worst:.3g} more than rounding explains"
        return ""

    def _stretch(self, choices: Choices, level: float) -> tuple[float, float]:
        """Return the largest and the last value of the CUSUM after a token, beginning at `level`."""
        rate = self.tolerances.rate_factor * self.tolerances.rate
        sums_n = (choices.shortfalls.double() - rate * choices.densities.double()).cumsum(0)
        lowest_n = sums_n.cummin(0).values.clamp(max=-level)
        above_n = sums_n - lowest_n
        return float(above_n.max()), float(above_n[-1])


def _told(number: int, mismatch: Mismatch) -> str:
    return (
        f"chunk {number} is not what the weights give: {mismatch.exponent_mismatches} exponents differ, "
        f"mantissas by {mismatch.mantissa_mean:.3g} on average (median {mismatch.mantissa_median:.3g})"
    )
