"""What becomes of the tasks of each admitted set, as one trainer counts it, and when a set falls out by that.

Pure: counts in, decisions out.  A contributor can be mistaken or hostile.  A set falls out when scoring its tasks is not
repeatable (two peers give one answer different scores), when nearly all tasks are never solved, as with wrong answers, or
nearly all are always solved, so that nothing can be learned.  Each accepted batch is counted once, with rewards that this
trainer computed itself; how its counts become everybody's decision is `protocol.state.tasks_in_force`'s matter.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from protocol.state.tasks_in_force import TasksInForce, place_of
from protocol.wire import canonical
from protocol.wire.hashes import Hash
from protocol.wire.rollouts import UNSCORED
from protocol.wire.tasks import MAX_SET_TASKS, Place

LEAST_ATTEMPTS = 32
"""Attempts at a task before its solve rate says anything."""
LEAST_VERDICTS = 32
"""Answers that were scored twice before the agreement on a set says anything."""
LEAST_AGREEMENT = 0.9
"""Least share of twice scored answers with the same score."""
LEAST_JUDGED = 8
"""Tasks with enough attempts before a set is judged by them (all of them, where it has fewer)."""
MOST_DEAD = 0.8
"""Largest share of judged tasks that nobody ever solved, or that everybody always solved."""
MAX_COUNT = (1 << 32) - 1

_ROW = struct.Struct(">5I")


@dataclass(frozen=True)
class TaskCounts:
    """What became of a task.  attempts: scored answers, of which `solved` had more than half of the reward.

    verdicts: answers that a second peer scored too, of which `agreeing` had the same score.
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

    @property
    def solve_rate(self) -> float | None:
        """Share of attempts that solved the task; None before the first."""
        return self.solved / self.attempts if self.attempts else None

    @property
    def agreement(self) -> float | None:
        """Share of twice scored answers with the same score; None before the first."""
        return self.agreeing / self.verdicts if self.verdicts else None


def fault_of(count: int, counts: Collection[TaskCounts]) -> str:
    """Why a set falls out, in a phrase; empty while it stays.  count: tasks of the set.  counts: of those with some."""
    total = sum(counts, TaskCounts())
    if total.verdicts >= LEAST_VERDICTS and total.agreeing < LEAST_AGREEMENT * total.verdicts:
        return f"two peers agree on {total.agreeing} of {total.verdicts} answers that were scored twice"
    judged = [task for task in counts if task.attempts >= LEAST_ATTEMPTS]
    if len(judged) < min(LEAST_JUDGED, count):
        return ""
    never = sum(task.solved == 0 for task in judged)
    always = sum(task.solved == task.attempts for task in judged)
    if never > MOST_DEAD * len(judged):
        return f"{never} of {len(judged)} tasks were never solved"
    if always > MOST_DEAD * len(judged):
        return f"{always} of {len(judged)} tasks were solved by every answer"
    return ""


class Counting:
    """Of one trainer.  is_new: whether something was counted since `encode` was called last.

    Counts are of a set in a slot: on another branch of the chain the slot may be another set's.
    """

    def __init__(self) -> None:
        self._sets: dict[Place, dict[int, TaskCounts]] = {}
        self.is_new = False

    def note_solved(self, solved: Iterable[tuple[int, int, int]], sets: Mapping[int, Hash]) -> None:
        """Rollouts were learned from: of each problem its number, how many, and how many solved it.

        sets: the roots of the sets in the slots, on our chain; others are not counted.
        """
        for problem, attempts, of_these in solved:
            self._add(problem, TaskCounts(attempts=attempts, solved=of_these), sets)

    def note_scores(self, problems: Iterable[int], ours: bytes, theirs: bytes, sets: Mapping[int, Hash]) -> None:
        """Another peer scored what we did, rollout for rollout.  problems: of the rollouts.  sets: as above."""
        for problem, our, their in zip(problems, ours, theirs, strict=False):
            if UNSCORED not in (our, their):
                self._add(problem, TaskCounts(verdicts=1, agreeing=int(our == their)), sets)

    def _add(self, problem: int, counts: TaskCounts, sets: Mapping[int, Hash]) -> None:
        place = place_of(problem)
        if place is not None and place[0] in sets:
            of_set = self._sets.setdefault((place[0], sets[place[0]]), {})
            of_set[place[1]] = of_set.get(place[1], TaskCounts()) + counts
            self.is_new = True

    def keep_only(self, sets: Mapping[int, Hash]) -> None:
        """Forget all other sets."""
        self._sets = {place: of_set for place, of_set in self._sets.items() if sets.get(place[0]) == place[1]}

    def of_set(self, slot: int, root: Hash) -> Mapping[int, TaskCounts]:
        """By task."""
        return self._sets.get((slot, root), {})

    def against(self, tasks: TasksInForce, lost: Collection[Place] = ()) -> int | None:
        """The sets that fall out by what was counted here: bit i for the i-th of the amendment; None where none does.

        lost: sets that fall out uncounted.
        """
        mask = 0
        for at, each in enumerate(tasks.sets):
            is_bad = each.place in lost or fault_of(each.count, self.of_set(each.slot, Hash(each.root)).values())
            if each.slot not in tasks.fallen and is_bad:
                mask |= 1 << at
        return mask or None

    def encode(self) -> bytes:
        """For `decode`, in another life."""
        self.is_new = False
        return canonical.encode(
            {
                f"{slot} {root.hex()}": b"".join(
                    _ROW.pack(task, *(min(count, MAX_COUNT) for count in vars(counts).values()))
                    for task, counts in of_set.items()
                )
                for (slot, root), of_set in self._sets.items()
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Counting:
        """What was encoded; raises ValueError for other bytes."""
        made, fields = cls(), canonical.decode(data, max_bytes=len(data))
        if not isinstance(fields, dict):
            raise ValueError("no counts")
        for place, rows in fields.items():
            slot, _, root = place.partition(" ")
            if not root or not isinstance(rows, bytes) or len(rows) % _ROW.size:
                raise ValueError("counts of another form")
            made._sets[int(slot), Hash(bytes.fromhex(root))] = {
                task: TaskCounts(*counts) for task, *counts in _ROW.iter_unpack(rows) if task < MAX_SET_TASKS
            }
        return made
