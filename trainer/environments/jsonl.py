"""Environment of tasks in a file, one per line."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

from trainer.environments.environment import Environment, Problem
from trainer.environments.packages import PackageMissing
from trainer.environments.records import CodeTests, ExactAnswer, MathsAnswer, NumericAnswer, TaskRecord, read_tasks
from trainer.environments.solve_rates import ALL, SolveRates
from trainer.environments.verification import Verifier

MAX_FILE_BYTES = 512 << 20


class RecordedTasks(Environment):
    """Single-turn tasks in order.  digest: equal for two peers that have the same tasks."""

    def __init__(self, tasks: Sequence[TaskRecord], digest: str) -> None:
        """Take tasks; raises ValueError or SandboxUnavailable if this computer cannot score tasks of one of their kinds."""
        kinds = {type(task.verification) for task in tasks}
        self._tasks = tuple(tasks)
        self._verifier = Verifier(needs_code=CodeTests in kinds, needs_maths=MathsAnswer in kinds)
        self.digest = digest
        self.version = f"{digest}, {self._verifier.version}"

    @property
    def size(self) -> int:
        return len(self._tasks)

    def problem(self, index: int) -> Problem:
        task = self._tasks[self._checked(index)]
        return Problem(index, task.prompt, task)

    def score(self, problem: Problem, turns: Sequence[str]) -> float:
        return self._verifier.score(problem.answer.verification, turns[0]) if len(turns) == 1 else 0.0

    def is_exact(self, problem: Problem) -> bool:
        return isinstance(problem.answer.verification, ExactAnswer | NumericAnswer)

    def solution(self, problem: Problem) -> tuple[str, ...]:
        if problem.answer.solution is None:
            raise ValueError(f"task {problem.answer.problem_id} names no solution, so it gives no example")
        return (problem.answer.solution,)


def open_file(path: str, digest: str | None = None) -> RecordedTasks:
    """Open all tasks of a file, whatever their solve rates; raises as `open_rated`."""
    return open_rated(path, digest, ALL)


def open_rated(path: str, digest: str | None, rates: SolveRates) -> RecordedTasks:
    """Open the tasks of a file that a run with these bounds learns from; the others get no number.

    digest: hexadecimal BLAKE2b-128 that the file's bytes must have; None for any.

    Raises ValueError with one sentence, with the line's number if a line is at fault; PackageMissing and
    SandboxUnavailable if this computer lacks something.
    """
    data = read_file(path, digest)
    try:
        return RecordedTasks(rates.left(read_tasks(io.BytesIO(data))), digest_of(data))
    except PackageMissing:
        raise  # a ValueError that is no fault of the file
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_file(path: str, digest: str | None = None) -> bytes:
    """Return the bytes of a file of tasks; raises ValueError with one sentence if it is missing or has another digest."""
    try:
        if not Path(path).is_file():
            raise ValueError(f"there is no file {path}; put the tasks there")
        size = Path(path).stat().st_size
        if size > MAX_FILE_BYTES:
            raise ValueError(f"{path} has {size} bytes, and {MAX_FILE_BYTES} are read at most; split it")
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    found = digest_of(data)
    if digest not in (None, found):
        raise ValueError(f"{path} has other tasks than this run's: its digest is {found}, not {digest}")
    return data


def digest_of(data: bytes) -> str:
    """Return the digest that names the content of a set of tasks."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
