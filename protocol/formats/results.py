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
