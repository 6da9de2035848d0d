r"""Import of tasks from data sets as people publish them: `peer tasks import`.

Rows are read as `peer data build` reads them (`peer.corpora.readers`): files and folders of Parquet, Arrow, JSON and tables,
and data sets of Hugging Face, a few rows at a time.  Only the columns in `COLUMNS` are read.  There are three layouts:

* `task_type`, `prompt` and `verification_info`, as in SYNTHETIC-1 (the info in JSON or in Python's notation);
* `problem` and `answer`, with `question_type`, `problem_is_valid` and `solution_is_valid`, as in NuminaMath-1.5; without
  `answer`, the box in `solution` has it, as in MATH;
* `question` or `prompt`, and `answer`, a solution whose last line is `#### 42`, as in GSM8K, or the answer itself.

A row whose answer nobody can check, or that a guess often solves, is left out for one of the reasons in `Omission`.  A file
of another form is refused.  Written lines have been read back by `read_task`, so every peer accepts the file.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn
from warnings import catch_warnings, simplefilter

from peer.corpora.inputs import BuildInput, survey
from peer.corpora.options import BuildOptions, FieldSelection, OptionWords, TokenFormat
from peer.corpora.readers import RawRow, RowForm, batches
from peer.errors import ExitCode, PeerError
from peer.files import write_atomically
from protocol.corpora.manifest import CorpusKind
from protocol.formatting import many
from protocol.run.sections import MAX_FILE_BYTES
from trainer.data.strict_json import parsed
from trainer.environments.answers import BOX, answer_of_solution, is_words, plain_answer, quantity_in
from trainer.environments.records import MAX_LINE_BYTES, MAX_PROMPT_BYTES, MAX_TASKS, read_task
from trainer.environments.task_file import digest_of

COLUMNS = (
    "task_type", "verification_info", "prompt", "question", "problem", "answer", "solution", "gold_standard_solution",
    "question_type", "problem_is_valid", "solution_is_valid", "problem_id", "solve_rate", "samples",
)  # fmt: skip
"""Columns that are read."""
MAX_ROWS = 1 << 23
"""Maximum number of rows that are read; a small file can claim billions."""
MAX_LITERAL_CHARACTERS = 1 << 18
"""Maximum length of a `verification_info` in Python's notation, whose parser takes far more memory than the text."""
MAX_WORDS = 4
MAX_FORMULA_CHARACTERS = 200
"""Maximum length of an answer in words, and of a formula; nobody repeats a longer one."""
REQUEST = 'End with "Answer:" and the answer{}.'
WITH_UNIT = " with its unit"
"""Sentence that is added to a prompt, because an answer in the middle of a text does not count.  `WITH_UNIT` fills it."""

_IMAGE = re.compile(r"!\[[^\]\n]{0,200}\]\(|<img\b|\\includegraphics\b", re.IGNORECASE)
_CHOICES = [re.compile(rf"\({letter}\)|\b{letter}[.)]|\\text(?:bf|rm)?\{{\s?\(?{letter}\b") for letter in "AB"]
_LETTER = re.compile(r"\(?[A-H]\)?")
_TWO_VALUES = {"yes", "no", "true", "false"}
_SEVERAL = re.compile(r";|\bor\b|\band\b|\([12ab]\)|\b[12ab]\)|[①-⑨]|\n", re.IGNORECASE)
_COMPUTED = re.compile(r"<<[^<>\n]*>>")
"""Pattern of the computations that GSM8K writes for a calculator."""
_COMMAND = re.compile(r"\\[A-Za-z]+")
_KINDS = {"exact_answer", "numeric_answer", "verifiable_math", "verifiable_code"}


class Omission(StrEnum):
    """Reason for which a row is left out; the value follows a count."""

    PROOF = "that ask for a proof"
    CHOICE = "with choices to guess from"
    IMAGE = "with an image"
    FAULTY = "that their makers mark as faulty"
    UNANSWERED = "without an answer"
    SEVERAL = "with several answers"
    UNCHECKED = "with an answer that cannot be compared"
    KIND = "of a kind that is not scored here"
    REPEATED = "with the question or problem_id of an earlier task"
    LONG = "that are too long"
    BROKEN = "that are no tasks"


