r"""Tasks as lines of JSON, in the form of GENESYS and SYNTHETIC-1, with strict checks and bounded sizes.

A line is an object with `task_type`, `prompt`, `verification_info`, and optionally `problem_id` (by default the line's
number), `source`, `in_source_id`, `gold_standard_solution`, `metadata`, `hf_dataset_name`, `solve_rate`, `samples`.
`verification_info` is an object, or a string that contains the object as JSON.

For each task type it contains:

* `exact_answer`: `ground_truth`, the text of the answer.
* `numeric_answer`: `ground_truth`, a number or a string that contains one, with a unit or a dollar sign if it has one, and
  optionally `tolerance`.
* `verifiable_math`: `ground_truth`, LaTeX or plain, compared as mathematics (math-verify).
* `verifiable_code`: `language` ("python") and `test_cases`, each
  `{"type": "stdin_stdout", "input": text, "output": text}` or
  `{"type": "function_call", "fn_name": name, "input": [argument, …], "output": value}`.

A line may also be `{"prompt": text, "answer": text or number}`, or with `question` for `prompt`. An answer that ends in
`#### 42` or contains a box (`\boxed{42}`) is a solution. Numbers become a `numeric_answer`, other texts an `exact_answer`.

The first two types are our own; the others are as published. `solve_rate` is the mean score, 0 to 1, over a number `samples`
of a model's answers. A run may leave out a task because of its solve rate (`SolveRates`). Tasks are data: no part of a task
is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trainer.data.strict_json import parsed
from trainer.environments.answers import Quantity, answer_of_solution, quantity_in

MAX_LINE_BYTES = 1 << 20
MAX_TASKS = 1_000_000
MAX_PROMPT_BYTES = 64 << 10
MAX_NAME_BYTES = 256
MAX_CASES = 64
"""Maximum number of test cases of a task. Each case needs a process of its own if the program reads standard input."""
MAX_CASE_BYTES = 256 << 10
MAX_SAMPLES = 1 << 20
"""Maximum number of answers from which a solve rate was measured."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Byte order mark, which some editors write before UTF-8 text."""

_FIELDS = {"task_type", "prompt", "verification_info"}
_ALSO = {
    "problem_id",
    "source",
    "in_source_id",
    "gold_standard_solution",
    "metadata",
    "hf_dataset_name",
    "solve_rate",
    "samples",
}


@dataclass(frozen=True)
class ExactAnswer:
    """Verification that the answer is this text."""

    text: str


@dataclass(frozen=True)
class NumericAnswer:
    """Verification that the answer is a number, at most `tolerance` away from this one, with this unit; empty for none."""

    value: Fraction
    tolerance: Fraction
    unit: str = ""


@dataclass(frozen=True)
class MathsAnswer:
    """Verification that the answer means the same as this text in mathematics."""

    text: str


@dataclass(frozen=True)
class InputCase:
    """Test that the program writes `expected` for `given` on its standard input."""

    given: str
    expected: str


@dataclass(frozen=True)
class CallCase:
    """Test that the program's function returns `expected` for the arguments; both are JSON texts."""

    function: str
    arguments: str
    expected: str


@dataclass(frozen=True)
class CodeTests:
    """Verification that a Python program passes all cases; all cases are of one kind."""

    cases: tuple[InputCase, ...] | tuple[CallCase, ...]


Verification = ExactAnswer | NumericAnswer | MathsAnswer | CodeTests


@dataclass(frozen=True)
class TaskRecord:
    """Task from one line of a file.

    solution: a good answer, if the line or its ground truth gives one. solve_rate: the mean score of a model's answers, 0 to
    1, as given in the line; None if it was not measured.
    """

    problem_id: str
    prompt: str
    verification: Verification
    solution: str | None
    solve_rate: float | None = None


def read_tasks(lines: Iterable[bytes]) -> tuple[TaskRecord, ...]:
    """Return the tasks of these lines; skip blank lines.

    Raises ValueError with the line's number and one sentence for any flaw.
    """
    tasks: list[TaskRecord] = []
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.removeprefix(BYTE_ORDER_MARK).strip():
            continue
        try:
            task = read_task(line, number)
            if task.problem_id in numbers:
                raise ValueError(f"problem_id {task.problem_id!r} was used in line {numbers[task.problem_id]}")
            if len(tasks) == MAX_TASKS:
                raise ValueError(f"a set has at most {MAX_TASKS} tasks")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        numbers[task.problem_id] = number
        tasks.append(task)
    if not tasks:
        raise ValueError("the file has no task: every line is blank")
    return tuple(tasks)


