"""Environment of tasks in a file, one per line."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.outside_files import read_outside
from trainer.environments.environment import Environment, OuterEnvironment, Problem
from trainer.environments.packages import PackageMissing
from trainer.environments.records import (
    ALL,
    CodeTests,
    ExactAnswer,
    MathsAnswer,
    NumericAnswer,
    SolveRates,
    TaskRecord,
    read_tasks,
)
from trainer.environments.sandbox import SandboxUnavailable
from trainer.environments.verification import AnswerVerifier, form_of
from trainer.extras import command_for

MAX_FILE_BYTES = 512 << 20


class RecordedTasks(Environment):
    """Environment of single-turn tasks in order. digest: a hash that is equal for two peers with the same tasks."""

    def __init__(self, tasks: Sequence[TaskRecord], digest: str) -> None:
        """Make the environment.

        Raises ValueError or SandboxUnavailable if this computer cannot score some kind of these tasks.
        """
        kinds = {type(task.verification) for task in tasks}
        self._tasks = tuple(tasks)
        self._verifier = AnswerVerifier(needs_code=CodeTests in kinds, needs_maths=MathsAnswer in kinds)
        self.digest = digest
        self.version = f"{digest}, {self._verifier.version}"

    @property
    def size(self) -> int:
        """Number of problems, as in `Environment.size`."""
        return len(self._tasks)

    def problem(self, index: int) -> Problem:
        """Return the problem as `Environment.problem` describes."""
        task = self._tasks[self._checked(index)]
        return Problem(index, task.prompt, task)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        """Score the turns as `Environment.score` describes."""
        return self._verifier.score(problem.answer.verification, turns[0]) if len(turns) == 1 else 0.0

    def is_exact(self, problem: Problem) -> bool:
        """Return True for tasks with a text or a number as the answer."""
        return isinstance(problem.answer.verification, ExactAnswer | NumericAnswer)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        """Return the task's solution. Raises ValueError if the task does not include one."""
        if problem.answer.solution is None:
            raise ValueError(f"task {problem.answer.problem_id} has no solution, so it cannot serve as an example")
        return (problem.answer.solution,)

    def expected(self, problem: Problem) -> str:
        """Describe a right answer as `Environment.expected` does."""
        return form_of(problem.answer.verification)


def open_file(path: str, digest: str | None = None) -> RecordedTasks:
    """Open all tasks of a file, whatever their solve rates. Raises the errors of `open_rated`."""
    return open_rated(path, digest, ALL)


def open_rated(path: str, digest: str | None, rates: SolveRates) -> RecordedTasks:
    """Open the tasks of a file from which a run with these bounds learns; the other tasks get no number.

    digest: required BLAKE2b-128 of the file's bytes, in hexadecimal; None to accept any.

    Raises ValueError with one sentence, which has the line's number if a line is at fault. Raises PackageMissing or
    SandboxUnavailable if this computer lacks a requirement.
    """
    data = read_file(path, digest)
    try:
        return RecordedTasks(rates.left(read_tasks(io.BytesIO(data))), digest_of(data))
    except PackageMissing:
        raise  # a ValueError that is not the fault of the file
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_file(path: str, digest: str | None = None) -> bytes:
    """Return the bytes of a file of tasks. Raises ValueError with one sentence if it is missing or has another digest."""
    try:
        data = read_outside(Path(path), MAX_FILE_BYTES)
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {path}; copy the tasks to it") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; replace it with a readable file of tasks") from error
    found = digest_of(data)
    if digest not in (None, found):
        raise ValueError(f"{path} has other tasks than this run's: its digest is {found}, not {digest}")
    return data


def digest_of(data: bytes) -> str:
    """Return the digest that names the content of a set of tasks."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# ------------------------------------------------------------------------------------------------------------------------
# Reader of contributed sets of tasks, with strict checks and bounded sizes.
#
# The reader only turns bytes into tasks. Other modules decide publication, admission and the statistics of a set.


MAX_SET_BYTES = 16 << 20
"""Largest set, after decompression."""
MAX_COMPRESSED_BYTES = 16 << 20
ZSTANDARD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class TaskBundle:
    """Contributed set of tasks.  plain: the set's bytes after decompression. digest: hash of these bytes; names the set."""

    digest: str
    tasks: tuple[TaskRecord, ...]
    plain: bytes


def read_task_set(data: bytes) -> TaskBundle:
    """Read a set from bytes: lines of JSON, plain or compressed by Zstandard.

    Raises ValueError with one sentence for any other bytes. Never decompresses more than `MAX_SET_BYTES`.
    """
    plain = _decompressed(data) if data.startswith(ZSTANDARD) else data
    if len(plain) > MAX_SET_BYTES:
        raise ValueError(f"a set has at most {MAX_SET_BYTES >> 20} MiB")
    return TaskBundle(digest_of(plain), read_tasks(io.BytesIO(plain)), plain)


