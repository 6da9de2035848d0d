"""Groups of completions of one problem: their rewards, their advantages, and the filter of groups that teach nothing.

Advantages are GRPO's (DeepSeekMath, Shao et al. 2024, section 4.1): a completion is compared with the others of its group.
Without the division by the standard deviation they are the advantages of Dr. GRPO (Liu et al. 2025).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from trainer.data.tokens import Tokenizer
from trainer.environments.environment import Environment, Problem
from trainer.rl.rollout import Rollout

# ------------------------------------------------------------------------------------------------------------------------
# Prompts that name a target length: the number of tokens that a model should think for.
#
# The length is drawn from a run's `length_targets`, the same for all peers, so that generating, verifying and learning use
# the same prompt and the same reward.


class TargetedEnvironment(Environment):
    """Environment with the problems of another one, each with its target length in the prompt.

    targets: lengths to draw from; without any the prompts stay unchanged.  seed: the run's.
    """

    def __init__(self, own: Environment, targets: Sequence[int], seed: int) -> None:
        self._own, self._targets, self._seed = own, targets, seed
        self.max_turns = own.max_turns

    @property
    def size(self) -> int:
        """As `Environment.size`."""
        return self._own.size

    def problem(self, index: int) -> Problem:
        """As `Environment.problem`."""
        problem = self._own.problem(index)
        return replace(problem, prompt=with_target(problem.prompt, self.target(index)))

    def target(self, index: int) -> int | None:
        """Return the length in tokens that the prompt of this problem names, or None."""
        return target_length(self._targets, self._seed, index)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """As `Environment.score`."""
        return self._own.score(problem, turns)

    def is_exact(self, problem: Problem) -> bool:
        """As `Environment.is_exact`."""
        return self._own.is_exact(problem)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """As `Environment.solution`."""
        return self._own.solution(problem)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """As `Environment.reply`."""
        return self._own.reply(problem, turns)


def target_length(targets: Sequence[int], seed: int, problem: int) -> int | None:
    """Return the length that the prompt of `problem` names, one of `targets`, the same on every peer; None if empty."""
    if not targets:
        return None
    digest = hashlib.blake2b(f"length/{seed}/{problem}".encode(), digest_size=8).digest()
    return targets[int.from_bytes(digest, "big") % len(targets)]


def with_target(prompt: str, target: int | None) -> str:
    """Add the target length to a prompt, in INTELLECT-2's words, before the line feeds at its end."""
    if target is None:
        return prompt
    text = prompt.rstrip("\n")
    return f"{text} Think for {target} tokens before giving a response.{prompt[len(text) :]}"


def most_prompt_bytes(row_tokens: int, max_tokens: int, targets: Sequence[int]) -> int:
    """Return the most bytes of a task's prompt that leave room in a row for its output and the length that it names."""
    return row_tokens + 1 - max_tokens - max((len(with_target("", target)) for target in targets), default=0)


def prompt_flaw(prompt: str, tokenizer: Tokenizer, row_tokens: int, max_tokens: int, targets: Sequence[int]) -> str:
    """Return the reason why no model can answer this prompt and learn from it, as a phrase; empty if one can."""
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
    """Return the length that takes the most tokens to name, or None; cached, as each prompt asks for it."""
    return max(targets, key=lambda target: len(tokenizer.prompt(with_target("", target))), default=None)


# ------------------------------------------------------------------------------------------------------------------------


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