def read_task(line: bytes, number: int = 1) -> TaskRecord:
    """Return the task of one line.  Raises ValueError with one sentence."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES >> 10} KiB")
    record = _in_our_form(_object("the line", parsed(line, has_nan=False)))
    _check_fields("the line", record, _FIELDS, _ALSO)
    prompt = _text(record, "prompt", MAX_PROMPT_BYTES)
    solution = record.get("gold_standard_solution")
    if solution is not None:
        solution = _text(record, "gold_standard_solution", MAX_LINE_BYTES, may_be_empty=True) or None
    kind = _text(record, "task_type", MAX_NAME_BYTES)
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"task_type {kind!r} is not one of {', '.join(sorted(_READERS))}")
    info = record["verification_info"]
    if isinstance(info, str):
        info = parsed(info.encode(errors="surrogatepass"), has_nan=False)
    info = _object("verification_info", info)
    verification = reader(info)
    if solution is None and isinstance(verification, ExactAnswer | MathsAnswer):
        solution = verification.text
    if solution is None and isinstance(verification, NumericAnswer):
        solution = f"{verification.value} {verification.unit}".rstrip()
    name = number if record.get("problem_id") is None else record["problem_id"]
    is_number = type(name) is int and abs(name) < 10**18
    named = str(name) if is_number else _text(record, "problem_id", MAX_NAME_BYTES)
    return TaskRecord(named, prompt, verification, solution, _solve_rate(record))


EXAMPLE = (
    '{"task_type": "numeric_answer", "prompt": "What is 3 + 4?  End with Answer: and the number.", "verification_info": '
    '{"ground_truth": 7}}'
)


def _in_our_form(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a record with a `prompt` or `question` and an `answer`, as in GSM8K, to the form of tasks.

    The answer is a number or text, or a solution with the answer in its last line, "#### 42", or in a box.  Other fields are
    left out.  Raises ValueError with an example of a task for a record without a task type in another form.
    """
    if "task_type" in record or "verification_info" in record:
        return record
    prompt, answer = record.get("prompt", record.get("question")), record.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, int | float | str) or not isinstance(prompt, str):
        raise ValueError(
            f"not a task: it has neither task_type ({', '.join(sorted(_READERS))}) nor prompt or question, and answer; "
            f"write, for example, {EXAMPLE}"
        )
    text = answer if isinstance(answer, str) else str(answer)
    stated = answer_of_solution(text)
    right = (stated[1] if stated is not None else text).strip()
    kind = "exact_answer" if quantity_in(right) is None else "numeric_answer"
    kept = {name: record[name] for name in ("problem_id", "solve_rate", "samples") if name in record}
    solution = {} if stated is None else {"gold_standard_solution": f"{stated[0]}\nAnswer: {right}"}
    return {"task_type": kind, "prompt": prompt, "verification_info": {"ground_truth": right}, **solution, **kept}


def _solve_rate(record: Mapping[str, Any]) -> float | None:
    rate, samples = record.get("solve_rate"), record.get("samples")
    if rate is not None and (type(rate) not in (int, float) or not 0 <= rate <= 1):
        raise ValueError("solve_rate is not a number from 0 to 1")
    if samples is not None and (type(samples) is not int or not 1 <= samples <= MAX_SAMPLES):
        raise ValueError(f"samples is not a whole number from 1 to {MAX_SAMPLES}")
    if rate is None and samples is not None:
        raise ValueError("samples is given without solve_rate; add solve_rate, or remove samples")
    return None if rate is None else float(rate)


def _ground_truth(info: Mapping[str, Any]) -> str:
    _check_fields("verification_info", info, {"ground_truth"}, set())
    return _text(info, "ground_truth", MAX_PROMPT_BYTES)


def _read_numeric(info: Mapping[str, Any]) -> Verification:
    _check_fields("verification_info", info, {"ground_truth"}, {"tolerance"})
    tolerance = _number(info, "tolerance") if "tolerance" in info else Quantity(Fraction(0))
    if tolerance.value < 0 or tolerance.unit:
        raise ValueError("tolerance is negative" if tolerance.value < 0 else "tolerance has a unit; give a number")
    right = _number(info, "ground_truth")
    return NumericAnswer(right.value, tolerance.value, right.unit)


def _read_code(info: Mapping[str, Any]) -> Verification:
    _check_fields("verification_info", info, {"language", "test_cases"}, set())
    if info["language"] != "python":
        raise ValueError("language is not 'python'")
    cases = info["test_cases"]
    if not isinstance(cases, list) or not 1 <= len(cases) <= MAX_CASES:
        raise ValueError(f"test_cases is not a list of 1 to {MAX_CASES} cases")
    read = [_read_case(_object(f"test case {number}", case)) for number, case in enumerate(cases, start=1)]
    inputs = tuple(case for case in read if isinstance(case, InputCase))
    calls = tuple(case for case in read if isinstance(case, CallCase))
    if inputs and calls:
        raise ValueError("test_cases mixes stdin_stdout and function_call")
    return CodeTests(inputs or calls)


