r"""Verification of a model's answers against a task's right answer. The score is either 1 or 0.

`trainer.environments.answers` finds the answer in a longer text, and ignores the marks around it.  An answer is compared as
a whole: more words, a second number, or another unit than the right answer's make it wrong.  A program is the last block
between ``` fences; without fences, it is the whole text.

For a code task the sandbox gets the program and the inputs, but never the expected results. The results are compared outside
the sandbox, so a program cannot claim to have passed.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any

from trainer.environments.answers import (
    MAX_ANSWER_CHARACTERS,
    MINUS,
    final_answer,
    forms_of,
    is_evasive,
    is_unreduced,
    is_words,
    plain_answer,
    quantity_in,
    unit_at_end,
)
from trainer.environments.packages import PackageMissing, PackageProgram, installed_version
from trainer.environments.records import (
    CallCase,
    CodeTests,
    ExactAnswer,
    InputCase,
    MathsAnswer,
    NumericAnswer,
    Verification,
)
from trainer.environments.sandbox import Limits, Sandbox
from trainer.extras import install_command

MATH_VERIFY = ("math_verify", "math-verify", "tasks of maths")
"""Arguments of `installed_version`."""
CODE_LIMITS = Limits()
"""Limits for one case on standard input, and for all function calls of a task together."""
MATHS_LIMITS = Limits(cpu_s=10, wall_s=60.0, memory_bytes=4 << 30)
RELATIVE_DIFFERENCE = 1e-9
"""Allowed difference between floats that functions return, because adding in another order is not a mistake."""

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

def boxed(text):
    return parse("\\\\boxed{" + text + "}", parsing_timeout=None)

def answer(pairs):
    right = [boxed(pair[0]) for pair in pairs]
    guard()
    said = [boxed(pair[1]) for pair in pairs]
    return [bool(one and other and verify(one, other, timeout_seconds=None)) for one, other in zip(right, said)]
"""
KNOWN = {("\\frac{1}{2}", "0.5"): True, ("x^2+1", "1+x^2"): True, ("\\frac{1}{2}", "0.6"): False}
"""Pairs of answers for a check of the package, with True for equal meaning; a broken package could score every right answer
0."""


class AnswerVerifier:
    """Scorer of answers to all kinds of tasks. `score` raises only SandboxUnavailable, which is not a verdict."""

    def __init__(self, needs_code: bool, needs_maths: bool) -> None:
        """Prepare to score.

        Raises PackageMissing (a ValueError) or SandboxUnavailable if this computer lacks a requirement.
        """
        self._sandbox = Sandbox(CODE_LIMITS) if needs_code else None
        self._maths: PackageProgram | None = None
        self.version = "3"
        if needs_maths:
            self.version = f"3, math-verify {check_maths()}"
            self._maths = PackageProgram(MATHS, MATHS_LIMITS)

    def score(self, verification: Verification, text: str) -> float:
        """Return 1 for a right answer, else 0."""
        if isinstance(verification, ExactAnswer):
            return float(_is_text(verification.text.strip(), text))
        if isinstance(verification, NumericAnswer):
            said = quantity_in(plain_answer(final_answer(text)))
            if said is None or said.unit != verification.unit or is_unreduced(plain_answer(final_answer(text))):
                return 0.0
            return float(abs(said.value - verification.value) <= verification.tolerance)
        if isinstance(verification, MathsAnswer):
            return float(self._is_same(verification.text, text))
        return float(self._passes(verification, program_in(text)))

    def _is_same(self, right: str, text: str) -> bool:
        if _is_text(right.strip(), text):
            return True
        said = plain_answer(final_answer(text))
        if not said or len(said) > MAX_ANSWER_CHARACTERS or not _is_balanced(said) or is_words(right):
            return False
        number, found = quantity_in(plain_answer(right)), quantity_in(said)
        if number is not None and (found is not None or number.unit):
            return number == found and not is_unreduced(said)
        if is_evasive(right, said) or ((unit := unit_at_end(right)) and unit_at_end(said) != unit):
            return False
        assert self._maths
        try:
            return bool(self._maths.ask([[right, said]]) == [True])
        except ValueError:
            return False

    def _passes(self, tests: CodeTests, program: str) -> bool:
        assert self._sandbox
        calls = [case for case in tests.cases if isinstance(case, CallCase)]
        if calls:
            return self._returns(calls, program)
        for case in tests.cases:
            assert isinstance(case, InputCase)
            outcome = self._sandbox.run(program, case.given.encode())
            if not outcome.succeeded or _lines(outcome.output.decode(errors="replace")) != _lines(case.expected):
                return False
        return True

    def _returns(self, calls: list[CallCase], program: str) -> bool:
        assert self._sandbox
        asked = [[case.function, json.loads(case.arguments)] for case in calls]
        outcome = self._sandbox.run(CALLS, json.dumps({"program": program, "calls": asked}).encode())
        lines = outcome.output.splitlines()
        if not outcome.succeeded or len(lines) != len(calls):
            return False
        try:
            return all(
                _same(json.loads(case.expected), json.loads(line), may_be_bare=True)
                for case, line in zip(calls, lines, strict=True)
            )
        except (ValueError, RecursionError):
            return False


