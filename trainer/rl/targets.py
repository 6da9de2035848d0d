"""Prompts that name a target length: the number of tokens that a model should think for.

The length is drawn from a run's `length_targets`, the same for all peers, so that generating, verifying and learning use the
same prompt and the same reward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from trainer.data.tokens import Tokenizer
from trainer.environments.environment import Environment, Problem


class Targeted(Environment):
    """Environment with the problems of another one, each with its target length in the prompt.

    targets: lengths to draw from; without any the prompts stay unchanged.  seed: the run's.
    """

    def __init__(self, own: Environment, targets: Sequence[int], seed: int) -> None:
        self._own, self._targets, self._seed = own, targets, seed
        self.max_turns = own.max_turns

    @property
    def size(self) -> int:
        return self._own.size

    def problem(self, index: int) -> Problem:
        problem = self._own.problem(index)
        return replace(problem, prompt=with_target(problem.prompt, self.target(index)))

    def target(self, index: int) -> int | None:
        """Return the length in tokens that the prompt of this problem names, or None."""
        return target_length(self._targets, self._seed, index)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return self._own.score(problem, turns)

    def is_exact(self, problem: Problem) -> bool:
        return self._own.is_exact(problem)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return self._own.solution(problem)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
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
