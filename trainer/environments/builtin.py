"""Built-in tasks of one turn, which are short, procedural, and learnable by a byte-level model on a CPU.

A prompt is the task's name, the question and a line feed; the answer is one short line. A problem is determined by the task,
its options and its number. The score is 1 if the turn is exactly the answer, otherwise 0; blanks and line feeds around the
answer are ignored.
"""

from __future__ import annotations

import hashlib
import operator
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from string import ascii_lowercase, digits
from typing import Any, ClassVar, TypeVar

from trainer.environments.environment import Environment, Problem

# ------------------------------------------------------------------------------------------------------------------------
# Random choices for one problem, the same on every computer and with every version of Python.


T = TypeVar("T")


class Draw:
    """Stream of random choices that depends only on its name and number (BLAKE2b in counter mode)."""

    def __init__(self, name: str, index: int) -> None:
        self._key = f"{name}/{index}".encode()
        self._drawn = 0

    def below(self, limit: int) -> int:
        """Draw a number from 0 to `limit` - 1. `limit` is below 2^32, so the deviation from uniform is below 2^-32."""
        assert 0 < limit < 1 << 32
        self._drawn += 1
        block = hashlib.blake2b(self._key, digest_size=8, salt=self._drawn.to_bytes(8, "big")).digest()
        return int.from_bytes(block, "big") % limit

    def between(self, low: int, high: int) -> int:
        """Draw a number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def one_of(self, choices: Sequence[T]) -> T:
        """Draw one of the choices."""
        return choices[self.below(len(choices))]

    def text(self, alphabet: str, length: int) -> str:
        """Draw `length` letters of the alphabet, with repetition."""
        return "".join(self.one_of(alphabet) for _ in range(length))


# ------------------------------------------------------------------------------------------------------------------------


PROBLEMS = 1 << 20
"""Number of problems of a built-in task. In the shortest tasks, many prompts occur under several numbers."""
LONGEST = 64
"""Maximum number of letters or digits that an option may ask for."""


class BuiltInTask(Environment):
    """Task whose problems follow from its name, its options and their numbers.

    name: name of the task, with which each prompt begins.  bounds: bounds of its option, a whole number.
    """

    name: ClassVar[str]
    bounds: ClassVar[tuple[int, int]] = (2, LONGEST)

    def __post_init__(self) -> None:
        """Raise ValueError for an option that is not a whole number within its bounds."""
        least, most = self.bounds
        for option in fields(self):  # type: ignore[arg-type]  # every task is a dataclass
            value = getattr(self, option.name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{option.name} must be a whole number from {least} to {most}, not {value!r}")

    @property
    def size(self) -> int:
        """Number of problems, as in `Environment.size`."""
        return PROBLEMS

    def problem(self, index: int) -> Problem:
        """Return the problem as `Environment.problem` describes."""
        question, answer = self._make(Draw(self.name, self._checked(index)))
        return Problem(index, f"{self.name} {question}\n", answer)

    def is_exact(self, problem: Problem) -> bool:
        """Return True, because every computer gives the same score."""
        return True

    @abstractmethod
    def _make(self, draw: Draw) -> tuple[str, Any]:
        """Return a question and its answer."""


class ProceduralTask(BuiltInTask):
    """Task of one turn with one right answer, a text."""

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Return 1 if the only turn is the answer, else 0."""
        return float(len(turns) == 1 and turns[0].strip() == problem.answer)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return the answer as the only turn."""
        return (str(problem.answer),)


@dataclass(eq=False)
class Reverse(ProceduralTask):
    """Task to write a word backwards: `reverse kqzt` -> `tzqk`.  letters: maximum length of a word."""

    name = "reverse"
    letters: int = 6

    def _make(self, draw: Draw) -> tuple[str, str]:
        word = draw.text(ascii_lowercase, draw.between(2, self.letters))
        return word, word[::-1]


@dataclass(eq=False)
class SortDigits(ProceduralTask):
    """Task to write digits in ascending order: `sort 41732` -> `12347`.  digits: maximum number of digits."""

    name = "sort"
    digits: int = 6

    def _make(self, draw: Draw) -> tuple[str, str]:
        number = draw.text(digits, draw.between(2, self.digits))
        return number, "".join(sorted(number))


@dataclass(eq=False)
class Add(ProceduralTask):
    """Task to add two numbers: `add 37+58` -> `95`.  digits: maximum number of digits of a summand."""

    name = "add"
    bounds = (1, 9)
    digits: int = 2

    def _make(self, draw: Draw) -> tuple[str, str]:
        one, other = (draw.below(10 ** draw.between(1, self.digits)) for _ in range(2))
        return f"{one}+{other}", str(one + other)


@dataclass(eq=False)
class Shift(ProceduralTask):
    """Task to replace each letter of a word by the next letter: `shift abz` -> `bca`. letters: maximum length of a word."""

    name = "shift"
    letters: int = 6

    def _make(self, draw: Draw) -> tuple[str, str]:
        word = draw.text(ascii_lowercase, draw.between(2, self.letters))
        return word, word.translate(str.maketrans(ascii_lowercase, ascii_lowercase[1:] + "a"))


@dataclass(eq=False)
class Count(ProceduralTask):
    """Task to count a letter in a word: `count b abbacbad` -> `3`.  letters: maximum length of a word of a, b, c and d."""

    name = "count"
    letters: int = 9

    def _make(self, draw: Draw) -> tuple[str, str]:
        letter = draw.one_of("abcd")
        word = draw.text("abcd", draw.between(2, self.letters))
        return f"{letter} {word}", str(word.count(letter))


@dataclass(eq=False)
class CloseBrackets(ProceduralTask):
    """Task to close open brackets: `close ([]{` -> `})`.

    brackets: maximum number in a question; at least one stays open.
    """

    name = "close"
    brackets: int = 8

    def _make(self, draw: Draw) -> tuple[str, str]:
        pairs = {"(": ")", "[": "]", "{": "}"}
        written, still_open = "", ""
        for left in range(draw.between(2, self.brackets), 0, -1):
            may_close = len(still_open) > 1 or (still_open and left > 1)
            if may_close and draw.below(2):
                written, still_open = written + pairs[still_open[-1]], still_open[:-1]
            else:
                bracket = draw.one_of("([{")
                written, still_open = written + bracket, still_open + bracket
        return written, "".join(pairs[bracket] for bracket in reversed(still_open))


# ------------------------------------------------------------------------------------------------------------------------
# Built-in tasks of several turns: a guessing game, and two tasks that need a tool.
#
# Each turn and each reply is one short line. The score is 1 if the conversation ends with the right answer within its
# maximum number of turns, else 0.


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NOT_UNDERSTOOD = "?"
"""Reply to a turn that is not a valid move."""


@dataclass(eq=False)
class Guess(BuiltInTask):
    """Task to find a number from 1 to `most`: `guess 1-15`, then one number per turn, answered by `more` or `less`.

    The number of turns suffices to halve the range down to one number, so a model that guesses well always wins.
    """

    name = "guess"
    bounds = (2, 1000)
    most: int = 15

    def __post_init__(self) -> None:
        """Check the option as `BuiltInTask.__post_init__` does."""
        super().__post_init__()
        self.max_turns = self.most.bit_length()

    def _make(self, draw: Draw) -> tuple[str, int]:
        return f"1-{self.most}", draw.between(1, self.most)

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """Return the reply as `Environment.reply` describes."""
        guess = _whole_number(turns[-1])
        if guess == problem.answer or len(turns) >= self.max_turns:
            return None
        if guess is None:
            return f"{NOT_UNDERSTOOD}\n"
        return "more\n" if guess < problem.answer else "less\n"

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Score the turns as `Environment.score` describes."""
        return float(0 < len(turns) <= self.max_turns and _whole_number(turns[-1]) == problem.answer)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return a solution as `Environment.solution` describes."""
        low, high, turns = 1, self.most, []
        while True:
            guess = (low + high) // 2
            turns.append(str(guess))
            if guess == problem.answer:
                return tuple(turns)
            low, high = (guess + 1, high) if guess < problem.answer else (low, guess - 1)


@dataclass(eq=False)
class ToolTask(BuiltInTask):
    """Task that takes two questions to a tool, such as `?37*4`, and an answer, such as `=173`.

    turns: maximum number of turns. With a single turn the tool is of no use, and the answer has to be guessed.
    """

    bounds = (1, 16)
    turns: int = 3

    def __post_init__(self) -> None:
        """Check the option as `BuiltInTask.__post_init__` does."""
        super().__post_init__()
        self.max_turns = self.turns

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """Return the reply as `Environment.reply` describes."""
        said = turns[-1].strip()
        if len(turns) >= self.max_turns or said.startswith("="):
            return None
        return f"{self._answered(problem, said)}\n"

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Score the turns as `Environment.score` describes."""
        return float(0 < len(turns) <= self.max_turns and turns[-1].strip() == self.solution(problem)[-1])

    @abstractmethod
    def _answered(self, problem: Problem, asked: str) -> str:
        """Return the tool's answer; `NOT_UNDERSTOOD` for a turn that is not a question to it."""


