"""Programs around packages: what a text smuggles in is not evaluated, and what goes wrong is a ValueError."""

from __future__ import annotations

import math

import pytest

from trainer.environments.packages import PackageMissing, PackageProgram, installed_version
from trainer.environments.reasoning_gym import answer_element, in_range
from trainer.environments.sandbox import Limits

EVALUATE = """
def answer(question):
    guard()
    try:
        return repr(eval(question))
    except Exception as error:
        return type(error).__name__
"""


@pytest.fixture(scope="module")
def evaluator() -> PackageProgram:
    """What libraries for scoring do: they evaluate an answer."""
    return PackageProgram(EVALUATE, Limits(cpu_s=5))


def test_arithmetic_is_evaluated(evaluator: PackageProgram) -> None:
    assert evaluator.ask("[1 + 2 ** 3, (4, -5.5), abs(-7)]") == "[9, (4, -5.5), 7]"


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').write(1, b'1')", "print(1)", "exec('1')", "eval('1')", "open('x')", "().__class__", "'a'.upper()",
        "[x for x in (1,)]", "lambda: 1", "(x := 1)", "f'{1}'", "[1][0]", "abs(print)(1)", "lambdify((), '1')",
    ],
)  # fmt: skip
def test_code_is_not_evaluated(evaluator: PackageProgram, text: str) -> None:
    assert evaluator.ask(text) == "RuntimeError"


def test_text_that_is_no_expression_fails_as_it_always_did(evaluator: PackageProgram) -> None:
    assert evaluator.ask("1 +") == "SyntaxError"
    assert evaluator.ask("x") == "NameError"


@pytest.mark.parametrize(
    "program",
    [
        "def answer(question): raise KeyError('oh')",
        "def answer(question): print('noise', file=answers); return 1",
        "import nothing",
    ],
)
def test_program_that_goes_wrong_is_a_value_error(program: str) -> None:
    with pytest.raises(ValueError, match="the package's process"):
        PackageProgram(program, Limits(cpu_s=5)).ask(1)


def test_what_is_printed_meanwhile_is_no_answer() -> None:
    assert PackageProgram("def answer(question): print('noise'); return question", Limits(cpu_s=5)).ask({"a": [1]}) == {
        "a": [1]
    }


def test_missing_package_is_said_with_the_remedy() -> None:
    with pytest.raises(PackageMissing, match=r"tests need the package none-such, .* pip install 'manyhands\[rl\]'"):
        installed_version("none_such", "none-such", "tests")


def test_answer_element() -> None:
    assert answer_element("so <answer>1</answer>, no: <answer> 2 </answer> done") == "2"
    assert answer_element(" 3 ") == "3"
    assert answer_element("<answer>4") == "4"


@pytest.mark.parametrize(
    ("score", "expected"), [(0.5, 0.5), (1, 1.0), (7, 1.0), (-1, 0.0), (math.nan, 0.0), (True, 0.0), ("1", 0.0)]
)
def test_scores_are_in_range(score: object, expected: float) -> None:
    assert in_range(score) == expected
