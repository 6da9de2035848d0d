"""Programs around packages: what a text smuggles in is not evaluated, and what goes wrong is a ValueError."""

from __future__ import annotations

import math

import pytest

from trainer.environments.packages import PackageProgram, answer_element
from trainer.environments.sandbox import Limits

SCORER = """
import types

scorer = types.ModuleType({name!r})
exec(compile('''
def score(said):
    oracle_answer, entry, answer = "right", {{"answer": "right"}}, said
    try:
        return repr(eval(said))
    except Exception as error:
        return type(error).__name__
''', "scorer.py", "exec"), scorer.__dict__)

def answer(question):
    guard()
    return [scorer.score(said) for said in question]
"""
"""What libraries for scoring do: they evaluate an answer among their own variables."""
LITERALS = [
    ("[1 + 2 * 3, (4, -5.5), {6}]", "[7, (4, -5.5), {6}]"), ("[['Q', '_'], ['_', 'Q']]", "[['Q', '_'], ['_', 'Q']]"),
    (" 0x3a << 2 | 1", "233"), ("'oracle_answer'", "'oracle_answer'"), ("{'a': None, 'b': True}", "{'a': None, 'b': True}"),
    ("-(1 / 4)", "-0.25"), ("b'x'", "b'x'"), ("[" * 50 + "]" * 50, "[" * 50 + "]" * 50), ("1 +", "SyntaxError"),
    ("", "SyntaxError"), ("import os", "SyntaxError"),
]  # fmt: skip
NO_LITERALS = [
    # names of what the scorer knows
    "oracle_answer", "[oracle_answer]", "[[oracle_answer]]", "(oracle_answer,)", "{oracle_answer}", "{1: oracle_answer}",
    "entry['answer']", "entry", "answer", "said", "-oracle_answer", "oracle_answer * 1", "oracle_answer if 1 else 2",
    "oracle_answer == oracle_answer", "not oracle_answer", "oracle_answer and 1", "[*oracle_answer]", "{**entry}",
    "f'{oracle_answer}'", "globals", "__builtins__", "x", "E", "_",
    # programs
    "__import__('os').write(1, b'1')", "print(1)", "exec('1')", "eval('oracle_answer')", "open('x')", "().__class__",
    "'a'.upper()", "[x for x in (1,)]", "lambda: 1", "(x := 1)", "f'{1}'", "[1][0]", "abs(print)(1)", "abs(-7)", "locals()",
    "vars()", "lambdify((), '1')", "#coding: utf-7\n+AG8-racle_answer",
    # what only costs
    "9 ** 9 ** 9", "2 ** 3", "[0] * 10 ** 9", "[0] * 9", "'a' * 999999999", "b'a' * 9 * 9", "+'a'",
    "[" + "1," * 20_000 + "]", "[" + "1234567890," * 10_000 + "]",
]  # fmt: skip


def scored(texts: list[str], name: str = "scorer") -> list[str]:
    answers = PackageProgram(SCORER.format(name=name), Limits(cpu_s=10)).ask(texts)
    assert isinstance(answers, list)
    return answers


def test_literals_are_evaluated() -> None:
    texts, wanted = zip(*LITERALS, strict=True)
    assert scored(list(texts)) == list(wanted)


def test_nothing_but_literals_is_evaluated() -> None:
    found = dict(zip(NO_LITERALS, scored(NO_LITERALS), strict=True))
    assert found == dict.fromkeys(NO_LITERALS, "RuntimeError")


def test_depth_of_a_literal_is_bounded() -> None:
    deep = ["-" * 300 + "1", "1" + "+1" * 300, "[" * 100_000, "(" * 150 + "-" * 150 + "1" + ")" * 150]
    assert not {answer for answer in scored(deep) if answer.lstrip("-").isdigit() and answer != "1"}
    assert scored(["-" * 300 + "1", "1" + "+1" * 300]) == ["RuntimeError"] * 2


def test_sympys_parser_may_call_its_own_classes() -> None:
    parser = "sympy.parsing.sympy_parser"
    grammar = ["min(1, 2)", "max(3, 4) == 4", "abs(-7) + 2 ** 3"]
    assert scored(grammar, parser) == ["1", "True", "15"]
    refused = [
        "oracle_answer", "print(1)", "min.__class__", "abs(oracle_answer)", "(lambda: 1)()", "min(*entry)", "print", "open",
        "eval('1')", "entry['answer']", "__import__('os')",
    ]  # fmt: skip
    assert scored(refused, parser) == ["RuntimeError"] * len(refused)
    assert scored(["from sympy import *"]) == ["SyntaxError"]


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
    program = PackageProgram("def answer(question): print('noise'); return question", Limits(cpu_s=5))
    assert program.ask({"a": [1]}) == {"a": [1]}


def test_answer_element() -> None:
    assert answer_element("so <answer>1</answer>, no: <answer> 2 </answer> done") == "2"
    assert answer_element(" 3 ") == "3"
    assert answer_element("<answer>4") == "4"


@pytest.mark.parametrize(("score", "expected"), [(0.5, 0.5), (7, 1.0), (math.nan, 0.0), (True, 0.0), ("1", 0.0)])
def test_scores_are_in_range(score: object, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackageProgram, "ask", lambda self, question: {"score": score})
    assert PackageProgram("").score({}) == expected