def _decompressed(data: bytes) -> bytes:
    if len(data) > MAX_COMPRESSED_BYTES:
        raise ValueError(f"a compressed set has at most {MAX_COMPRESSED_BYTES >> 20} MiB")
    try:
        import zstandard
    except ImportError as error:
        raise ValueError(f"a compressed set needs the package zstandard; run {command_for(['zstandard'])}") from error
    damaged = "the set is not valid Zstandard data; it is damaged"
    try:
        size = zstandard.frame_content_size(data)
        if size < 0:
            raise ValueError("the compressed set does not say its size: compress it as a file (zstd FILE), not from a pipe")
        if size > MAX_SET_BYTES:
            raise ValueError(f"a set has at most {MAX_SET_BYTES >> 20} MiB")
        reader = zstandard.ZstdDecompressor(max_window_size=MAX_SET_BYTES).stream_reader(data)
        plain = bytes(reader.read(size + 1))
    except zstandard.ZstdError as error:
        raise ValueError(damaged) from error
    if len(plain) != size:
        raise ValueError(damaged)
    return plain


# ------------------------------------------------------------------------------------------------------------------------
# Environment extended by sets of tasks that may change. The sets' problems have numbers beyond the environment's own.


@dataclass(frozen=True)
class TaskFile:
    """Set of tasks in a file.

    first: number of the set's first problem. count: number of tasks within the run's bounds on solve rates. digest: as in
    `open_rated`.
    """

    first: int
    count: int
    path: str
    digest: str


class ExtendedEnvironment(OuterEnvironment):
    """Environment with the problems of `own`, numbered from 0, and the problems of the sets given to `use`."""

    def __init__(self, own: Environment, rates: SolveRates = ALL) -> None:
        """Extend `own`. rates: bounds on the solve rates of the sets' tasks; tasks outside the bounds get no number."""
        self._own, self._rates = own, rates
        self._sets: dict[TaskFile, RecordedTasks] = {}
        self.max_turns = own.max_turns

    @property
    def size(self) -> int:
        """Number of problems of the environment itself, without the sets."""
        return self._own.size

    def use(
        self, files: Sequence[TaskFile], most_prompt_bytes: int, flaw_in: Callable[[str], str] = lambda prompt: ""
    ) -> dict[int, str]:
        """Use only these sets. Return the first problem of each unusable set, with the reason in a sentence.

        most_prompt_bytes: length of the longest prompt from which the run can learn. flaw_in: returns the reason why no
        model can answer a prompt, as a phrase; empty if a model can.
        """
        held: dict[TaskFile, RecordedTasks] = {}
        unusable: dict[int, str] = {}
        for file in files:
            try:
                held[file] = self._sets.get(file) or _opened(file, self._rates, most_prompt_bytes, flaw_in)
            except (ValueError, SandboxUnavailable) as error:
                unusable[file.first] = str(error)[:300]
        self._sets = held
        return unusable

    def problem(self, index: int) -> Problem:
        """Return the problem as `Environment.problem` describes."""
        if index < self._own.size:
            return self._own.problem(index)
        environment, first = self._set_of(index)
        inner = environment.problem(index - first)
        return Problem(index, inner.prompt, inner.answer)

    def inner(self, problem: Problem) -> tuple[Environment, Problem]:
        """Return the environment as `OuterEnvironment.inner` describes."""
        return self._own if problem.index < self._own.size else self._set_of(problem.index)[0], problem

    def _set_of(self, index: int) -> tuple[Environment, int]:
        for file, environment in self._sets.items():
            if file.first <= index < file.first + file.count:
                return environment, file.first
        raise ValueError(f"there is no problem {index}: it is not in any set of tasks on this computer")


def _opened(file: TaskFile, rates: SolveRates, most_prompt_bytes: int, flaw_in: Callable[[str], str]) -> RecordedTasks:
    tasks = open_rated(file.path, file.digest, rates)
    if tasks.size != file.count:
        raise ValueError(f"the set has {tasks.size} tasks with solve rates of this run, but {file.count} were announced")
    prompts = [tasks.problem(at).prompt for at in range(tasks.size)]
    longest = max(len(prompt.encode()) for prompt in prompts)
    if longest > most_prompt_bytes:
        raise ValueError(f"a prompt has {longest} bytes, more than the {most_prompt_bytes} that this run can learn from")
    for at, prompt in enumerate(prompts):
        if flaw := flaw_in(prompt):
            raise ValueError(f"the prompt of its task {at} {flaw}")
    return tasks
