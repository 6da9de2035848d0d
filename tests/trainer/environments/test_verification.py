"""Right answers score 1, others 0; programs are judged by what they compute, and cannot say that they have passed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.environments.lines import CALLS, line
from trainer.environments import task_file
from trainer.environments.answers import is_evasive, plain_answer, quantity_in
from trainer.environments.packages import PackageMissing
from trainer.environments.records import CodeTests, ExactAnswer, MathsAnswer, NumericAnswer, Verification, read_task
from trainer.environments.registry import check_packages
from trainer.environments.sandbox import SandboxUnavailable, protections
from trainer.environments.task_file import digest_of, open_file
from trainer.environments.verification import AnswerVerifier, _ask_what_is_known
from trainer.extras import install_command

PLAIN = AnswerVerifier(needs_code=False, needs_maths=False)
SUMS = read_task(line("verifiable_code")).verification
ADDS = read_task(line("verifiable_code", verification_info=CALLS)).verification
GOOD_SUM = "print(sum(map(int, input().split())))"
GOOD_ADD = "def add(a, b):\n    return a + b"


SHAPES = [
    "{}", "Answer: {}", "Final Answer: {}", "**Answer:** {}", "**Final Answer**: {}", "The answer:\n\n{}\n",
    "Answer: **{}**", "Answer: **{}.**", "Answer: `{}`", "Answer: ${}$", "Answer: \\({}\\)", "It is \\boxed{{{}}}.",
    "$\\boxed{{{}}}$", "\\boxed{{\\text{{{}}}}}", "Answer: \\boxed{{{}}}", "\\boxed{{Answer: {}}}",
    "\\boxed{{1}}, no, \\boxed{{{}}}", "Answer: 1. No! Answer: {}", "Answer: 1 \\boxed{{{}}}", " {}\r\n", "{}.",
]  # fmt: skip
"""Ways of saying an answer."""


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_counts_in_every_usual_shape(shape: str) -> None:
    for right, said, wrong in (
        ("42", "42", "43"),
        ("-5", "\u22125", "5"),
        ("7/2", "3.50", "3.55"),
        ("1000", "1,000", "100"),
    ):
        verification = NumericAnswer(Fraction(right), Fraction(0))
        assert PLAIN.score(verification, shape.format(said)) == 1.0
        assert PLAIN.score(verification, shape.format(wrong)) == 0.0
    assert PLAIN.score(ExactAnswer("Paris"), shape.format("Paris")) == 1.0
    assert PLAIN.score(ExactAnswer("Paris"), shape.format("London")) == 0.0
    assert PLAIN.score(MathsAnswer("\\pi r^2"), shape.format("\\pi r^2")) == 1.0 or "text" in shape


NUMBERS = [
    # truth, said, its score
    ("42", "42.0", 1), ("42", "+42", 1), ("42", "042", 1), ("42", "4.2e1", 1), ("42", "84/2", 0), ("42", "42.", 1),
    ("42", "42..", 0), ("42", "42\u2026", 0), ("42", "42.5", 0), ("42", "-42", 0), ("42", "42,", 0), ("42", "42!", 0),
    ("42", "(42)", 0), ("42", "42%", 0), ("0.42", "42%", 0), ("42", "42 cm", 0), ("42", "$42", 1), ("42", "42\u00b0", 0),
    ("42", "x = 42", 0), ("42", "about 42", 0), ("42", "\u224842", 0), ("42", "41 or 42", 0), ("42", "42, 41", 0),
    ("42", "41\n42", 0), ("42", "41-42", 0), ("42", "41..42", 0), ("42", "forty-two", 0), ("42", "0x2a", 0),
    ("42", "\u0664\u0662", 0), ("42", "NaN", 0), ("42", "", 0), ("42", "**", 0), ("42", "42**2", 0), ("-5", "-5", 1),
    ("-5", "\u22125", 1), ("-5", "\u22125.0", 1), ("-5", "5", 0), ("5", "-5", 0), ("5", "\u22125", 0), ("-5", "- 5", 0),
    ("-5", "--5", 0), ("5", "--5", 0), ("-5", "(5)", 0), ("0", "-0", 1), ("0.001", "1e\u22123", 1), ("1000", "1e-3", 0),
    ("1000", "1,000", 1), ("1000", "1.000", 0), ("1", "1.000", 1), ("1", "1,000", 0), ("1000", "1 000", 0),
    ("1234567.5", "1,234,567.5", 1), ("1234567", "1,234567", 0), ("1234", "1,23,4", 0), ("12", "1,2", 0),
    ("1.2", "1,2", 0), ("123", "1,23", 0), ("1.5", "1,5", 0), ("15", "1,5", 0), ("15", "1,5.", 0), ("1", "1,0", 0),
    ("10", "1,0", 0), ("1000", "1,,000", 0), ("1000.5", "1.000,5", 0), ("1234.5", "1,234.5,6", 0), ("123", "1,2,3", 0),
    ("0.5", "1/2", 1), ("0.5", "-1/-2", 0), ("0.5", "1 / 2", 0), ("1.5", "1 1/2", 0), ("0.5", "1/0", 0), ("0.5", ".5", 1),
    ("0.5", "50%", 0), ("2014", "2024-01-09", 0), ("1230", "12:30", 0), ("1e400", "1e400", 1), ("1", "1e9999", 0),
    ("42", "42" + "0" * 99, 0), ("1000", "$1,000.00", 1), ("1000", "\\$1,000", 1), ("-5", "-$5", 1), ("-5", "$-5", 1),
    ("5", "-$-5", 0), ("1000", "$1,000 or $2,000", 0), ("1000", "1000 dollars", 1), ("5", "$$5", 0), ("5", "$ 5 km", 0),
    ("0.75", "\\frac{3}{4}", 1), ("0.75", "\\frac{3}{0}", 0), ("42", "\\frac{3}{4}2", 0),
]  # fmt: skip


@pytest.mark.parametrize(("truth", "said", "score"), NUMBERS)
def test_numbers_count_as_a_whole(truth: str, said: str, score: float) -> None:
    verification = NumericAnswer(Fraction(truth), Fraction(0))
    for shape in ("{}", "Answer: {}", "\\boxed{{{}}}"):
        assert PLAIN.score(verification, shape.format(said)) == score, shape


def test_many_lines_after_a_box_are_read_in_one_pass() -> None:
    """A search that begins at each blank anew would take hours."""
    for again in ("\n", ">\n", "so\n", " \n"):
        assert PLAIN.score(NumericAnswer(Fraction(42), Fraction(0)), "\\boxed{42}" + again * 100_000) == 1.0


def test_a_product_or_fraction_that_is_left_to_do_is_no_answer() -> None:
    for said in ("17\\times23", "17×23", "17 · 23", "(17)(23)", "782/2", "\\frac{782}{2}", "\\log2 8"):
        assert is_evasive("391", said), said
    for said in ("391", "x = 391", "-391", "391.0", "3/4", "\\frac{3}{4}", "\\frac34"):
        assert not is_evasive("391", said), said


@pytest.mark.parametrize(
    "text",
    [
        "Answer: 42\nAnswer: 41", "\\boxed{42} \\boxed{41}", "\\boxed{42} Answer: 41", "Answer: 42 \\boxed{41}",
        "Answer: 42 or 41", "Answer: 42\n\nI hope this helps.", "The answer is 42", "Answer 42", "\\boxed{42, 41}",
        "\\boxed{42}{41} Answer: \\boxed{41}", "\\boxed{42", "Answer: \\boxed{42", "42 Answer:", "Answer: 42 Answer:",
        "\\boxed{}", "\\boxed{\\boxed{41}} 42", "#### 41", "Answer: 42\n#### 41", "#### 42\nSo 41", "41 #### 42",
        "#### 42, 41", "####", "#### \\boxed{41}", "#### 42\n#### 41",
    ],
)  # fmt: skip
def test_what_is_said_last_is_the_answer_and_all_of_it(text: str) -> None:
    assert PLAIN.score(NumericAnswer(Fraction(42), Fraction(0)), text) == 0.0


QUANTITIES = [
    # truth, said, its score
    ("5 km", "5 km", 1), ("5 km", "5km", 1), ("5 km", "5 \\text{ km}", 1), ("5 km", "$5\\ \\mathrm{~km}$", 1),
    ("5 km", "5 kilometres", 1), ("5 km", "5.0 Kilometers.", 1), ("5 km", "5", 0), ("5 km", "5 m", 0), ("5 km", "5000 m", 0),
    ("5 km", "5 km or 6 km", 0), ("5 km", "5 Km/h", 0), ("5 km", "6 km", 0), ("5 km", "km", 0), ("5 km", "5 km km", 0),
    ("5", "5 km", 0), ("50%", "50\\%", 1), ("50%", "50 percent", 1), ("50%", "0.5", 0), ("50%", "50", 0),
    ("90^\\circ", "90\u00b0", 1), ("3 cm^2", "3 \\mathrm{cm}^{2}", 1), ("3 cm^2", "3 square centimeters", 1),
    ("3 cm^2", "3 cm", 0), ("60 km/h", "60 \\text{ km/h}", 1), ("60 km/h", "60 kilometers per hour", 1),
    ("60 km/h", "60 km", 0), ("$5", "5", 1), ("5 dollars", "$5", 1), ("5 cents", "$5", 0),
    ("1/2 hour", "\\frac{1}{2} hours", 1), ("5 mL", "5 ML", 0), ("5 g", "5 G", 0),
]  # fmt: skip


@pytest.mark.parametrize(("truth", "said", "score"), QUANTITIES)
def test_units_count_if_the_right_answer_has_one(truth: str, said: str, score: float) -> None:
    right = quantity_in(truth)
    assert right is not None
    for shape in ("{}", "Answer: {}", "\\boxed{{{}}}", "So\n#### {}"):
        assert PLAIN.score(NumericAnswer(right.value, Fraction(0), right.unit), shape.format(said)) == score, shape
    assert PLAIN.score(MathsAnswer(truth), said) == score, "numbers need no package"


EVASIVE = [("5", "4=5"), ("5", "x=4=5"), ("5", "4\\to 5"), ("5", "x=4 \\Rightarrow x=5"), ("391", "17*23"), ("3", "1+2"),
           ("1024", "2^{10}"), ("6", "3!"), ("2", "5-3"), ("-2", "x=3-5")]  # fmt: skip
STRAIGHT = [
    ("5", "x=5"),
    ("x^2+1", "1+x^2"),
    ("y=2x+1", "y=1+2x"),
    ("90", "x=90^\\circ"),
    ("-5", "x=-5"),
    ("\\sqrt{2}", "2^{1/2}"),
]


def test_a_chain_and_a_sum_left_to_do_are_no_answers() -> None:
    assert [is_evasive(*pair) for pair in EVASIVE] == [True] * len(EVASIVE)
    assert [is_evasive(*pair) for pair in STRAIGHT] == [False] * len(STRAIGHT)
    assert [PLAIN.score(MathsAnswer(right), said) for right, said in EVASIVE] == [0.0] * len(EVASIVE)
    assert PLAIN.score(MathsAnswer("Monday"), "dayMon") == 0.0, "letters are no factors of a word"
    assert PLAIN.score(MathsAnswer("5\\pi \\mathrm{~cm}^2"), "5\\pi \\mathrm{~m}^2") == 0.0


@pytest.mark.parametrize(
    ("truth", "said", "score"),
    [
        ("__init__", "__init__", 1), ("__init__", "Answer: `__init__`", 1), ("__init__", "init", 0),
        ("Yes.", "Yes.", 1), ("Yes.", "Answer: Yes.", 1), ("Yes", "Answer: **Yes.**", 1), ("yes", "Yes", 0),
        ("U.S.A.", "Answer: U.S.A.", 1), ("a\u2212b", "a-b", 1), ("a-b", "Answer: a\u2212b", 1),
        ("a-b", "a\u2013b", 0), ("1,2", "1,2", 1), ("1,2", "1, 2", 0), ("...", "...", 1), ("Paris", "paris", 0),
        ("Paris", "Paris, France", 0), ("Paris", "London Paris", 0), ("Paris", "", 0),
        ("Answer: 5", "Answer: 5", 1), ("$5$", "$5$", 1), ("*", "*", 1),
    ],
)  # fmt: skip
def test_exact_answers_are_that_text(truth: str, said: str, score: float) -> None:
    assert PLAIN.score(ExactAnswer(truth), said) == score


@given(st.text(st.sampled_from("0123456789.,-+/eE \u2212*_$%"), max_size=12), st.fractions(max_denominator=8))
def test_no_other_number_than_the_truth_counts(said: str, truth: Fraction) -> None:
    """Against a plain reading: what counts is the number once marks, the stop and commas between thousands are gone."""
    score = PLAIN.score(NumericAnswer(truth, Fraction(0)), said)
    plain = (
        said.strip()
        .replace("-$", "-", 1)
        .strip(" *_$")
        .removesuffix(".")
        .strip(" *_$")
        .replace("\u2212", "-")
        .replace(",", "")
    )
    try:
        read = Fraction(plain) if " " not in plain and "_" not in plain else None
    except (ValueError, ZeroDivisionError):
        read = None
    assert score == 0.0 or read == truth


@pytest.fixture(scope="module")
def verifier() -> AnswerVerifier:
    return AnswerVerifier(needs_code=True, needs_maths=False)


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
def test_right_program_scores_one(verifier: AnswerVerifier, tests: Verification, text: str) -> None:
    assert verifier.score(tests, text) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "text"),
    [
        (SUMS, "print(3)"),
        (SUMS, ""),
        (SUMS, f"{GOOD_SUM}\nraise SystemExit(1)"),
        pytest.param(SUMS, f"{GOOD_SUM}\nwhile True: pass", marks=pytest.mark.slow),
        (ADDS, "def add(a, b):\n    return b + a"),
        (ADDS, "def other(a, b):\n    return a + b"),
        (ADDS, "import sys\nsys.exit(0)"),
        (ADDS, "import os\nos._exit(0)"),
        (ADDS, "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()"),
        (ADDS, "def add(a, b):\n    return [a + b] if a == 1 else a + b"),
        (ADDS, "def add(a, b):\n    a = []\n    a.append(a)\n    return a"),
        (ADDS, "def add(a, b):\n    return eval('[' * 90 + ']' * 90)"),
        (ADDS, "import os\nos.write(1, b'[' * 100_000 + b'\\n3\\n')\nos._exit(0)"),
    ],
)
def test_wrong_program_scores_nought(verifier: AnswerVerifier, tests: Verification, text: str) -> None:
    assert verifier.score(tests, text) == 0.0


def test_expected_results_never_enter_the_sandbox(verifier: AnswerVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_floats_may_differ_in_their_last_digits(verifier: AnswerVerifier) -> None:
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
    assert (tasks.problem(0).prompt, tasks.solution(tasks.problem(0))) == ("What is it?", ("Paris",))
    assert tasks.score(tasks.problem(1), ["3.5"]) == 1.0
    assert tasks.score(tasks.problem(2), [GOOD_SUM]) == 1.0
    assert tasks.score(tasks.problem(0), ["Paris", "Paris"]) == 0.0
    with pytest.raises(ValueError, match="has no solution"):
        tasks.solution(tasks.problem(2))
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
    monkeypatch.setattr(task_file, "MAX_FILE_BYTES", 10)
    with pytest.raises(ValueError, match="it has over 10 bytes"):
        open_file(str(path))


def test_tasks_of_maths_say_which_package_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(line("verifiable_math"))
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(PackageMissing, match=r"need the package math-verify.* install 'math-verify>="):
        open_file(str(path))


def installed(parent: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a math-verify of our own, in a new folder that every user can read, instead of the installed one."""
    folder = parent / "site"
    package, about = folder / "math_verify", folder / "math_verify-0.9.0.dist-info"
    for each in (package, about):
        each.mkdir(parents=True)
    (package / "__init__.py").write_text(program)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: math-verify\nVersion: 0.9.0\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("trainer.environments.sandbox._package_folders", lambda: [str(folder)])
    _ask_what_is_known.cache_clear()


