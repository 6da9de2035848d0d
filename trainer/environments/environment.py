"""What an environment is: problems by number, what it says in between, and what a model's words are worth.

Everything here is a pure function, so that others can repeat it: a problem follows from the environment and a number,
the environment's replies and the score from the problem and what the model wrote.  Prompts and rewards are therefore
recomputed by whoever needs them, and never taken from whoever generated.

A conversation is: prompt, turn, reply, turn, reply, …, turn.  A turn is what the model writes up to its end token.  A
tool's output is a reply.  Where the environment has nothing to say (None), the conversation is over; a single-turn
environment never has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TURN_END = "\0"
"""Ends a turn in an example's text.  It is the byte-level model's end token; a prompt or reply never contains it."""


@dataclass(frozen=True)
class Problem:
    """One task.  index: its number in the environment.  answer: what scoring needs, the environment's own business."""

    index: int
    prompt: str
    answer: Any


class Environment(ABC):
    """Problems 0 to `size` - 1, and how they are scored."""

    max_turns: int = 1
    """Turns that a conversation has at most."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many problems there are."""

    @abstractmethod
    def problem(self, index: int) -> Problem:
        """The problem of this number.  Raises ValueError unless 0 <= index < size."""

    @abstractmethod
    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """What these turns of the model are worth, in [0, 1].

        Never raises for anything that a model may write; SandboxUnavailable, where this computer failed, is no score.
        """

    def is_exact(self, problem: Problem) -> bool:
        """Whether every computer gives an answer to it the same score: no program runs for it, which may be too slow."""
        return False

    @abstractmethod
    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Turns that solve the problem, for a warm start.  Raises ValueError where the environment knows none."""

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """What the environment says after these turns (at least one), or None when the conversation is over."""
        return None

    def example(self, index: int) -> tuple[str, str]:
        """A prompt and what a good model would make of it, as texts to train on.

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
