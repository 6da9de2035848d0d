"""Interface of environments: numbered problems, replies to a model's turns, and scores of its answers.

Everything here is a pure function, so that others can repeat it: a problem follows from the environment and a number,
the environment's replies and the score from the problem and the model's turns.  Each peer therefore computes prompts and
rewards itself, and never takes them from the peer that generated.

A conversation is: prompt, turn, reply, turn, reply, …, turn.  A turn is the model's text up to its end token.  A tool's
output is a reply.  The conversation is over when the environment has no reply (None); a single-turn environment never has
one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TURN_END = "\0"
"""End of a turn in an example's text: the byte-level model's end token.  A prompt or reply never contains it."""


@dataclass(frozen=True)
class Problem:
    """Problem of an environment.  index: its number there.  answer: data for scoring, known only to the environment."""

    index: int
    prompt: str
    answer: Any


class Environment(ABC):
    """Problems 0 to `size` - 1, with their replies and scores."""

    max_turns: int = 1
    """Most turns of a conversation."""

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

        Raises nothing because of the model's text; SandboxUnavailable means that this computer failed, and is no score.
        """

    def is_exact(self, problem: Problem) -> bool:
        """Return True if every computer gives an answer the same score: no program runs for it, which could be too slow."""
        return False

    @abstractmethod
    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return turns that solve the problem, for a warm start.  Raises ValueError if the environment knows no solution."""

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """Return the environment's reply to these turns (at least one), or None if the conversation is over."""
        return None

    def example(self, index: int) -> tuple[str, str]:
        """Return a prompt and a good model's conversation after it, as texts to train on.

        Turns and replies follow each other, with `TURN_END` after each turn but the last.
        """
        problem = self.problem(index)
        said: list[str] = []
        turns = self.solution(problem)
        for count, turn in enumerate(turns, start=1):
            said.append(turn)
            if count < len(turns):
                said += [TURN_END, self.reply(problem, turns[:count]) or ""]
        return problem.prompt, "".join(said)

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise ValueError(f"there is no problem {index}: this environment has {self.size}, counted from 0")
        return index
