"""Right answers score 1, others 0; programs are judged by what they compute, and cannot say that they have passed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.environments.lines import CALLS, line
from trainer.environments import jsonl
from trainer.environments.jsonl import digest_of, open_file
from trainer.environments.records import CodeTests, ExactAnswer, NumericAnswer, Verification, read_task
from trainer.environments.sandbox import SandboxUnavailable, protections
from trainer.environments.verification import Verifier, final_answer, program_in

PLAIN = Verifier(needs_code=False, needs_maths=False)
SUMS = read_task(line("verifiable_code")).verification
ADDS = read_task(line("verifiable_code", verification_info=CALLS)).verification
GOOD_SUM = "print(sum(map(int, input().split())))"
GOOD_ADD = "def add(a, b):\n    return a + b"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("so Answer: 42 ", "42"),
        ("Answer: 1\nAnswer: 2", "2"),
        ("first \\boxed{1}, then \\boxed{\\frac{1}{2}} I think", "\\frac{1}{2}"),
        ("\\boxed{never closed", "\\boxed{never closed"),
        ("", ""),
    ],
)
def test_answer_in_a_text(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_program_in_a_text() -> None:
    assert program_in("print(1)") == "print(1)"
    assert program_in("First\n```python\nprint(1)\n```\nbetter\n```\nprint(2)\n```\n") == "print(2)\n"


def test_exact_answers() -> None:
    right = ExactAnswer("Paris")
    assert [PLAIN.score(right, text) for text in ("Paris", " Paris\n", "It is \\boxed{Paris}.")] == [1.0] * 3
    assert [PLAIN.score(right, text) for text in ("paris", "Paris, France", "", "London Paris")] == [0.0] * 4


def test_numeric_answers() -> None:
    right = NumericAnswer(Fraction(7, 2), Fraction(1, 100))
    assert [PLAIN.score(right, text) for text in ("3.5", "7/2", "Answer: 3.509", "\\boxed{3.50}")] == [1.0] * 4
    assert [PLAIN.score(right, text) for text in ("3.52", "3", "3.5 4", "inf", "1e999", "")] == [0.0] * 6


@given(st.text())
def test_any_text_scores_nought_or_one(text: str) -> None:
    assert PLAIN.score(ExactAnswer("Paris"), text) in (0.0, 1.0)
    assert PLAIN.score(NumericAnswer(Fraction(1), Fraction(0)), text) in (0.0, 1.0)


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return Verifier(needs_code=True, needs_maths=False)


@pytest.mark.parametrize(
    ("tests", "text"),
    [
        (SUMS, GOOD_SUM),
        (SUMS, f"Here it is:\n```python\n{GOOD_SUM}\n```"),
        (ADDS, GOOD_ADD),
        (
            ADDS,
            "class Solution:\n    def add(self, a: int, b: Optional[int]) -> int:\n        print(1)\n        return a + b",
        ),
    ],
    ids=["input", "fenced", "function", "method"],
)
def test_right_program_scores_one(verifier: Verifier, tests: Verification, text: str) -> None:
    assert verifier.score(tests, text) == 1.0


@pytest.mark.parametrize(
    ("tests", "text"),
    [
        (SUMS, "print(3)"),
        (SUMS, "print(22)"),
        (SUMS, ""),
        (SUMS, "not a program"),
        (SUMS, f"{GOOD_SUM}\nraise SystemExit(1)"),
        (SUMS, f"{GOOD_SUM}\nwhile True: pass"),
        (ADDS, "def add(a, b):\n    return b + a"),
        (ADDS, "def add(a, b):\n    return {a, b}"),
        (ADDS, "def other(a, b):\n    return a + b"),
        (ADDS, "import sys\nsys.exit(0)"),
        (ADDS, "import os\nos._exit(0)"),
        (ADDS, "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()"),
        (ADDS, "def add(a, b):\n    return [a + b] if a == 1 else a + b"),
        (ADDS, "import os\nos.write(1, b'3\\n' * 3)\nos._exit(0)"),
        (ADDS, "def add(a, b):\n    a = []\n    a.append(a)\n    return a"),
        (ADDS, "def add(a, b):\n    return eval('[' * 90 + ']' * 90)"),
        (ADDS, "import os\nos.write(1, b'[' * 100_000 + b'\\n3\\n')\nos._exit(0)"),
        (ADDS, "import os\nos.write(1, b'9' * 5000 + b'\\n3\\n')\nos._exit(0)"),
    ],
)
def test_wrong_program_scores_nought(verifier: Verifier, tests: Verification, text: str) -> None:
    assert verifier.score(tests, text) == 0.0


def test_expected_results_never_enter_the_sandbox(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    sandbox = verifier._sandbox
    assert sandbox
    run = sandbox.run

    def watched(program: str, given: bytes = b"") -> object:
        seen.append(program + given.decode())
        return run(program, given)

    monkeypatch.setattr(sandbox, "run", watched)
    secret = [{"type": "function_call", "fn_name": "f", "input": [1], "output": "the-expected-result"}]
    tests = read_task(line("verifiable_code", verification_info={"language": "python", "test_cases": secret})).verification
    assert verifier.score(tests, "def f(x): return 'the-' + 'expected-result'") == 1.0
    assert len(seen) == 1
    assert "the-expected-result" not in seen[0]


def test_floats_may_differ_in_their_last_digits(verifier: Verifier) -> None:
    cases = [{"type": "function_call", "fn_name": "f", "input": [], "output": 0.3}]
    tests = read_task(line("verifiable_code", verification_info={"language": "python", "test_cases": cases})).verification
    assert isinstance(tests, CodeTests)
    assert verifier.score(tests, "def f(): return 0.1 + 0.2") == 1.0
    assert verifier.score(tests, "def f(): return 0.31") == 0.0
    assert verifier.score(tests, "def f(): return float('nan')") == 0.0
    assert verifier.score(tests, "def f(): return 10**400") == 0.0, "no float is so large"


def test_file_of_tasks_is_an_environment(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(line() + b"\n\n" + line("numeric_answer") + b"\n" + line("verifiable_code") + b"\n")
    tasks = open_file(str(path), digest_of(path.read_bytes()))
    assert tasks.size == 3
    assert tasks.example(0) == ("What is it?", "Paris")
    assert tasks.score(tasks.problem(1), ["3.5"]) == 1.0
    assert tasks.score(tasks.problem(2), [GOOD_SUM]) == 1.0
    assert tasks.score(tasks.problem(0), ["Paris", "Paris"]) == 0.0
    with pytest.raises(ValueError, match="names no solution"):
        tasks.example(2)
    with pytest.raises(ValueError, match="there is no problem 3"):
        tasks.problem(3)


def test_file_that_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tasks.jsonl"
    with pytest.raises(ValueError, match="there is no file"):
        open_file(str(path))
    path.write_bytes(line() + b"\n" + line(prompt=""))
    with pytest.raises(ValueError, match=r"tasks.jsonl: line 2: prompt is empty"):
        open_file(str(path))
    with pytest.raises(ValueError, match="has other tasks than this run's"):
        open_file(str(path), "0" * 32)
    monkeypatch.setattr(jsonl, "MAX_FILE_BYTES", 10)
    with pytest.raises(ValueError, match="are read at most"):
        open_file(str(path))


def test_tasks_of_maths_say_which_package_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(line("verifiable_math"))
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(ValueError, match=r"tasks of maths need the package math-verify.*pip install 'manyhands\[rl\]'"):
        open_file(str(path))


def test_tasks_of_code_are_refused_where_programs_cannot_be_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(line("verifiable_code"))
    bare = type(protections())(frozenset(), {})
    monkeypatch.setattr("trainer.environments.sandbox.protections", lambda: bare)
    with pytest.raises(SandboxUnavailable, match="no program of a model is run on this computer"):
        open_file(str(path))
