"""Lines of tasks are read strictly: what is wrong is said in a sentence with the line's number."""

from __future__ import annotations

import json
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutated
from tests.trainer.environments.lines import CALLS, KINDS, line, record
from trainer.environments import records
from trainer.environments.answers import number_in
from trainer.environments.records import (
    BYTE_ORDER_MARK,
    CallCase,
    CodeTests,
    ExactAnswer,
    InputCase,
    MathsAnswer,
    NumericAnswer,
    read_task,
    read_tasks,
)

BOMBS = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"problem_id": ' + b"9" * 10_000 + b"}",
    b"\xff\xfe",
    b"",
    b"null",
    b"NaN",
    b'"' + b"\\u0000" * 1000 + b'"',
    line(metadata={"deep": json.loads("[" * 500 + "]" * 500)}),
]


def test_every_kind_of_task_is_read() -> None:
    read = {kind: read_task(line(kind)).verification for kind in KINDS}
    assert read == {
        "exact_answer": ExactAnswer("Paris"),
        "numeric_answer": NumericAnswer(Fraction(7, 2), Fraction(1, 100)),
        "verifiable_math": MathsAnswer("\\frac{1}{2}"),
        "verifiable_code": CodeTests((InputCase("1 2\n", "3\n"), InputCase("20 2\n", "22\n"))),
    }
    calls = read_task(line("verifiable_code", verification_info=CALLS)).verification
    assert calls == CodeTests((CallCase("add", "[1, 2]", "3"), CallCase("add", '["a", "b"]', '["ab"]')))


def test_info_may_be_a_text_in_json_and_four_fields_are_enough() -> None:
    assert read_task(line(verification_info=json.dumps(KINDS["exact_answer"]))) == read_task(line())
    bare = line(source=..., in_source_id=..., gold_standard_solution=..., metadata=..., hf_dataset_name=...)
    assert (read_task(bare).prompt, read_task(bare).solve_rate) == ("What is it?", None)
    assert [read_task(line(solve_rate=rate, samples=8)).solve_rate for rate in (0, 0.125, 1)] == [0, 0.125, 1]


def test_solution_is_the_gold_standard_or_the_answer() -> None:
    assert read_task(line(gold_standard_solution="By thinking: Paris")).solution == "By thinking: Paris"
    assert read_task(line(gold_standard_solution="")).solution == "Paris"
    assert read_task(line("numeric_answer")).solution == "7/2"
    assert read_task(line("verifiable_code")).solution is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (line(task_type=...), "has no task_type"),
        (line(problem_id=""), "problem_id is empty"),
        (line(problem_id=1.5), "problem_id is not text"),
        (line(problem_id=True), "problem_id is not text"),
        (line(solutions=1), "the line has the unknown field 'solutions'"),
        (line(prompt=""), "prompt is empty"),
        (line(prompt=3), "prompt is not text"),
        (line(prompt="x" * 70_000), "prompt is longer than 65536 bytes"),
        (line(prompt="a\0b"), "prompt contains the NUL character"),
        (line(prompt="\ud800"), "half a character"),
        (line(task_type="llm_judgeable_groundtruth_similarity"), "task_type .* is not one of exact_answer, numeric_answer"),
        (line(verification_info=[]), "verification_info is not a JSON object"),
        (line(verification_info="{'ground_truth': 'python'}"), "it is not JSON"),
        (line(verification_info={"ground_truth": "x", "hint": "y"}), "unknown field 'hint'"),
        (line("numeric_answer", verification_info={"ground_truth": "seven"}), "ground_truth is not a number"),
        (line("numeric_answer", verification_info={"ground_truth": True}), "ground_truth is not a number"),
        (line("numeric_answer", verification_info={"ground_truth": "1e999999999"}), "ground_truth is not a number"),
        (line("numeric_answer", verification_info={"ground_truth": 1, "tolerance": -1}), "tolerance is negative"),
        (line("verifiable_code", verification_info={"language": "rust", "test_cases": []}), "language is not 'python'"),
        (line("verifiable_code", verification_info={"language": "python", "test_cases": []}), "1 to 64 cases"),
        *((line(solve_rate=rate), "solve_rate is not a number from 0 to 1") for rate in (1.01, -0.1, True, "0.5", [0.5])),
        *((line(solve_rate=0.5, samples=many), "samples is not a whole number") for many in (0, 8.0, True, 10**30)),
        (line(samples=8), "samples is given without solve_rate"),
        (line().replace(b'"problem_id"', b'"solve_rate": 1e400, "problem_id"'), "solve_rate is not a number"),
        (b'{"prompt": "a", "prompt": "b"}', "the field 'prompt' appears twice"),
        (b'{"prompt": NaN}', "NaN is not a number in JSON"),
        (b'{"prompt": ', "it is not JSON .Expecting value at column 12."),
        (b"[]", "the line is not a JSON object"),
        (b"\xff", "it is not UTF-8 text at byte 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * 1_100_000 + b"{}", "longer than 1024 KiB"),
    ],
)
def test_what_is_wrong_is_said(text: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_task(text)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"type": "file"}, "neither stdin_stdout nor function_call"),
        ({"type": "stdin_stdout", "input": "", "output": 1}, "output is not text"),
        ({"type": "stdin_stdout", "input": ""}, "has no output"),
        ({"type": "function_call", "fn_name": "a b", "input": [], "output": 1}, "not the name of a function"),
        ({"type": "function_call", "fn_name": "\U0001df25", "input": [], "output": 1}, "not the name of a function"),
        ({"type": "function_call", "fn_name": "f", "input": 1, "output": 1}, "not a list of arguments"),
        ({"type": "function_call", "fn_name": "f", "input": ["x" * 300_000], "output": 1}, "longer than 256 KiB"),
        ("case", "test case 2 is not a JSON object"),
        (CALLS["test_cases"][0], "mixes stdin_stdout and function_call"),
    ],
)
def test_what_is_wrong_with_a_case_is_said(case: Any, sentence: str) -> None:
    good = {"type": "stdin_stdout", "input": "", "output": ""}
    with pytest.raises(ValueError, match=sentence):
        read_task(line("verifiable_code", verification_info={"language": "python", "test_cases": [good, case]}))