class OmittedRow(Exception):
    """Reason to leave out a row."""

    def __init__(self, reason: Omission) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class ImportOptions:
    """Options of an import.

    most: maximum number of tasks.  rows: number of rows that are read of each input; None for all.  every: 10 to take every
    tenth usable row, the first of them first.  longest: maximum bytes of a prompt.  request: sentence added to prompts of
    data sets without one of their own; None for `REQUEST`.
    """

    most: int = MAX_TASKS
    rows: int | None = None
    every: int = 1
    longest: int = MAX_PROMPT_BYTES
    request: str | None = None


@dataclass
class ImportedTasks:
    """Result of an import, and its progress.

    rows: number of rows read.  usable: rows that are tasks, with those that `every` passes over.  kinds: number of written
    tasks by the class of their verification.  is_full: True if the rest of the input was not read.  share: of the input's
    bytes, 0 to 1, None if unknown.
    """

    rows: int = 0
    usable: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    omitted: Counter[Omission] = field(default_factory=Counter)
    size_bytes: int = 0
    is_full: bool = False
    digest: str = ""
    share: float | None = None

    @property
    def tasks(self) -> int:
        """Number of written tasks."""
        return self.kinds.total()

    def told(self) -> str:
        """Describe, in one sentence, the rows that were left out, and why."""
        if not self.omitted:
            return f"none of {many(self.rows, 'row')}"
        reasons = ", ".join(f"{count} {reason.value}" for reason, count in self.omitted.most_common())
        return f"{self.omitted.total()} of {many(self.rows, 'row')}: {reasons}"


OnImport = Callable[[ImportedTasks], None]
"""Function called after each batch of rows."""


def import_tasks(
    origin: Path | str, target: Path, options: ImportOptions, on_progress: OnImport = lambda so_far: None
) -> ImportedTasks:
    """Write the tasks of a file, a folder or a data set (`hf:owner/name[:config][@split]`) to a new file.

    Raises `PeerError` with one sentence for an input that cannot be read, that is in another form, or that has no task.
    """
    done, lines = ImportedTasks(), list[bytes]()
    for line, kind in _tasks(origin, options, done, on_progress):
        if done.tasks == options.most or done.size_bytes + len(line) > MAX_FILE_BYTES:
            done.is_full = True
            break
        lines.append(line)
        done.kinds[kind] += 1
        done.size_bytes += len(line)
    if not lines:
        raise PeerError(f"{origin} has no task that can be checked; left out {done.told()}", ExitCode.INPUT)
    data = b"".join(lines)
    done.digest = digest_of(data)
    try:
        write_atomically(target, data, replace=False)
    except FileExistsError as error:
        raise PeerError(f"{target} exists; remove it, or give another --out", ExitCode.INPUT) from error
    except OSError as error:
        raise PeerError(f"cannot write {target}: {error.strerror}; give another --out", ExitCode.RESOURCES) from error
    return done


def _tasks(
    origin: Path | str, options: ImportOptions, done: ImportedTasks, on_progress: OnImport
) -> Iterator[tuple[bytes, str]]:
    """Yield the line of each task, and the class of its verification; count the rows in `done`."""
    has = "tasks have question, problem or prompt, and answer"
    words = OptionWords(text=has, skipped="name the files themselves")
    fields = FieldSelection(text="question", most_rows=options.rows, columns=COLUMNS, words=words)
    build = BuildOptions(TokenFormat(CorpusKind.CHAT), fields)
    inputs = [BuildInput("tasks", origin)]
    surveyed, seen = survey(inputs, build), set[int]()
    for batch in batches(inputs, build, surveyed.traits):
        for raw in batch.rows:
            if raw.form is RowForm.JSON and not raw.content.strip():
                continue
            done.rows += 1
            if done.rows > MAX_ROWS:
                raise PeerError(f"{origin} has more than {MAX_ROWS} rows; take the first with --rows N", ExitCode.INPUT)
            try:
                line, kind = _written(_record(raw, batch.names[raw.file]), raw, options)
                _check_new(line, seen)
            except OmittedRow as error:
                done.omitted[error.reason] += 1
                continue
            except UnknownLayout as error:
                raise PeerError(f"{batch.names[raw.file]}, row {raw.row}: {error}", ExitCode.INPUT) from error
            done.usable += 1
            if (done.usable - 1) % options.every == 0:
                yield line, kind
        if surveyed.total_bytes:
            done.share = min(1.0, batch.done_bytes / surveyed.total_bytes)
        on_progress(done)


