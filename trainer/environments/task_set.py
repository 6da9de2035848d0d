"""Sets of tasks that anybody may contribute: reading one, counting what becomes of its tasks, and when it falls out.

Pure: bytes and counts in, decisions out.  Who publishes a set, and how counts travel, is decided elsewhere.

A contributor can be mistaken or hostile.  A set falls out when scoring its tasks is not repeatable (validators disagree
about the same answer), when nearly all tasks are never solved, as with wrong answers, or nearly all are always solved, so
that nothing can be learned and a reward is for nothing.  Single tasks are left out by the same rules, and those solved
too seldom or too often are rested: groups of completions with one score teach nothing.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainer.environments.jsonl import digest_of
from trainer.environments.records import Task, read_tasks

MAX_SET_BYTES = 64 << 20
"""Bytes of a set as it is read, after decompression."""
MAX_COMPRESSED_BYTES = 16 << 20
ZSTANDARD = b"\x28\xb5\x2f\xfd"

LEAST_ATTEMPTS = 32
"""Attempts at a task before its solve rate says anything."""
LEAST_VERDICTS = 8
"""Answers that were scored twice before the agreement on a task says anything; of a set, four times as many."""
LEAST_AGREEMENT = 0.9
"""Least share of twice scored answers with the same score."""
SOLVE_RATES = (0.1, 0.8)
"""Tasks solved less or more often are rested (the offline filter of INTELLECT-2)."""
LEAST_JUDGED = 8
"""Tasks with enough attempts before a set is judged by them (all of them, where it has fewer)."""
MOST_DEAD = 0.8
"""Largest share of judged tasks that nobody ever solved, or that everybody always solved."""


@dataclass(frozen=True)
class TaskSet:
    """Tasks that came together.  digest: names the set, by its bytes after decompression."""

    digest: str
    tasks: tuple[Task, ...]


def read_task_set(data: bytes) -> TaskSet:
    """The set in these bytes: lines of JSON, plain or compressed by Zstandard.

    Raises ValueError with one sentence for anything else, without ever holding more than `MAX_SET_BYTES` of it.
    """
    plain = _decompressed(data) if data.startswith(ZSTANDARD) else data
    if len(plain) > MAX_SET_BYTES:
        raise ValueError(f"a set has at most {MAX_SET_BYTES >> 20} MiB")
    return TaskSet(digest_of(plain), read_tasks(io.BytesIO(plain)))


@dataclass(frozen=True)
class TaskCounts:
    """What became of a task.  attempts: scored answers, of which `solved` had more than half of the reward.

    verdicts: answers that a second validator scored too, of which `agreeing` had the same score.
    """

    attempts: int = 0
    solved: int = 0
    verdicts: int = 0
    agreeing: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.solved <= self.attempts or not 0 <= self.agreeing <= self.verdicts:
            raise ValueError("of attempts and verdicts, none to all are solved and agreeing")

    def __add__(self, other: TaskCounts) -> TaskCounts:
        return TaskCounts(
            self.attempts + other.attempts,
            self.solved + other.solved,
            self.verdicts + other.verdicts,
            self.agreeing + other.agreeing,
        )

    @classmethod
    def of_score(cls, score: float) -> TaskCounts:
        """One scored answer."""
        return cls(attempts=1, solved=int(score > 0.5))

    @classmethod
    def of_second_score(cls, first: float, second: float) -> TaskCounts:
        """An answer that was counted already, scored a second time."""
        return cls(verdicts=1, agreeing=int(first == second))

    @property
    def solve_rate(self) -> float:
        """Share of attempts that solved the task; 0 before the first."""
        return self.solved / self.attempts if self.attempts else 0.0


class TaskStanding(StrEnum):
    """What is to be done with a task.  Only `UNKNOWN` and `USEFUL` ones are dealt out."""

    UNKNOWN = "unknown"
    USEFUL = "useful"
    TOO_HARD = "too hard"
    TOO_EASY = "too easy"
    DISPUTED = "disputed"


def standing(counts: TaskCounts) -> TaskStanding:
    """How a task stands."""
    if _is_disputed([counts], LEAST_VERDICTS):
        return TaskStanding.DISPUTED
    if counts.attempts < LEAST_ATTEMPTS:
        return TaskStanding.UNKNOWN
    if counts.solve_rate < SOLVE_RATES[0]:
        return TaskStanding.TOO_HARD
    return TaskStanding.TOO_EASY if counts.solve_rate > SOLVE_RATES[1] else TaskStanding.USEFUL


def fault_of(task_set: TaskSet, counts: Mapping[str, TaskCounts]) -> str | None:
    """Why a set falls out, in one sentence, or None while it stays.  counts: by problem_id; other ids are passed over."""
    of_tasks = [counts[task.problem_id] for task in task_set.tasks if task.problem_id in counts]
    if _is_disputed(of_tasks, 4 * LEAST_VERDICTS):
        return f"validators agree on less than {LEAST_AGREEMENT:.0%} of the answers that were scored twice"
    judged = [task for task in of_tasks if task.attempts >= LEAST_ATTEMPTS]
    if len(judged) < min(LEAST_JUDGED, len(task_set.tasks)):
        return None
    never = sum(task.solved == 0 for task in judged)
    always = sum(task.solved == task.attempts for task in judged)
    if never > MOST_DEAD * len(judged):
        return f"{never} of {len(judged)} tasks were never solved"
    if always > MOST_DEAD * len(judged):
        return f"{always} of {len(judged)} tasks were solved by every answer"
    return None


def _is_disputed(counts: Iterable[TaskCounts], least: int) -> bool:
    total = sum(counts, TaskCounts())
    return total.verdicts >= least and total.agreeing < LEAST_AGREEMENT * total.verdicts


def _decompressed(data: bytes) -> bytes:
    if len(data) > MAX_COMPRESSED_BYTES:
        raise ValueError(f"a compressed set has at most {MAX_COMPRESSED_BYTES >> 20} MiB")
    try:
        import zstandard
    except ImportError as error:
        raise ValueError("a compressed set needs the package zstandard: pip install zstandard") from error
    damaged = "the set is damaged: it is not what Zstandard writes"
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
