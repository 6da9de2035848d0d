"""Groups of completions of one problem: their rewards, their advantages, and a filter for groups that teach nothing.

Advantages are computed as in GRPO (DeepSeekMath, Shao et al. 2024, section 4.1): a completion is compared with the other
completions of its group. Without the division by the standard deviation they are the advantages of Dr. GRPO (Liu et al.
2025).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from trainer.data.tokens import Tokenizer
from trainer.environments.environment import Environment, OuterEnvironment, Problem
from trainer.rl.rollout import Rollout

# ------------------------------------------------------------------------------------------------------------------------
# Prompts that name a target length, which is the number of tokens for which a model should think.
#
# The length is drawn from a run's `length_targets` and is the same for all peers. So generating, verifying and learning use
# the same prompt and the same reward.


class TargetedEnvironment(OuterEnvironment):
    """Environment with the problems of another environment, each with its target length in the prompt.

    targets: lengths to draw from; if empty, the prompts stay unchanged. seed: the run's seed.
    """

    def __init__(self, own: Environment, targets: Sequence[int], seed: int) -> None:
        self._own, self._targets, self._seed = own, targets, seed
        self.max_turns = own.max_turns

    @property
    def size(self) -> int:
        """Number of problems of the inner environment."""
        return self._own.size

    def problem(self, index: int) -> Problem:
        """Return the inner environment's problem, with the target length in the prompt."""
        problem = self._own.problem(index)
        return replace(problem, prompt=with_target(problem.prompt, self.target(index)))

    def target(self, index: int) -> int | None:
        """Return the length in tokens that the prompt of this problem names, the same on every peer, or None."""
        if not self._targets:
            return None
        digest = hashlib.blake2b(f"length/{self._seed}/{index}".encode(), digest_size=8).digest()
        return self._targets[int.from_bytes(digest, "big") % len(self._targets)]

    def inner(self, problem: Problem) -> tuple[Environment, Problem]:
        """Return the inner environment, and the problem itself."""
        return self._own, problem


def with_target(prompt: str, target: int | None) -> str:
    """Add the target length to a prompt, in INTELLECT-2's words, before the line feeds at its end."""
    if target is None:
        return prompt
    text = prompt.rstrip("\n")
    return f"{text} Think for {target} tokens before giving a response.{prompt[len(text) :]}"


def most_prompt_bytes(row_tokens: int, max_tokens: int, targets: Sequence[int]) -> int:
    """Return the maximum bytes of a task's prompt that leave room in a row for the output and for the target length."""
    return row_tokens + 1 - max_tokens - max((len(with_target("", target)) for target in targets), default=0)


def prompt_flaw(prompt: str, tokenizer: Tokenizer, row_tokens: int, max_tokens: int, targets: Sequence[int]) -> str:
    """Return the reason why no model can answer this prompt and learn from it, as a phrase; empty if a model can."""
    try:
        tokens = tokenizer.prompt(with_target(prompt, _longest(tokenizer, tuple(targets))))
    except ValueError as error:
        return f"cannot be read by the run's model: {error}"
    most = row_tokens + 1 - max_tokens
    if not 1 <= len(tokens) <= most:
        return f"has {len(tokens)} tokens, and this run learns from prompts of 1 to {most} (row_tokens + 1 - max_tokens)"
    return ""


@lru_cache(maxsize=8)
def _longest(tokenizer: Tokenizer, targets: tuple[int, ...]) -> int | None:
    """Return the length that takes the most tokens to name, or None; cached, because every prompt needs it."""
    return max(targets, key=lambda target: len(tokenizer.prompt(with_target("", target))), default=None)


# ------------------------------------------------------------------------------------------------------------------------


STD_FLOOR = 1e-6
"""Number added to the standard deviation of a group's rewards."""


@dataclass(frozen=True)
class Scored:
    """Rollout with its reward, as computed on this computer.

    solved: the score by the task's verifier, 0 to 1. reward: reward for learning: `solved`, minus the cost of the length.
    """

    rollout: Rollout
    solved: float
    reward: float


@dataclass(frozen=True)
class Group:
    """Received completions of one problem, in the order of their copies.

    batch: the index of their batch.  age: number of versions by which the weights that made them are older than the weights
    that learn from them; None if those weights are not held here.
    """

    problem: int
    members: tuple[Scored, ...]
    batch: int = 0
    age: int | None = 0

    @property
    def rewards(self) -> list[float]:
        """Rewards of the members, in the order of their copies."""
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
    """Group rollouts, in the order of their problems.  Raises ValueError if a copy of a problem occurs twice."""
    members: dict[int, dict[int, Scored]] = {}
    for each in scored:
        group, copy = members.setdefault(each.rollout.problem, {}), each.rollout.copy
        if copy in group:
            raise ValueError(f"problem {each.rollout.problem} has its copy {copy} twice")
        group[copy] = each
    return [
        Group(problem, tuple(group[copy] for copy in sorted(group))) for problem, group in sorted(members.items())
    ]  # fmt: skip


def best_and_typical(groups: Iterable[Group]) -> tuple[Scored, Scored] | None:
    """Return the completion with the highest reward, and one with the median reward; None if there are no groups.

    Of several completions with the same reward, the first by problem and copy is returned.
    """
    ordered = sorted((member for group in groups for member in group.members), key=lambda member: -member.reward)
    return (ordered[0], ordered[len(ordered) // 2]) if ordered else None


def advantages(rewards: Sequence[float], divide_by_std: bool = True) -> list[float]:
    """Return (R - mean) / (std + 1e-6) for each reward R, or R - mean; exactly 0 if all rewards are equal.

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
    """Return the groups in which not all rewards are equal; other groups change nothing (online filter)."""
    return [group for group in groups if group.is_informative]


def scored(rollout: Rollout, solved: float, target: int | None = None, length_weight: float = 0.0) -> Scored:
    """Return the rollout with its reward: `solved`, minus a cost of the length (INTELLECT-2: 0.0003).

    target: the length that the prompt names, or None.  length_weight: cost of each token that the model chose beyond or
    short of the target.
    """
    beside = 0 if target is None else abs(target - sum(rollout.made))
    return Scored(rollout, solved, solved - length_weight * beside)