class UnknownLayout(ValueError):
    """Error for an input in none of the known layouts; the text completes "FILE, row ROW: "."""


def _record(raw: RawRow, name: str) -> Mapping[str, Any]:
    if raw.form is RowForm.LONG:
        raise OmittedRow(Omission.LONG)
    if raw.form is RowForm.BROKEN:  # the rest of the file is unknown
        raise PeerError(f"{name}, row {raw.row}: {raw.content}", ExitCode.INPUT)
    record = raw.content
    if isinstance(record, bytes):
        try:
            record = parsed(record)
        except ValueError as error:
            raise UnknownLayout(str(error)) from error
    if not isinstance(record, Mapping):
        raise UnknownLayout("it is not a record with named fields")
    known = {name: record[name] for name in COLUMNS if record.get(name) is not None}
    if not known:
        _unknown(record)
    return known


def _unknown(record: Mapping[str, Any]) -> NoReturn:
    raise UnknownLayout(
        f"it has no question, problem or prompt with an answer, but {', '.join(map(str, record))[:200] or 'no field'}; "
        "rename its columns"
    )


def _check_new(line: bytes, seen: set[int]) -> None:
    """Raise `OmittedRow` for a task whose prompt or problem_id an earlier one has.  seen: hashes of these."""
    task = json.loads(line)
    names = {int.from_bytes(blake2b(json.dumps([key, task[key]]).encode(), digest_size=8).digest()) for key in _UNIQUE}
    if not names.isdisjoint(seen):
        raise OmittedRow(Omission.REPEATED)
    seen |= names


_UNIQUE = ("prompt", "problem_id")


# ------------------------------------------------------------------------------------------------------------------------
# One row: the line of its task.


def _written(record: Mapping[str, Any], raw: RawRow, options: ImportOptions) -> tuple[bytes, str]:
    """Return the line of a row's task, and the class of its verification.  Raises `OmittedRow` or `UnknownLayout`."""
    if any(isinstance(value, str) and len(value) > MAX_LINE_BYTES for value in record.values()):
        raise OmittedRow(Omission.LONG)
    for name, value in record.items():
        if not isinstance(value, str | int | float) and not (name == "verification_info" and isinstance(value, Mapping)):
            raise UnknownLayout(f"its field {name} is nested; write it as one text or number")
    if "task_type" in record or "verification_info" in record:
        task = _published(record)
    elif "problem" in record and ("answer" in record or "solution" in record):
        task = _mathematics(record, options)
    elif "prompt" in record or "question" in record:
        task = _question(record, options)
    else:
        _unknown(record)
    if len(task["prompt"].encode(errors="replace")) > options.longest:
        raise OmittedRow(Omission.LONG)
    if _IMAGE.search(task["prompt"]):
        raise OmittedRow(Omission.IMAGE)
    kept = {name: record[name] for name in ("problem_id", "solve_rate", "samples") if name in record}
    named = {"problem_id": f"file {raw.file}, row {raw.row}", **kept}
    try:
        line = json.dumps({**named, **task}).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:  # values of a Python literal that JSON has not
        raise OmittedRow(Omission.BROKEN) from error
    try:
        return line, type(read_task(line).verification).__name__
    except ValueError as error:
        raise OmittedRow(Omission.LONG if "longer than" in str(error) else Omission.BROKEN) from error


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    try:
        return "" if value is None else str(value).strip()
    except ValueError as error:  # a number of more digits than Python writes
        raise OmittedRow(Omission.BROKEN) from error