def test_sentence_names_the_line() -> None:
    with pytest.raises(ValueError, match=r"^line 3: prompt is empty$"):
        read_tasks([line(), b"\n", line(prompt="", problem_id="other")])
    with pytest.raises(ValueError, match=r"^line 3: problem_id 'exact_answer-1' was used in line 2$"):
        read_tasks([b"", line(), line()])
    with pytest.raises(ValueError, match="the file has no task"):
        read_tasks([b"", b"  \n"])
    with pytest.raises(ValueError, match="line 1: it is not UTF-8 text at byte 1; save the file as UTF-8"):
        read_tasks(line().decode().encode("utf-16").splitlines(keepends=True))


def test_a_task_without_an_id_is_called_by_its_line() -> None:
    nameless = line(problem_id=...)
    assert [task.problem_id for task in read_tasks([nameless, b"\n", nameless, line(problem_id=7), line()])] == [
        "1", "3", "7", "exact_answer-1",
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"^line 2: problem_id '1' was used in line 1$"):
        read_tasks([nameless, line(problem_id=1)])


@pytest.mark.parametrize("start", [b"", BYTE_ORDER_MARK])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\r\n \n", b"\n" + BYTE_ORDER_MARK])
def test_marks_of_editors_are_passed_over(start: bytes, end: bytes) -> None:
    data = start + end.join([line("numeric_answer"), line(problem_id=...), b""])
    tasks = read_tasks(data.splitlines(keepends=True))
    assert [task.verification for task in tasks] == [NumericAnswer(Fraction(7, 2), Fraction(1, 100)), ExactAnswer("Paris")]


def test_number_of_tasks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_TASKS", 2)
    with pytest.raises(ValueError, match="line 3: a set has at most 2 tasks"):
        read_tasks([line(problem_id=str(number)) for number in range(3)])


NUMBERS = {
    " 1,234.50 ": Fraction(2469, 2), "1,234": Fraction(1234), "\u22123/4": Fraction(-3, 4), "-3/4": Fraction(-3, 4),
    ".5e1": Fraction(5), "1e-3": Fraction(1, 1000),
}  # fmt: skip
NO_NUMBERS = ["1,2", "1,23,4", "0,123", "1234,567", "1/0", "1e9999", "nan", "1_000", "\u0663", "9" * 100, ""]


@pytest.mark.parametrize(("text", "number"), [*NUMBERS.items(), *((text, None) for text in NO_NUMBERS)])
def test_numbers_are_exact_and_short(text: str, number: Fraction | None) -> None:
    assert number_in(text) == number


