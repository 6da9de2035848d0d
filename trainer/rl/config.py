"""The numbers of a reinforcement-learning run, as its manifest says them.

The defaults follow INTELLECT-2's run of a 32B model, but where a field says "ours".  Sources: section 4.1 of its report
(arXiv 2505.07291), as TRL's documentation quotes it, for lr, eps, delta, the group's size and the KL weight; for the rest
PRIME-RL at commit c512d4af (26 May 2025), `configs/{training,inference}/intellect2_qwq.toml` (8 steps a version of 512
rollouts each, warm-up, clipping of gradients, lengths, solve rates), or its defaults (asynchrony, length reward).
Imports nothing outside the standard library, so that the peer process can read it without loading torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from trainer.environments.solve_rates import SolveRates
from trainer.section import Section

SLOTS = 32
"""Sequences that are generated at a time, where nobody says otherwise."""
SPARE_VERSIONS = 2
"""Versions kept beside the `max_async` older ones that rollouts may be of: the newest, and one that is just going."""


@dataclass(frozen=True)
class RlConfig(Section):
    """Rollouts, rewards, filters, the loss, the optimiser, proofs.  Raises ValueError for what makes no sense."""

    # -- rollouts --
    prompts: int = 256
    """Prompts of a version: groups that the trainers learn from before they publish the next one."""
    group_size: int = 16
    """Completions of each prompt (G)."""
    max_tokens: int = 32_768
    """Tokens of an output at most.  The reference run trained on sequences of so many."""
    temperature: float = 1.0
    """What logits are divided by, in sampling and in the loss.  Ours: PRIME-RL's default is 0.6."""
    max_async: int = 2
    """Versions by which a rollout may be older than the one that is trained."""

    # -- rewards and filters --
    length_weight: float = 0.0003
    """Reward taken away for each token between an output's length and the one that its prompt names."""
    length_targets: tuple[int, ...] = ()
    """Lengths in tokens of which each prompt names one; none is no length reward.  Ours: the reference run had 2000, 4000,
    6000, 8000 and 10000."""
    min_solve_rate: float = 0.1
    """Tasks in files whose record has a `solve_rate` below it are left out: too hard to learn from."""
    max_solve_rate: float = 0.8
    """Tasks in files whose record has a `solve_rate` above it are left out: too easy to learn from."""
    divide_by_std: bool = True
    """Whether advantages are divided by the standard deviation of their group's rewards."""
    drop_zero_advantage: bool = True
    """Whether groups in which all rewards are equal are left out of the batch."""

    # -- the loss --
    eps: float = 0.2
    """Ratios of new to old probability count between 1 - eps and 1 + eps."""
    delta: float = 4.0
    """Ratios of tokens with a negative advantage count up to this."""
    entropy_weight: float = 1e-4
    """Of the entropy bonus: a nat is worth so much loss.  Ours: PRIME-RL's default, which the run's file leaves,
    is 0.001."""
    kl_weight: float = 0.0
    """Of the divergence from the weights that rollouts began with: a nat costs so much.  Ours: the report says 0.001, and
    the run's file nothing, which is none."""

    # -- the optimiser --
    optimizer_steps: int = 8
    """Steps in which a version's rollouts are trained on once."""
    lr: float = 3e-7
    """AdamW's learning rate after the warm-up, constant."""
    warmup_steps: int = 25
    """Optimiser steps of the run over which the rate rises from 0."""
    clip_norm: float = 0.1
    """Gradients are scaled down to this global norm."""
    beta1: float = 0.9
    """AdamW's decay of the mean of gradients, PRIME-RL's default."""
    beta2: float = 0.95
    """AdamW's decay of the mean of their squares.  Ours: PRIME-RL's default is 0.99."""
    adam_eps: float = 1e-8
    """What AdamW adds to the root of the mean square.  Ours."""
    weight_decay: float = 0.0
    """AdamW's, of matrices: by so much times the rate a step.  Ours: PRIME-RL's default is 0.01."""
    row_tokens: int = 40_960
    """Tokens of a row into which sequences are packed: no fewer than a prompt and output together have, less one.  Ours."""
    micro_batch_tokens: int = 40_960
    """Tokens that are computed at once: as many rows as have no more, and at least one row.  Ours."""

    # -- proofs and checks --
    top_k: int = 128
    """Values of a chunk's hidden states that its proof commits to."""
    chunk_tokens: int = 32
    """Tokens that share a proof."""
    min_end_probability: float = 0.1
    """An output shorter than `max_tokens` ends with an end token of at least this probability under the model."""
    max_exponent_mismatches: int = 38
    """Values of a chunk's proof whose exponents may differ from those that a validator computes."""
    max_mantissa_mean: float = 10.0
    """Mean by which the 7 bits of mantissa of the others may differ."""
    max_mantissa_median: float = 8.0
    """Median by which they may differ."""
    max_shortfall: float = 0.5
    """Units of logits over temperature by which all but two tokens of a rollout may at most fall short of the one that the
    sampling chooses.  Ours."""
    shortfall_ceiling: float = 1.0
    """Units by which any token may fall short at most.  Ours."""
    shortfall_rate: float = 0.001
    """Mean by which honest tokens fall short, per unit of 1 - sum p^2 of the distributions that they are from.  Ours."""

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
        """Of the tasks in files that the run learns from (offline filter)."""
        return SolveRates(self.min_solve_rate, self.max_solve_rate)

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        """The section that these fields describe; raises ValueError.  A list of lengths is taken like a tuple."""
        targets = section.get("length_targets", ())
        return super().from_mapping({**section, "length_targets": tuple(targets)})