def _published(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a row in the form of SYNTHETIC-1."""
    kind = _text(record, "task_type")
    if kind not in _KINDS:
        raise OmittedRow(Omission.KIND)
    info = record.get("verification_info")
    if isinstance(info, str):
        info = _info(info)
    if not isinstance(info, Mapping) or not _text(record, "prompt"):
        raise OmittedRow(Omission.BROKEN)
    names = ("language", "test_cases") if kind == "verifiable_code" else ("ground_truth", "tolerance")
    info = {name: info[name] for name in names if info.get(name) is not None}
    if kind != "verifiable_code":
        info["ground_truth"] = _text(info, "ground_truth")
        if not info["ground_truth"]:
            raise OmittedRow(Omission.UNANSWERED)
    solution = _text(record, "gold_standard_solution")
    worked = {"gold_standard_solution": solution} if solution else {}
    return {"task_type": kind, "prompt": _text(record, "prompt"), "verification_info": info, **worked}


def _info(text: str) -> Any:
    """Return the value of a text in JSON, or of a literal in Python's notation, which some published rows have."""
    try:
        return parsed(text.encode(errors="surrogatepass"), has_nan=False)
    except ValueError:
        if len(text) > MAX_LITERAL_CHARACTERS:
            return None
    try:
        with catch_warnings():
            simplefilter("ignore")
            return ast.literal_eval(text)  # reads literals, and evaluates nothing
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _mathematics(record: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """Return the task of a row in the form of NuminaMath-1.5 or MATH."""
    answer, kind = _text(record, "answer"), _text(record, "question_type").lower()
    if kind == "proof" or answer.lower() == "proof":
        raise OmittedRow(Omission.PROOF)
    if kind == "mcq":
        raise OmittedRow(Omission.CHOICE)
    if any(_text(record, name).lower() not in ("", "yes", "true") for name in ("problem_is_valid", "solution_is_valid")):
        raise OmittedRow(Omission.FAULTY)
    if "answer" not in record:
        found = answer_of_solution(_text(record, "solution"))
        answer = found[1] if found is not None else ""
    return _task(_text(record, "problem"), answer, _text(record, "solution"), options)


def _question(record: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
    """Return the task of a row with a question and an answer, in the form of GSM8K or plain."""
    solution, answer = "", _text(record, "answer")
    if (found := answer_of_solution(answer)) is not None:
        solution, answer = _COMPUTED.sub("", found[0]), found[1]
    return _task(_text(record, "question") or _text(record, "prompt"), answer, solution, options)


def _task(question: str, answer: str, solution: str, options: ImportOptions) -> dict[str, Any]:
    """Return a task with a right answer.  solution: the way to it; empty if there is none."""
    if not question or not answer or answer.lower() == "notfound":
        raise OmittedRow(Omission.UNANSWERED if question else Omission.BROKEN)
    if BOX in answer and (found := answer_of_solution(answer)) is not None:
        answer = found[1]
    right = plain_answer(answer)
    kind = _kind_of(question, right)
    quantity = quantity_in(right)
    unit = WITH_UNIT if quantity is not None and quantity.unit else ""
    request = REQUEST.format(unit) if options.request is None else options.request
    prompt = question if BOX in question or not request else f"{question}\n{request}"
    worked = {"gold_standard_solution": f"{solution}\nAnswer: {right}"} if solution else {}
    return {"task_type": kind, "prompt": prompt, "verification_info": {"ground_truth": right}, **worked}


def _kind_of(question: str, right: str) -> str:
    """Return the task type for a right answer without marks.  Raises `OmittedRow` if no other answer could be compared."""
    if right.lower() in _TWO_VALUES or (_LETTER.fullmatch(right) and _has_choices(question)):
        raise OmittedRow(Omission.CHOICE)
    if quantity_in(right) is not None:
        return "numeric_answer"
    if not right or len(right) > MAX_FORMULA_CHARACTERS:
        raise OmittedRow(Omission.UNCHECKED)
    if _SEVERAL.search(right):
        raise OmittedRow(Omission.SEVERAL)
    if right.isalpha() or is_words(right):
        if len(right.split()) > MAX_WORDS:
            raise OmittedRow(Omission.UNCHECKED)
        return "exact_answer"
    words = re.findall(r"[^\W\d_]{3,}", _COMMAND.sub(" ", right))
    if len(words) > MAX_WORDS:
        raise OmittedRow(Omission.UNCHECKED)
    return "verifiable_math"


def _has_choices(question: str) -> bool:
    """Return True for a question that lists choice A and, after it, choice B."""
    first = _CHOICES[0].search(question)
    return first is not None and _CHOICES[1].search(question, first.end()) is not None