PARSE, SAME = "def parse(text, **more): return [text]\n", "def verify(a, b, **more): return "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("raise ImportError('Could not deserialize ATN with version 3.')", "ImportError: Could not deserialize ATN"),
        ("def parse(text, **more): raise RuntimeError('the grammar is gone')", "cannot import name 'verify'"),
        (PARSE + SAME + "a == b", "it does not distinguish 1/2 from 0.6"),
    ],
)
def test_a_package_that_cannot_tell_what_is_right_is_refused_with_the_reason(
    program: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would score every right answer 0: such a validator contradicts honest peers, such a trainer learns that."""
    installed(tmp_path, program, monkeypatch)
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(line("verifiable_math"))
    with pytest.raises(ValueError) as refused:
        open_file(str(path))
    with pytest.raises(PackageMissing):
        check_packages(f'jsonl(path="tasks.jsonl", digest="{digest_of(path.read_bytes())}")')
    assert sentence in str(refused.value) and "math-verify 0.9.0 is installed but does not work; " in str(refused.value)
    assert install_command("rl", again=True) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_package_that_answers_the_known_question_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "values = {'\\\\frac{1}{2}': 0.5, 'x^2+1': 7, '1+x^2': 7}\n"
    program += "def parse(text, **more):\n    inner = text[7:-1]\n    return [values.get(inner, inner)]\n"
    installed(tmp_path, program + SAME + "str(a[0]) == str(b[0])", monkeypatch)
    made = [AnswerVerifier(needs_code=False, needs_maths=True) for _ in range(2)]
    assert _ask_what_is_known.cache_info().misses == 1
    right = MathsAnswer("\\frac{1}{2}")
    said = ("\\boxed{0.5}", "Answer: **0.5**.", "answer: $0.5$", "\\boxed{0.6}", "0.5} \\boxed{0.6", "0.6}{0.5", "")
    assert [made[1].score(right, text) for text in said] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    _ask_what_is_known.cache_clear()


def test_tasks_of_code_are_refused_where_programs_cannot_be_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(line("verifiable_code"))
    bare = type(protections())(frozenset(), {})
    monkeypatch.setattr("trainer.environments.sandbox.protections", lambda: bare)
    with pytest.raises(SandboxUnavailable, match="this computer does not run programs of a model"):
        open_file(str(path))


def test_two_formulas_are_not_read_as_one_and_a_megabyte_costs_no_more_than_its_length() -> None:
    assert plain_answer("\\(5\\)") == "5"
    assert plain_answer("\\(5\\) or \\(6\\)") == "\\(5\\) or \\(6\\)"
    assert PLAIN.score(ExactAnswer("42"), "*_" * 500_000) == 0.0
