"""Interface of environments, which give numbered problems, replies to a model's turns, and scores for its answers.

All functions here are pure, so that other peers can repeat them. The environment and a number determine a problem; the
problem and the model's turns determine the replies and the score. Each peer therefore computes prompts and rewards itself,
and never takes them from the peer that generated the rollout.

A conversation is: prompt, turn, reply, turn, reply, …, turn. A turn is the model's text up to its end token. A tool's output
is a reply. The conversation is over when the environment gives no reply (None); a single-turn environment never replies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.data.tokens import Tokenizer
from trainer.environments.sandbox import SandboxUnavailable


@dataclass(frozen=True)
class Problem:
    """Problem of an environment.  index: the problem's number. answer: data for scoring, which only the environment uses."""

    index: int
    prompt: str
    answer: Any


class ReplyUnavailable(SandboxUnavailable):
    """Error for a reply that this computer cannot give, or cannot reproduce. It proves nothing about a rollout's maker."""


class ReplyDiffers(ValueError):
    """Error for an output in which a reply is not the one that the environment gives here."""


class Environment(ABC):
    """Environment with problems 0 to `size` - 1, and their replies and scores."""

    max_turns: int = 1
    """Maximum number of turns of a conversation; nothing replies to the last one."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of problems."""

    @abstractmethod
    def problem(self, index: int) -> Problem:
        """Return the problem of this number.  Raises ValueError unless 0 <= index < size."""

    @abstractmethod
    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Return the score of these turns of the model, in [0, 1].

        The model's text never causes an exception. SandboxUnavailable means that this computer failed; it is not a score.
        """

    def is_exact(self, problem: Problem) -> bool:
        """Return True if every computer gives an answer the same score, because no program, which could be slow, runs."""
        return False

    @abstractmethod
    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return turns that solve the problem, for a warm start.  Raises ValueError if the environment knows no solution."""

    def expected(self, problem: Problem) -> str:
        """Describe a right answer for people, with its required form; empty if the environment does not know one."""
        try:
            return "\n".join(self.solution(problem))
        except ValueError:
            return ""

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """Return the environment's reply to these turns (at least one), or None if the conversation is over.

        An exception means that this computer failed; it is not a reply. `reply_tokens` adds the limit on turns.
        """
        return None

    def has_exact_replies(self, problem: Problem) -> bool:
        """Return True if every computer gives the same replies, because none of them comes from a program of the model."""
        return True

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise ValueError(f"there is no problem {index}: this environment has {self.size}, counted from 0")
        return index


class OuterEnvironment(Environment):
    """Environment whose problems are those of other environments, which score them and reply."""

    @abstractmethod
    def inner(self, problem: Problem) -> tuple[Environment, Problem]:
        """Return the environment to which a problem belongs, and the problem as that environment gave it."""

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Score the turns as the inner environment does."""
        environment, inner = self.inner(problem)
        return environment.score(inner, turns)

    def is_exact(self, problem: Problem) -> bool:
        """Return the inner environment's `is_exact`."""
        environment, inner = self.inner(problem)
        return environment.is_exact(inner)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return the inner environment's solution."""
        environment, inner = self.inner(problem)
        return environment.solution(inner)

    def expected(self, problem: Problem) -> str:
        """Describe a right answer as the inner environment does."""
        environment, inner = self.inner(problem)
        return environment.expected(inner)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """Return the inner environment's reply; None to its last turn."""
        environment, inner = self.inner(problem)
        return environment.reply(inner, turns) if len(turns) < environment.max_turns else None

    def has_exact_replies(self, problem: Problem) -> bool:
        """Return the inner environment's `has_exact_replies`."""
        environment, inner = self.inner(problem)
        return environment.has_exact_replies(inner)


# ------------------------------------------------------------------------------------------------------------------------
# Conversations as tokens: the layout of an example, and the reading of a rollout's output back into turns.
#
# The output of a rollout is: turn, end token, reply, turn, end token, reply, …, turn, end token. If generation stopped at
# a limit on the output or the turn, the output ends within a turn, or before a reply that did not fit, but never within a
# reply. `made` marks the tokens that the model chose (turns and end tokens). All other tokens must be exactly the
# environment's replies, or the output is refused.


@dataclass(frozen=True)
class ExampleTokens:
    """Example to train on.  made: for each output token, True if the model should learn to write it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    made: tuple[bool, ...]


def example_tokens(environment: Environment, index: int, tokenizer: Tokenizer) -> ExampleTokens:
    """Return the example of a problem in the layout of a rollout.  Raises ValueError if the problem has no solution."""
    problem = environment.problem(index)
    turns = environment.solution(problem)
    output: list[int] = []
    made: list[bool] = []
    for count, turn in enumerate(turns, start=1):
        tokens = [*tokenizer.encode(turn), tokenizer.end]
        output += tokens
        made += [True] * len(tokens)
        if count < len(turns):
            tokens = reply_tokens(environment, problem, turns[:count], tokenizer) or []
            output += tokens
            made += [False] * len(tokens)
    return ExampleTokens(tuple(tokenizer.prompt(problem.prompt)), tuple(output), tuple(made))


def reply_tokens(environment: Environment, problem: Problem, turns: Sequence[str], tokenizer: Tokenizer) -> list[int] | None:
    """Return the tokens of the reply to these turns (at least one), or None if the conversation is over.

    Raises ReplyUnavailable if the environment fails, with any exception.
    """
    if len(turns) >= environment.max_turns:
        return None
    try:
        reply = environment.reply(problem, turns)
        return None if reply is None else tokenizer.reply(reply)
    except Exception as error:  # an environment may fail in any way; its text may contain the model's
        raise ReplyUnavailable(f"the environment gives no reply here: {type(error).__name__}") from error


def read_turns(
    environment: Environment,
    problem: Problem,
    output: Sequence[int],
    made: Sequence[bool],
    tokenizer: Tokenizer,
    max_turn_tokens: int = 0,
) -> tuple[str, ...]:
    """Return the model's turns in a rollout's output.

    max_turn_tokens: maximum length of a turn with its end token; 0 for any.  Raises ReplyDiffers with one sentence if a
    reply in the output is not the environment's, another ValueError if the output has no such form or continues after the
    conversation is over, and ReplyUnavailable.
    """
    if len(output) != len(made):
        raise ValueError("a rollout says of each output token whether the model chose it")
    turns: list[str] = []
    place = 0
    while place < len(output):
        start = place
        while place < len(output):
            if not made[place]:
                raise ValueError(f"output token {place} is in a turn of the model, but not chosen by it")
            place += 1
            if output[place - 1] in tokenizer.ends:
                break
        tokens = output[start:place]
        if 0 < max_turn_tokens < len(tokens):
            raise ValueError(f"turn {len(turns) + 1} has {len(tokens)} tokens, more than {max_turn_tokens}")
        ended = tokens[-1] in tokenizer.ends
        turns.append(tokenizer.decode(tokens[:-1] if ended else tokens))
        if place == len(output):
            break
        reply = reply_tokens(environment, problem, turns, tokenizer) if ended else None
        said = reply or []
        if list(output[place : place + len(said)]) != said or any(made[place : place + len(said)]):
            raise ReplyDiffers(f"after turn {len(turns)} the rollout lacks the environment's reply")
        place += len(said)
        if reply is not None and place < len(output) and not made[place]:
            raise ReplyDiffers(f"after turn {len(turns)} the rollout has more than the environment's reply")
        if reply is None and place < len(output):
            raise ValueError(f"the rollout continues after turn {len(turns)}, the end of the conversation")
    return tuple(turns)
