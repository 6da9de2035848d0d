"""Results that a trainer reports of a round, besides its numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceLoss:
    """Mean loss of a source in a round, before each step.

    tokens: counted tokens.  loss: nats per token; for preferences, the mean over pairs.
    """

    source: str
    tokens: int
    loss: float


@dataclass(frozen=True)
class RatedAnswer:
    """Answer in a rollout, for people to read, with its reward as the trainer computed it.

    prompt, text: any characters; text is what the model has said in all turns.  expected: description of a right answer;
    empty if the environment knows none.
    """

    reward: float
    prompt: str
    text: str
    expected: str = ""


@dataclass(frozen=True)
class PolicyFigures:
    """Figures on the policy that learned from a round of rollouts; means are over the tokens that it learned from.

    entropy: nats, during the steps; None if nothing was learned.  left_out: batches that were left out because the weights
    that made them are not held.

    The others compare the policy before the first step with the behaviour, the policy that made the tokens.  They are None
    if the run's loss does not compare them, or if nothing was learned.  behaviour_kl: estimate of the divergence of the
    policy from the behaviour, nats per token.  truncated: share of tokens whose ratio, policy over behaviour, exceeds 2.
    effective: effective sample size of the ratios, truncated at 2, as a share of the tokens.
    """

    entropy: float | None
    left_out: int = 0
    behaviour_kl: float | None = None
    truncated: float | None = None
    effective: float | None = None
