"""Groups of completions of one problem: their rewards, their advantages, and the filter of groups that teach nothing.

Advantages are GRPO's (DeepSeekMath, Shao et al. 2024, section 4.1): a completion is compared with the others of its group.
Without the division by the standard deviation they are the advantages of Dr. GRPO (Liu et al. 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.rl.rollout import Rollout

STD_FLOOR = 1e-6
"""Number added to the standard deviation of a group's rewards."""


@dataclass(frozen=True)
class Scored:
    """Rollout with its reward, as computed here.

    solved: the score by the task's verifier, 0 to 1.  reward: for learning: `solved`, less the cost of the length.
    """

    rollout: Rollout
    solved: float
    reward: float


@dataclass(frozen=True)
class Group:
    """Completions of one problem that came in, in the order of their copies.

    batch: the place of their batch.
    """

    problem: int
    members: tuple[Scored, ...]
    batch: int = 0

    @property
    def rewards(self) -> list[float]:
        """Rewards of the members, copy after copy."""
        return [member.reward for member in self.members]

    @property
    def solve_rate(self) -> float:
        """Mean of the verifier's scores, 0 to 1."""
        return math.fsum(member.solved for member in self.members) / len(self.members)

    @property
    def is_informative(self) -> bool:
        """True if any advantage differs from 0."""
        return min(self.rewards) < max(self.rewards)


def grouped(scored: Iterable[Scored]) -> list[Group]:
    """Group rollouts, in the order of their problems.  Raises ValueError if a problem has a copy twice."""
    members: dict[int, dict[int, Scored]] = {}
    for each in scored:
        group, copy = members.setdefault(each.rollout.problem, {}), each.rollout.copy
        if copy in group:
            raise ValueError(f"problem {each.rollout.problem} has its copy {copy} twice")
        group[copy] = each
    return [
        Group(problem, tuple(group[copy] for copy in sorted(group))) for problem, group in sorted(members.items())
    ]  # fmt: skip


def advantages(rewards: Sequence[float], divide_by_std: bool = True) -> list[float]:
    """Return (R - mean) / (std + 1e-6) of each reward, or R - mean; exactly 0 if all are equal.

    std: the population standard deviation of these rewards.
    """
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    differences = [reward - mean for reward in rewards]
    if not divide_by_std:
        return differences
    std = math.sqrt(math.fsum(difference * difference for difference in differences) / len(rewards))
    return [difference / (std + STD_FLOOR) for difference in differences]


def informative(groups: Iterable[Group]) -> list[Group]:
    """Return the groups in which not all rewards are equal: the others change nothing (online filter)."""
    return [group for group in groups if group.is_informative]


# -- length ------------------------------------------------------------------------------------------------------------


def scored(rollout: Rollout, solved: float, target: int | None = None, length_weight: float = 0.0) -> Scored:
    """Return the rollout with its reward.  target: the length that its prompt names, or None."""
    if target is None:
        return Scored(rollout, solved, solved)
    return Scored(rollout, solved, length_reward(solved, sum(rollout.made), target, length_weight))


def length_reward(reward: float, length: int, target: int, weight: float) -> float:
    """Return the reward, less `weight` for each token between `length` and `target` (INTELLECT-2: 0.0003).

    length: tokens that the model chose.
    """
    return reward - weight * abs(target - length)
