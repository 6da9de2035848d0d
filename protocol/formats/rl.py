"""Section on reinforcement learning, as far as trainers read it: rollouts, rewards, the loss, the optimiser and proofs.

The defaults follow INTELLECT-2's run of a 32B model, except fields marked "ours". lr, eps, delta, the group's size and the
KL weight are from section 4.1 of its report (arXiv 2505.07291), as quoted in TRL's documentation. The other defaults are
from PRIME-RL at commit c512d4af (26 May 2025): `configs/{training,inference}/intellect2_qwq.toml` (8 steps per version of
512 rollouts each, warm-up, clipping of gradients, lengths, solve rates), or PRIME-RL's own defaults (asynchrony, length
reward, beta1).
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from protocol.formats.section import Problems, Section

Weight = Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Above = Annotated[float, Field(gt=0, le=1e3, allow_inf_nan=False)]
Mantissa = Annotated[float, Field(ge=0, le=127, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, le=1 << 24)]
PolicyLossName = Literal["clip", "tis", "gspo"]


class Precision(str, Enum):
    """Precision of the matrix products with which a peer makes rollouts."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class RlConfig(Section):
    """Rollouts and their learning."""

    group_size: Annotated[int, Field(ge=2, le=1024)] = 16
    """Completions of each prompt (G); a single one could not be compared with others."""
    # The reference run trained on sequences of this length.
    max_tokens: Tokens = 32_768
    """Most tokens of an output."""
    # Our choice.
    max_turn_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    """Most tokens of one turn of a conversation, which ends there; 0 for no other limit than max_tokens."""
    # Our choice; PRIME-RL's default is 0.6.
    temperature: Above = 1.0
    """Divisor of the logits, in sampling and in the loss."""
    max_async: Annotated[int, Field(ge=0, le=16)] = 2
    """Most versions by which a rollout may be older than the version that is trained."""

    # -- rewards and filters --
    length_weight: Weight = 0.0003
    """Reward taken away for each token between an output's length and the length that its prompt names."""
    # Our choice; the reference run had 2000, 4000, 6000, 8000 and 10000.
    length_targets: Annotated[list[Tokens], Field(max_length=64)] = []
    """Lengths in tokens, of which each prompt names one; without any, there is no length reward."""
    min_solve_rate: Share = 0.1
    """Tasks in files whose `solve_rate`, from 0 to 1, is below this are left out because they are too hard to learn from."""
    max_solve_rate: Share = 0.8
    """Tasks in files whose `solve_rate`, from 0 to 1, is above this are left out because they are too easy to learn from."""
    divide_by_std: bool = True
    """True: advantages are divided by the standard deviation of their group's rewards."""
    drop_zero_advantage: bool = True
    """True: groups in which all rewards are equal are left out of the batch."""

    # -- the loss --
    # Our choice; the reference run had "clip".
    loss: PolicyLossName = "gspo"
    """Policy loss: "clip" compares with the trained version, "tis" and "gspo" also with the one that made the tokens."""
    eps: Decay = 0.2
    """Ratios of new to old probability count between 1 - eps and 1 + eps; with "gspo", for n > 4 tokens, 4 eps / n."""
    delta: Annotated[float, Field(ge=1, le=1e3, allow_inf_nan=False)] = 4.0
    """Limit on the ratios of tokens with a negative advantage."""
    # Our choice; PRIME-RL's default, which the reference run's file does not change, is 0.001.
    entropy_weight: Weight = 1e-4
    """Weight of the entropy bonus, as loss per nat."""
    # Our choice; the report says 0.001, but the reference run's file does not set the weight, which means 0.
    kl_weight: Weight = 0.0
    """Weight of the divergence from the weights with which rollouts began, as loss per nat."""

    # -- the optimiser --
    optimizer_steps: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Number of optimiser steps in which a version's rollouts are trained on once."""
    lr: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 3e-7
    """AdamW's constant rate after the warm-up; times the root of the trainers' number if `outer` is "auto"."""
    warmup_steps: Annotated[int, Field(ge=0, le=2**40)] = 25
    """Optimiser steps of the run over which the rate rises from 0."""
    clip_norm: Above = 0.1
    """Largest global norm of the gradients; larger gradients are scaled down to it."""
    beta1: Decay = 0.9
    """AdamW's decay of the mean of gradients."""
    # Our choice; PRIME-RL's default is 0.99.
    beta2: Decay = 0.95
    """AdamW's decay of the mean of the gradients' squares."""
    # Our choice.
    adam_eps: Above = 1e-8
    """Number that AdamW adds to the root of the mean square."""
    # Our choice; PRIME-RL's default is 0.01.
    weight_decay: Weight = 0.0
    """AdamW's weight decay of matrices: this factor times the rate in each step."""
    # Our choice, as micro_batch_tokens.
    row_tokens: Tokens = 40_960
    """Tokens of a row into which sequences are packed: as many as the longest prompt and output together, less one."""
    micro_batch_tokens: Tokens = 40_960
    """Tokens that are computed at once: as many rows as have no more, and at least one row."""

    # -- proofs and checks --
    top_k: Annotated[int, Field(ge=1, le=65_497)] = 128
    """Values of a chunk's hidden states that its proof commits to."""
    chunk_tokens: Annotated[int, Field(ge=1, le=1 << 16)] = 32
    """Tokens that share a proof."""
    min_end_probability: Share = 0.1
    """An output shorter than `max_tokens` ends with an end token of at least this probability under the model."""
    max_exponent_mismatches: Annotated[int, Field(ge=0, le=65_497)] = 38
    """Most values of a chunk's proof whose exponents differ from the ones that a validator computes."""
    max_mantissa_mean: Mantissa = 10.0
    """Largest mean difference of the 7-bit mantissas of the other values."""
    max_mantissa_median: Mantissa = 8.0
    """Largest median difference of these mantissas."""
    # Our choice, as shortfall_ceiling and shortfall_rate.
    max_shortfall: Above = 0.5
    """Units of logits over temperature by which all but two tokens of a rollout may fall short of the sampling's choice."""
    shortfall_ceiling: Above = 1.0
    """Most units by which any token may fall short; at least max_shortfall."""
    shortfall_rate: Annotated[float, Field(ge=0, le=0.1, allow_inf_nan=False)] = 0.001
    """Mean by which honest tokens fall short, per unit of 1 - sum p^2; all tokens together may by three times as much."""
    # Our choice, as the four fields after it.
    exchange_rate: Share = 0.03
    """Share of honest tokens that are not the sampling's choice at a validator, per unit of 1 - sum p^2."""
    mantissa_rate: Mantissa = 6.0
    """Mean difference of mantissas over an honest peer's chunks."""
    same_shortfall_rate: Annotated[float, Field(ge=0, le=0.1, allow_inf_nan=False)] = 0.001
    """shortfall_rate between peers that compute in the same precision; the smaller of the two counts."""
    same_exchange_rate: Share = 0.03
    """exchange_rate between peers that compute in the same precision; the smaller of the two counts."""
    same_mantissa_rate: Mantissa = 6.0
    """mantissa_rate between peers that compute in the same precision; the smaller of the two counts."""

    @property
    def compares_behaviour(self) -> bool:
        """True if the loss compares the policy with the one that made the tokens."""
        return self.loss != "clip"

    def _problems(self) -> Problems:
        if self.min_solve_rate > self.max_solve_rate:
            yield (
                "min_solve_rate max_solve_rate",
                f"min_solve_rate ({self.min_solve_rate:g}) is more than max_solve_rate ({self.max_solve_rate:g}); "
                "exchange the two values",
            )
        if self.row_tokens < self.max_tokens:
            yield (
                "row_tokens max_tokens",
                f"row_tokens ({self.row_tokens}) is less than max_tokens ({self.max_tokens}), but a sequence is never cut; "
                f"row_tokens = {self.max_tokens + self.max_tokens // 4} would do",
            )
        if self.shortfall_ceiling < self.max_shortfall:
            yield (
                "shortfall_ceiling max_shortfall",
                f"shortfall_ceiling ({self.shortfall_ceiling:g}) is less than max_shortfall ({self.max_shortfall:g}); "
                f"shortfall_ceiling = {2 * self.max_shortfall:g} would do",
            )
        if self.delta < 1 + self.eps:
            yield ("delta eps", f"delta ({self.delta:g}) is less than 1 + eps; delta = 4.0 would do")