@dataclass(eq=False)
class Lookup(ToolTask):
    """Task to ask for two values, and to answer with both: `lookup k q`; `?k` -> `7`, `?q` -> `5`, then `=75`.

    The values are not in the prompt, so without the tool the chance of a right answer is 1 in 100.
    """

    name = "lookup"

    def _make(self, draw: Draw) -> tuple[str, dict[str, str]]:
        keys = draw.one_of("abcdefghijklm") + draw.one_of("nopqrstuvwxyz")
        return f"{keys[0]} {keys[1]}", {key: draw.one_of(digits) for key in keys}

    def _answered(self, problem: Problem, asked: str) -> str:
        value: str = problem.answer.get(asked[1:], NOT_UNDERSTOOD)
        return value if asked.startswith("?") else NOT_UNDERSTOOD

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return a solution as `Environment.solution` describes."""
        turns = *(f"?{key}" for key in problem.answer), "=" + "".join(problem.answer.values())
        return turns[-self.turns :]


@dataclass(eq=False)
class Calculate(ToolTask):
    """Task to compute with a calculator: `calculate 37*4+25`; `?37*4` -> `148`, `?148+25` -> `173`, then `=173`.

    The tool computes one operation at a time, on numbers of up to six digits.
    """

    name = "calculate"

    def _make(self, draw: Draw) -> tuple[str, tuple[int, int, int]]:
        one, factor, more = draw.between(10, 99), draw.between(2, 9), draw.between(10, 99)
        return f"{one}*{factor}+{more}", (one, factor, more)

    def _answered(self, problem: Problem, asked: str) -> str:
        parts = re.fullmatch(r"\?([0-9]{1,6})([*+-])([0-9]{1,6})", asked)
        return NOT_UNDERSTOOD if parts is None else str(OPERATIONS[parts[2]](int(parts[1]), int(parts[3])))

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return a solution as `Environment.solution` describes."""
        one, factor, more = problem.answer
        turns = f"?{one}*{factor}", f"?{one * factor}+{more}", f"={one * factor + more}"
        return turns[-self.turns :]


def _whole_number(turn: str) -> int | None:
    return int(turn) if re.fullmatch(r"\s*[0-9]{1,9}\s*", turn, re.ASCII) else None
