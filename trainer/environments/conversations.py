"""Built-in tasks of several turns: a guessing game, and two tasks that need a tool.

Each turn and each reply is one short line.  The score is 1 for a conversation that ends with the right answer within its
turns, else 0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

from trainer.environments.builtin import PROBLEMS, length_option
from trainer.environments.draw import Draw
from trainer.environments.environment import Environment, Problem

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NOT_UNDERSTOOD = "?"
"""Reply to a turn that is no valid move."""


class _Conversation(Environment):
    name: str

    @property
    def size(self) -> int:
        return PROBLEMS

    def is_exact(self, problem: Problem) -> bool:
        return True


class Guess(_Conversation):
    """Task to find a number from 1 to `most`: `guess 1-15`, then one number per turn, answered by `more` or `less`.

    There are as many turns as halving the range needs, so a model that guesses well always wins.
    """

    name = "guess"

    def __init__(self, most: int = 15) -> None:
        self._most = length_option("most", most, most=1000)
        self.max_turns = self._most.bit_length()

    def problem(self, index: int) -> Problem:
        secret = Draw(self.name, self._checked(index)).between(1, self._most)
        return Problem(index, f"{self.name} 1-{self._most}\n", secret)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        guess = _whole_number(turns[-1])
        if guess == problem.answer or len(turns) >= self.max_turns:
            return None
        if guess is None:
            return f"{NOT_UNDERSTOOD}\n"
        return "more\n" if guess < problem.answer else "less\n"

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return float(0 < len(turns) <= self.max_turns and _whole_number(turns[-1]) == problem.answer)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        low, high, turns = 1, self._most, []
        while True:
            guess = (low + high) // 2
            turns.append(str(guess))
            if guess == problem.answer:
                return tuple(turns)
            low, high = (guess + 1, high) if guess < problem.answer else (low, guess - 1)


class Lookup(_Conversation):
    """Task to ask for two values, and say both: `lookup k q`; `?k` -> `7`, `?q` -> `5`, then `=75`.

    The values are not in the prompt: without the tool the chance is 1 in 100.
    """

    name = "lookup"
    max_turns = 3

    def problem(self, index: int) -> Problem:
        draw = Draw(self.name, self._checked(index))
        keys = draw.one_of("abcdefghijklm") + draw.one_of("nopqrstuvwxyz")
        return Problem(index, f"{self.name} {keys[0]} {keys[1]}\n", {key: draw.text("0123456789", 1) for key in keys})

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        said = turns[-1].strip()
        if len(turns) >= self.max_turns or said.startswith("="):
            return None
        return problem.answer.get(said[1:], NOT_UNDERSTOOD) + "\n" if said.startswith("?") else f"{NOT_UNDERSTOOD}\n"

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return float(0 < len(turns) <= self.max_turns and turns[-1].strip() == "=" + "".join(problem.answer.values()))

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return *(f"?{key}" for key in problem.answer), "=" + "".join(problem.answer.values())


class Calculate(_Conversation):
    """Task to compute with a calculator: `calculate 37*4+25`; `?37*4` -> `148`, `?148+25` -> `173`, then `=173`.

    The tool takes one operation at a time, on numbers of up to six digits.
    """

    name = "calculate"
    max_turns = 3

    def problem(self, index: int) -> Problem:
        draw = Draw(self.name, self._checked(index))
        one, factor, more = draw.between(10, 99), draw.between(2, 9), draw.between(10, 99)
        return Problem(index, f"{self.name} {one}*{factor}+{more}\n", (one, factor, more))

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        said = turns[-1].strip()
        if len(turns) >= self.max_turns or said.startswith("="):
            return None
        asked = re.fullmatch(r"\?([0-9]{1,6})([*+-])([0-9]{1,6})", said)
        if asked is None:
            return f"{NOT_UNDERSTOOD}\n"
        return f"{OPERATIONS[asked[2]](int(asked[1]), int(asked[3]))}\n"

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        one, factor, more = problem.answer
        return float(0 < len(turns) <= self.max_turns and turns[-1].strip() == f"={one * factor + more}")

    def solution(self, problem: Problem) -> tuple[str, ...]:
        one, factor, more = problem.answer
        return f"?{one}*{factor}", f"?{one * factor}+{more}", f"={one * factor + more}"


def _whole_number(turn: str) -> int | None:
    return int(turn) if re.fullmatch(r"\s*[0-9]{1,9}\s*", turn, re.ASCII) else None
