"""What a version's work says about itself: sums over tokens while it runs, means at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.rl.groups import Group

STATISTICS = ("loss", "clipped", "ratio", "entropy", "kl")
"""Means over tokens, in the order in which `kernels.losses.policy_loss` gives them."""


@dataclass(frozen=True)
class Learnt:
    """What a version's work did.

    tokens: trained on.  steps: 0 where no group had anything to learn from.  norm: of the difference.  Means over those
    tokens: loss, entropy (nats), kl (nats, to the reference), clipped (share), ratio (new over old probability).  Means
    over all rollouts that came in: reward, solve_rate, length (tokens that the model chose).  groups, dropped: those that
    came in, and those of them that were left out.
    """

    tokens: int
    steps: int
    loss: float
    norm: float
    entropy: float
    kl: float
    clipped: float
    ratio: float
    reward: float
    solve_rate: float
    length: float
    groups: int
    dropped: int


@dataclass
class Totals:
    """Sums over tokens.  dropped: groups that were left out."""

    dropped: int = 0
    steps: int = 0
    tokens: int = 0
    sums: dict[str, float] = field(default_factory=lambda: {name: 0.0 for name in STATISTICS})

    def add(self, tokens: int, means: Sequence[float]) -> None:
        """Count so many tokens with these means, in the order of `STATISTICS`."""
        self.tokens += tokens
        for name, value in zip(STATISTICS, means, strict=True):
            self.sums[name] += tokens * value

    def merge(self, other: Totals) -> None:
        """Count the tokens that the other has counted."""
        self.tokens += other.tokens
        for name, value in other.sums.items():
            self.sums[name] += value

    def mean(self, name: str) -> float:
        """Over the tokens; 0 when there are none."""
        return self.sums[name] / max(1, self.tokens)

    def learnt(self, groups: Sequence[Group]) -> Learnt:
        """All of it, with what can be said about the groups that came in; without the norm."""
        members = [member for group in groups for member in group.members]
        count = max(1, len(members))
        return Learnt(
            tokens=self.tokens,
            steps=self.steps,
            norm=0.0,
            **{name: self.mean(name) for name in STATISTICS},
            reward=math.fsum(member.reward for member in members) / count,
            solve_rate=math.fsum(member.solved for member in members) / count,
            length=sum(sum(member.rollout.made) for member in members) / count,
            groups=len(groups),
            dropped=self.dropped,
        )
