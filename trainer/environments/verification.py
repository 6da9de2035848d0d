"""Compares what a model wrote with what a task says of right answers.  1 or 0, nothing in between.

What counts as the answer in a longer text: what stands in the last `\\boxed{…}`; else what follows the last "Answer:"; else
all of it.  A program is the last block between ``` fences; without fences all of the text.

Of a code task the sandbox gets the program and the inputs, never the expected results: these are compared here, so a
program cannot claim to have passed.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from trainer.environments.packages import PackageProgram, installed_version
from trainer.environments.records import (
    CallCase,
    CodeTests,
    ExactAnswer,
    InputCase,
    MathsAnswer,
    NumericAnswer,
    Verification,
    number_in,
)
from trainer.environments.sandbox import Limits, Sandbox

CODE_LIMITS = Limits()
"""For one case that reads its input, and for all function calls of a task together."""
MATHS_LIMITS = Limits(cpu_s=10, wall_s=60.0, memory_bytes=4 << 30)
MAX_ANSWER_CHARACTERS = 1000
"""Longer answers to maths tasks are wrong: parsing them takes longer than they are worth."""
RELATIVE_DIFFERENCE = 1e-9
"""Floats that a function returns may differ by this much: the order of a sum is nobody's mistake."""

CALLS = """
import json, os, sys
order = json.load(sys.stdin)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
scope = {"__name__": "solution"}
exec("from typing import *", scope)
exec(compile(order["program"], "solution.py", "exec"), scope)
for name, arguments in order["calls"]:
    function = scope.get(name)
    if function is None:
        owner = next(thing for thing in list(scope.values()) if isinstance(thing, type) and name in vars(thing))
        function = getattr(owner(), name)
    print(json.dumps(function(*arguments)), file=answers, flush=True)
"""

MATHS = """
from math_verify import parse, verify

def answer(question):
    right = parse("\\\\boxed{" + question["right"] + "}", parsing_timeout=None)
    guard()
    said = parse("\\\\boxed{" + question["said"] + "}", parsing_timeout=None)
    return bool(right and said and verify(right, said, timeout_seconds=None))
"""


class Verifier:
    """Scores answers of all kinds of tasks.  Raises nothing but SandboxUnavailable, which is no verdict."""

    def __init__(self, needs_code: bool, needs_maths: bool) -> None:
        """Raises PackageMissing (a ValueError) or SandboxUnavailable for what this computer lacks."""
        self._sandbox = Sandbox(CODE_LIMITS) if needs_code else None
        self._maths: PackageProgram | None = None
        self.version = "1"
        if needs_maths:
            self.version = f"1, math-verify {installed_version('math_verify', 'math-verify', 'tasks of maths')}"
            self._maths = PackageProgram(MATHS, MATHS_LIMITS)

    def score(self, verification: Verification, text: str) -> float:
        """1 for a right answer, else 0."""
        if isinstance(verification, ExactAnswer):
            return float(verification.text.strip() in (text.strip(), final_answer(text)))
        if isinstance(verification, NumericAnswer):
            number = number_in(final_answer(text))
            return float(number is not None and abs(number - verification.value) <= verification.tolerance)
        if isinstance(verification, MathsAnswer):
            return float(self._is_same(verification.text, final_answer(text)))
        return float(self._passes(verification, program_in(text)))

    def _is_same(self, right: str, said: str) -> bool:
        if said == right.strip():
            return True
        if not said or len(said) > MAX_ANSWER_CHARACTERS:
            return False
        assert self._maths
        try:
            return self._maths.ask({"right": right, "said": said}) is True
        except ValueError:
            return False

    def _passes(self, tests: CodeTests, program: str) -> bool:
        assert self._sandbox
        calls = [case for case in tests.cases if isinstance(case, CallCase)]
        if calls:
            return self._returns(calls, program)
        return all(self._writes(case, program) for case in tests.cases if isinstance(case, InputCase))

    def _writes(self, case: InputCase, program: str) -> bool:
        assert self._sandbox
        outcome = self._sandbox.run(program, case.given.encode())
        return outcome.succeeded and _lines(outcome.output.decode(errors="replace")) == _lines(case.expected)

    def _returns(self, calls: list[CallCase], program: str) -> bool:
        assert self._sandbox
        asked = [[case.function, json.loads(case.arguments)] for case in calls]
        outcome = self._sandbox.run(CALLS, json.dumps({"program": program, "calls": asked}).encode())
        lines = outcome.output.splitlines()
        if not outcome.succeeded or len(lines) != len(calls):
            return False
        try:
            return all(
                _same_or_wrapped(json.loads(case.expected), json.loads(line))
                for case, line in zip(calls, lines, strict=True)
            )
        except (ValueError, RecursionError):
            return False


def final_answer(text: str) -> str:
    """What counts as the answer in a text, without blanks around it."""
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth = 0
        for place in range(start + len("\\boxed{") - 1, len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                return text[start + len("\\boxed{") : place].strip()
    return text.rpartition("Answer:")[2].strip()


def program_in(text: str) -> str:
    """The program in a text."""
    blocks = re.findall(r"```[^\n`]*\n(.*?)```", text, re.DOTALL)
    return str(blocks[-1]) if blocks else text


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_or_wrapped(expected: Any, found: Any) -> bool:
    """Published sets put some results into a list of one."""
    return _same(expected, found) or (isinstance(expected, list) and len(expected) == 1 and _same(expected[0], found))


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_same(expected[key], found[key]) for key in expected)
    if isinstance(expected, float) and isinstance(found, int | float) and not isinstance(found, bool):
        try:
            return math.isclose(expected, found, rel_tol=RELATIVE_DIFFERENCE, abs_tol=RELATIVE_DIFFERENCE)
        except OverflowError:  # a whole number beyond all floats
            return False
    return type(expected) is type(found) and bool(expected == found)
