"""Built-in tasks of one turn: short, procedural, and learnable by a byte-level model on a CPU.

A prompt is the task's name, the question and a line feed; the answer is one short line.  A problem follows from the
task, its options and its number.  The score is 1 for exactly the answer, else 0; only blanks and line feeds around the
answer are ignored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from string import ascii_lowercase

from trainer.environments.draw import Draw
from trainer.environments.environment import Environment, Problem

PROBLEMS = 1 << 20
"""Number of problems of a built-in task.  Many prompts of the shortest tasks recur under other numbers."""
LONGEST = 64
"""The most letters or digits that an option may ask for."""


class ProceduralTask(Environment):
    """Task with one right answer.  A problem follows from the name, the options and the number."""

    name: str

    @property
    def size(self) -> int:
        return PROBLEMS

    def problem(self, index: int) -> Problem:
        question, answer = self._make(Draw(self.name, self._checked(index)))
        return Problem(index, f"{self.name} {question}\n", answer)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return float(len(turns) == 1 and turns[0].strip() == problem.answer)

    def is_exact(self, problem: Problem) -> bool:
        return True

    def solution(self, problem: Problem) -> tuple[str, ...]:
        return (str(problem.answer),)

    @abstractmethod
    def _make(self, draw: Draw) -> tuple[str, str]:
        """Return a question and its answer."""


class Reverse(ProceduralTask):
    """Task to write a word backwards: `reverse kqzt` -> `tzqk`.  letters: the longest word."""

    name = "reverse"

    def __init__(self, letters: int = 6) -> None:
        self._letters = length_option("letters", letters)

    def _make(self, draw: Draw) -> tuple[str, str]:
        word = draw.text(ascii_lowercase, draw.between(2, self._letters))
        return word, word[::-1]


class SortDigits(ProceduralTask):
    """Task to write digits in ascending order: `sort 41732` -> `12347`.  digits: the most digits."""

    name = "sort"

    def __init__(self, digits: int = 6) -> None:
        self._digits = length_option("digits", digits)

    def _make(self, draw: Draw) -> tuple[str, str]:
        number = draw.text("0123456789", draw.between(2, self._digits))
        return number, "".join(sorted(number))


class Add(ProceduralTask):
    """Task to add two numbers: `add 37+58` -> `95`.  digits: the most digits of a summand."""

    name = "add"

    def __init__(self, digits: int = 2) -> None:
        self._digits = length_option("digits", digits, least=1, most=9)

    def _make(self, draw: Draw) -> tuple[str, str]:
        one, other = (draw.below(10 ** draw.between(1, self._digits)) for _ in range(2))
        return f"{one}+{other}", str(one + other)


class Shift(ProceduralTask):
    """Task to replace each letter of a word by the next one: `shift abz` -> `bca`.  letters: the longest word."""

    name = "shift"

    def __init__(self, letters: int = 6) -> None:
        self._letters = length_option("letters", letters)

    def _make(self, draw: Draw) -> tuple[str, str]:
        word = draw.text(ascii_lowercase, draw.between(2, self._letters))
        return word, word.translate(str.maketrans(ascii_lowercase, ascii_lowercase[1:] + "a"))


class Count(ProceduralTask):
    """Task to count a letter in a word: `count b abbacbad` -> `3`.  letters: the longest word, of a, b, c and d."""

    name = "count"

    def __init__(self, letters: int = 9) -> None:
        self._letters = length_option("letters", letters)

    def _make(self, draw: Draw) -> tuple[str, str]:
        letter = draw.one_of("abcd")
        word = draw.text("abcd", draw.between(2, self._letters))
        return f"{letter} {word}", str(word.count(letter))


class CloseBrackets(ProceduralTask):
    """Task to close open brackets: `close ([]{` -> `})`.  brackets: the most in a question; at least one is left open."""

    name = "close"

    def __init__(self, brackets: int = 8) -> None:
        self._brackets = length_option("brackets", brackets)

    def _make(self, draw: Draw) -> tuple[str, str]:
        pairs = {"(": ")", "[": "]", "{": "}"}
        written, still_open = "", ""
        for left in range(draw.between(2, self._brackets), 0, -1):
            may_close = len(still_open) > 1 or (still_open and left > 1)
            if may_close and draw.below(2):
                written, still_open = written + pairs[still_open[-1]], still_open[:-1]
            else:
                bracket = draw.one_of("([{")
                written, still_open = written + bracket, still_open + bracket
        return written, "".join(pairs[bracket] for bracket in reversed(still_open))


def length_option(name: str, value: int, least: int = 2, most: int = LONGEST) -> int:
    """Return the option's value; raises ValueError unless it is a whole number in its range."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is a whole number from {least} to {most}, not {value!r}")
    return value
