"""Configuration of a reinforcement-learning run, as given in its manifest.

The defaults follow INTELLECT-2's run of a 32B model, except fields marked "ours". lr, eps, delta, the group's size and the
KL weight are from section 4.1 of its report (arXiv 2505.07291), as quoted in TRL's documentation. The other defaults are
from PRIME-RL at commit c512d4af (26 May 2025): `configs/{training,inference}/intellect2_qwq.toml` (8 steps per version of
512 rollouts each, warm-up, clipping of gradients, lengths, solve rates), or PRIME-RL's own defaults (asynchrony, length
reward). This module imports only the standard library, so that the peer process can read it without loading torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from trainer.environments.records import SolveRates
from trainer.section import SectionFields

SLOTS = 32
"""Default number of sequences generated at a time."""
SPARE_VERSIONS = 2
"""Versions kept besides the `max_async` older versions that rollouts may use: the newest, and one about to be dropped."""


@dataclass(frozen=True)
class RlConfig(SectionFields):
    """Section on rollouts, rewards, filters, the loss, the optimiser and proofs.  Raises ValueError for invalid values."""

    # -- rollouts --
    prompts: int = 256
    """Prompts per version: number of groups from which the trainers learn before they publish the next version."""
    group_size: int = 16
    """Completions of each prompt (G)."""
    max_tokens: int = 32_768
    """Maximum number of tokens of an output.  The reference run trained on sequences of this length."""
    temperature: float = 1.0
    """Divisor of logits, in sampling and in the loss.  Ours: PRIME-RL's default is 0.6."""
    max_async: int = 2
    """Versions by which a rollout may be older than the version being trained."""

    # -- rewards and filters --
    length_weight: float = 0.0003
    """Reward subtracted for each token by which an output's length differs from the target length in its prompt."""
    length_targets: tuple[int, ...] = ()
    """Target lengths in tokens; each prompt names one of them. If empty, there is no length reward. Ours: the reference run
    had 2000, 4000, 6000, 8000 and 10000.
    """
    min_solve_rate: float = 0.1
    """Minimum `solve_rate` of a task in a file; tasks with a lower rate are left out as too hard to learn from."""
    max_solve_rate: float = 0.8
    """Maximum `solve_rate` of a task in a file; tasks with a higher rate are left out as too easy to learn from."""
    divide_by_std: bool = True
    """True to divide advantages by the standard deviation of their group's rewards."""
    drop_zero_advantage: bool = True
    """True to leave out groups in which all rewards are equal."""

    # -- the loss --
    eps: float = 0.2
    """Clipping range: ratios of new to old probability are clipped to the range from 1 - eps to 1 + eps."""
    delta: float = 4.0
    """Upper bound on the ratios of tokens with a negative advantage."""
    entropy_weight: float = 1e-4
    """Weight of the entropy bonus in the loss, per nat.

    Ours: PRIME-RL's default, which the reference run's file does not change, is 0.001.
    """
    kl_weight: float = 0.0
    """Weight in the loss, per nat, of the divergence from the weights with which the rollouts began. Ours: the report says
    0.001, but the reference run's file does not set the weight, which means 0.
    """

    # -- the optimiser --
    optimizer_steps: int = 8
    """Number of optimiser steps per version; together they use each rollout once."""
    lr: float = 3e-7
    """Constant learning rate of AdamW after the warm-up."""
    warmup_steps: int = 25
    """Number of optimiser steps of the run during which the learning rate rises from 0."""
    clip_norm: float = 0.1
    """Maximum global norm of gradients; larger gradients are scaled down."""
    beta1: float = 0.9
    """AdamW's decay of the mean of gradients; this is PRIME-RL's default."""
    beta2: float = 0.95
    """AdamW's decay of the mean of squared gradients.  Ours: PRIME-RL's default is 0.99."""
    adam_eps: float = 1e-8
    """Number that AdamW adds to the root of the mean square.  Ours."""
    weight_decay: float = 0.0
    """AdamW's weight decay of matrices, multiplied by the learning rate in each step.  Ours: PRIME-RL's default is 0.01."""
    row_tokens: int = 40_960
    """Tokens of a row into which sequences are packed: at least the length of a prompt and its output, minus one.  Ours."""
    micro_batch_tokens: int = 40_960
    """Maximum number of tokens computed at once, in whole rows; at least one row is computed.  Ours."""

    # -- proofs and checks --
    top_k: int = 128
    """Number of values of a chunk's hidden states to which the chunk's proof commits."""
    chunk_tokens: int = 32
    """Number of tokens that share a proof."""
    min_end_probability: float = 0.1
    """Minimum probability, under the model, of an end token that falls short by more than `max_shortfall`."""
    max_exponent_mismatches: int = 38
    """Maximum number of values in a chunk's proof whose exponents may differ from the validator's."""
    max_mantissa_mean: float = 10.0
    """Maximum mean difference of the 7-bit mantissas of the other values."""
    max_mantissa_median: float = 8.0
    """Maximum median difference of the 7-bit mantissas of these values."""
    max_shortfall: float = 0.5
    """Maximum shortfall of all but two tokens of a rollout from the token that the sampling chooses, in units of logits over
    temperature. Ours.
    """
    shortfall_ceiling: float = 1.0
    """Maximum shortfall of any token, in units of logits over temperature.  Ours."""
    shortfall_rate: float = 0.001
    """Mean shortfall of honest tokens, per unit of 1 - sum p^2 of their distributions.  Ours."""

    def __post_init__(self) -> None:
        for name in (
            "prompts", "group_size", "max_tokens", "optimizer_steps", "row_tokens", "micro_batch_tokens", "top_k",
            "chunk_tokens",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in (
            "max_async", "warmup_steps", "length_weight", "entropy_weight", "kl_weight", "weight_decay",
            "max_exponent_mismatches", "max_mantissa_mean", "max_mantissa_median", "shortfall_rate",
        ):  # fmt: skip
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("lr", "clip_norm", "adam_eps", "temperature", "max_shortfall"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("beta1", "beta2", "eps"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be from 0 to below 1")
        if not self.delta >= 1 + self.eps:
            raise ValueError("delta must be at least 1 + eps")
        if not 0 <= self.min_solve_rate <= self.max_solve_rate <= 1 or not 0 <= self.min_end_probability <= 1:
            raise ValueError(
                "solve rates and min_end_probability must be from 0 to 1, and the lower rate below the upper one"
            )
        if not self.shortfall_ceiling >= self.max_shortfall:
            raise ValueError("shortfall_ceiling must be at least max_shortfall")
        if self.row_tokens < self.max_tokens:
            raise ValueError("row_tokens must be at least max_tokens: a sequence is never cut")
        if any(target < 1 for target in self.length_targets):
            raise ValueError("length_targets must be at least 1 token each")

    @property
    def solve_rates(self) -> SolveRates:
        """Bounds on the solve rates of tasks in files from which the run learns (offline filter)."""
        return SolveRates(self.min_solve_rate, self.max_solve_rate)

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        """Return the section that these fields describe. Raises ValueError. A list of lengths is accepted as a tuple."""
        targets = section.get("length_targets", ())
        return super().from_mapping({**section, "length_targets": tuple(targets)})