def _read_case(case: Mapping[str, Any]) -> InputCase | CallCase:
    kind = case.get("type")
    if kind == "stdin_stdout":
        _check_fields("a test case", case, {"type", "input", "output"}, {"fn_name"})
        return InputCase(
            _text(case, "input", MAX_CASE_BYTES, may_be_empty=True), _text(case, "output", MAX_CASE_BYTES, True)
        )
    if kind == "function_call":
        _check_fields("a test case", case, {"type", "input", "output", "fn_name"}, set())
        name = _text(case, "fn_name", MAX_NAME_BYTES)
        if not (name.isascii() and name.isidentifier()):  # which other letters Python allows depends on its version
            raise ValueError("fn_name is not the name of a function")
        if not isinstance(case["input"], list):
            raise ValueError("input of a function_call is not a list of arguments")
        return CallCase(name, _dumps(case["input"]), _dumps(case["output"]))
    raise ValueError("the type of a test case is neither stdin_stdout nor function_call")


_READERS = {
    "exact_answer": lambda info: ExactAnswer(_ground_truth(info)),
    "numeric_answer": _read_numeric,
    "verifiable_math": lambda info: MathsAnswer(_ground_truth(info)),
    "verifiable_code": _read_code,
}


def _dumps(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if len(text) > MAX_CASE_BYTES:
        raise ValueError(f"a test case is longer than {MAX_CASE_BYTES >> 10} KiB")
    _check_text("a test case", text)
    return text


def _object(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a JSON object")
    return value


def _check_fields(what: str, found: Mapping[str, Any], needed: set[str], allowed: set[str]) -> None:
    missing, unknown = sorted(needed - set(found)), sorted(set(found) - needed - allowed)
    if missing:
        raise ValueError(f"{what} has no {missing[0]}")
    if unknown:
        raise ValueError(f"{what} has the unknown field {unknown[0][:64]!r}")


def _text(record: Mapping[str, Any], name: str, most_bytes: int, may_be_empty: bool = False) -> str:
    value = record[name]
    if not isinstance(value, str) or not (value or may_be_empty):
        raise ValueError(f"{name} is not text" if not isinstance(value, str) else f"{name} is empty")
    if _check_text(name, value) > most_bytes:
        raise ValueError(f"{name} is longer than {most_bytes} bytes")
    return value


def _check_text(name: str, value: str) -> int:
    """Return the size of a text in bytes. Raises ValueError for a lone surrogate and for NUL, which ends a turn."""
    if "\0" in value:
        raise ValueError(f"{name} contains the NUL character (U+0000), which ends a turn; remove it")
    try:
        return len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} contains half a character (a lone surrogate)") from error


def _number(record: Mapping[str, Any], name: str) -> Quantity:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{name} is not a number")
    number = quantity_in(str(value))
    if number is None:
        raise ValueError(f"{name} is not a number")
    return number


# ------------------------------------------------------------------------------------------------------------------------
# Offline filter, which chooses the tasks from which a run learns, by the rate at which a model solved them before the run.
#
# The rate is measured (`trainer.rl.rating`) and written into the task's record. The choice depends only on the file and the
# run's two bounds, so all peers have the same tasks in the same order.


@dataclass(frozen=True)
class SolveRates:
    """Inclusive bounds, 0 to 1, on the solve rates of tasks to learn from."""

    low: float = 0.0
    high: float = 1.0

    def have(self, rate: float | None) -> bool:
        """Return True if a task with this rate is kept; a task without a measured rate (None) is always kept."""
        return rate is None or self.low <= rate <= self.high

    def left(self, tasks: Sequence[TaskRecord]) -> tuple[TaskRecord, ...]:
        """Return the kept tasks in their order. Raises ValueError if no task is kept."""
        kept = tuple(task for task in tasks if self.have(task.solve_rate))
        if not kept:
            raise ValueError(
                f"none of the {len(tasks)} tasks has a solve_rate from {self.low:g} to {self.high:g}; use easier or harder "
                "tasks, or set min_solve_rate and max_solve_rate in the run file's [rl]"
            )
        return kept


def told(left: int, total: int, rates: SolveRates) -> str:
    """Describe, for a person, the number of kept tasks, and the reason if some were dropped."""
    if left == total:
        return f"{total}"
    return f"{left} of {total}, {total - left} left out by a solve_rate outside {rates.low:g} to {rates.high:g}"


ALL = SolveRates()
"""Bounds that keep every task."""