def check_maths() -> str:
    """Return the version of math-verify.

    Raises PackageMissing if it is missing, cannot be imported, or gives wrong answers.
    """
    version = installed_version(*MATH_VERIFY)
    _ask_what_is_known(version)
    return version


@functools.cache
def _ask_what_is_known(version: str) -> None:
    """Raise PackageMissing if this math-verify does not give the answers of `KNOWN`; a success is cached."""
    works_not, remedy = (
        f"math-verify {version} is installed but does not work",
        install_command("rl", again=True),
    )
    try:
        found = PackageProgram(MATHS, MATHS_LIMITS).ask([*KNOWN])
    except ValueError as error:
        raise PackageMissing(f"{works_not}; {error}", remedy) from error
    if found != [*KNOWN.values()]:
        raise PackageMissing(f"{works_not}; it does not distinguish 1/2 from 0.6", remedy)


def form_of(verification: Verification) -> str:
    """Describe the right answer for people, with the form in which `AnswerVerifier.score` reads it."""
    if isinstance(verification, CodeTests):
        count = len(verification.cases)
        return f"a Python program between ``` fences that passes {count} test{'s' if count > 1 else ''}"
    if isinstance(verification, NumericAnswer):
        value, tolerance = (
            str(each.numerator) if each.denominator == 1 else f"{float(each):g}"
            for each in (verification.value, verification.tolerance)
        )
        right = f"{value} ± {tolerance}" if verification.tolerance else value
        right = f"{right} {verification.unit}".rstrip()
    else:
        right = verification.text
    return f'{right} alone, after "Answer:", or in \\boxed{{{right}}}'


def _is_text(right: str, text: str) -> bool:
    answer = final_answer(text)
    if len(answer) > len(right) + MAX_ANSWER_CHARACTERS:  # the forms would need memory quadratic in the answer's length
        return right == text.strip()
    forms = {form.replace(MINUS, "-") for form in forms_of(answer)}
    return right == text.strip() or right.replace(MINUS, "-") in forms


def _is_balanced(text: str) -> bool:
    """Return True if the LaTeX braces in a text match; otherwise the text could be read as several answers."""
    depth = 0
    for sign in text:
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return False
    return depth == 0


def program_in(text: str) -> str:
    """Return the program in a text."""
    blocks = re.findall(r"```[^\n`]*\n(.*?)```", text, re.DOTALL)
    return str(blocks[-1]) if blocks else text


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same(expected: Any, found: Any, *, may_be_bare: bool = False) -> bool:
    """Compare results.

    may_be_bare: True if the only element of a list also matches, because published sets wrap some expected results.
    """
    if may_be_bare and isinstance(expected, list) and len(expected) == 1 and _same(expected[0], found):
        return True
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_same(expected[key], found[key]) for key in expected)
    if isinstance(expected, float) and isinstance(found, int | float) and not isinstance(found, bool):
        try:
            return math.isclose(expected, found, rel_tol=RELATIVE_DIFFERENCE, abs_tol=RELATIVE_DIFFERENCE)
        except OverflowError:  # a whole number beyond the range of floats
            return False
    return type(expected) is type(found) and bool(expected == found)