def read_or_refuse(data: bytes) -> None:
    """Anything but a task or a ValueError is a defect."""
    try:
        assert read_task(data).prompt
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize("depth", [60, 61, 900])
def test_how_deep_is_read_does_not_depend_on_the_version_of_python(depth: int) -> None:
    """Else a set could be had by some peers of a run and by others not.  The case lies in four already."""
    case = b'{"type": "function_call", "fn_name": "f", "input": [], "output": ' + b"[" * depth + b"]" * depth + b"}"
    info = b'{"language": "python", "test_cases": [' + case + b"]}"
    text = b'{"problem_id": "0", "task_type": "verifiable_code", "prompt": "?", "verification_info": ' + info + b"}"
    if depth == 60:
        assert read_task(text).prompt == "?"
        return
    with pytest.raises(ValueError, match="at most 64 times"):
        read_task(text)


@given(st.sampled_from(BOMBS) | st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_or_read(data: bytes) -> None:
    read_or_refuse(data)


@settings(max_examples=60)
@given(st.sampled_from([*KINDS, "calls"]), st.integers(0, 2**32))
def test_damaged_lines_are_read_or_refused(kind: str, seed: int) -> None:
    whole = line("verifiable_code", verification_info=CALLS) if kind == "calls" else line(kind)
    random = Random(seed)
    for _ in range(20):
        read_or_refuse(mutated(whole, random))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(list(KINDS)), st.sampled_from([*record(), "solve_rate", "samples", "other"]), JSON)
def test_any_value_in_any_field_is_read_or_refused(kind: str, field: str, value: Any) -> None:
    read_or_refuse(line(kind, **{field: value}))


CASE = st.fixed_dictionaries(
    {"type": st.sampled_from(["stdin_stdout", "function_call"]), "input": JSON, "output": JSON, "fn_name": st.just("f")}
)


@pytest.mark.slow
@given(
    st.sampled_from(list(KINDS)),
    st.sampled_from(["ground_truth", "tolerance", "language", "test_cases"]),
    JSON | st.lists(CASE),
)
def test_any_value_in_the_info_is_read_or_refused(kind: str, field: str, value: Any) -> None:
    read_or_refuse(line(kind, verification_info=KINDS[kind] | {field: value}))


@pytest.mark.parametrize(
    ("given", "verification", "solution"),
    [
        ({"prompt": "3 + 4?", "answer": 7}, NumericAnswer(Fraction(7), Fraction(0)), "7"),
        ({"prompt": "3 + 4?", "answer": "7.5", "level": 3}, NumericAnswer(Fraction(15, 2), Fraction(0)), "15/2"),
        ({"question": "Capital of France?", "answer": "Paris"}, ExactAnswer("Paris"), "Paris"),
        ({"prompt": "How dear?", "answer": "$1,000.00"}, NumericAnswer(Fraction(1000), Fraction(0)), "1000"),
        ({"prompt": "How far?", "answer": "2.5 km"}, NumericAnswer(Fraction(5, 2), Fraction(0), "km"), "5/2 km"),
        (
            {"prompt": "3 + 4?", "answer": "It is \\boxed{7}."},
            NumericAnswer(Fraction(7), Fraction(0)),
            "It is \\boxed{7}.\nAnswer: 7",
        ),
        (
            {"question": "3 + 4?", "answer": "It is 3 + 4 = <<3+4=7>>7.\n#### 1,007"},
            NumericAnswer(Fraction(1007), Fraction(0)),
            "It is 3 + 4 = <<3+4=7>>7.\nAnswer: 1,007",
        ),
    ],
)
def test_tasks_as_people_have_them_are_read(given: dict[str, Any], verification: object, solution: str) -> None:
    task = read_task(json.dumps(given).encode())
    assert (task.prompt, task.verification, task.solution) == (
        given.get("prompt", given.get("question")),
        verification,
        solution,
    )


@pytest.mark.parametrize(
    "given",
    [{}, {"text": "a"}, {"prompt": "a", "answer": True}, {"prompt": 3, "answer": 3}, {"question": "a", "answer": ["b"]}],
)
def test_an_unknown_form_is_told_with_the_task_types_and_an_example(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"exact_answer, numeric_answer, .*for example, {") as caught:
        read_task(json.dumps(given).encode())
    example = str(caught.value).partition("for example, ")[2]
    assert read_task(example.encode()).solution == "7"
