"""What becomes of the tasks of each admitted set, as one trainer counts it, and when a set falls out by that.

Pure: counts in, decisions out.  A contributor can be mistaken or hostile.  A set falls out when scoring its tasks is not
repeatable (one answer gets different scores here), when nearly all tasks are never solved, as with wrong answers, or
nearly all are always solved, so that nothing can be learned.  Each accepted batch is counted once, with rewards that this
trainer computed itself; how its counts become everybody's decision is `protocol.state.tasks_in_force`'s matter.

What validators say of answers is counted for people to look at and decides nothing: keys are free, and a crowd of them could
have any set fall out by scores that nobody can prove false.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from protocol.state.tasks_in_force import TasksInForce, place_of
from protocol.trainer_link import Tried
from protocol.wire import canonical
from protocol.wire.hashes import Hash
from protocol.wire.rollouts import UNSCORED
from protocol.wire.tasks import MAX_SET_TASKS, Place

LEAST_ATTEMPTS = 32
"""Attempts at a task before its solve rate says anything."""
LEAST_SCORED_TWICE = 32
"""Answers of a set that were scored twice here before that says anything."""
LEAST_SAME = 0.9
"""Least share of these that get the same score both times."""
LEAST_JUDGED = 8
"""Tasks with enough attempts before a set is judged by them (all of them, where it has fewer)."""
MOST_DEAD = 0.8
"""Largest share of judged tasks that nobody ever solved, or that everybody always solved."""
MAX_COUNT = (1 << 32) - 1

_ROW = struct.Struct(">7I")


@dataclass(frozen=True)
class TaskCounts:
    """What became of a task.  attempts: scored answers, of which `solved` had more than half of the reward.

    verdicts: answers that a second peer scored too, of which `agreeing` had the same score.  scored_twice: answers that we
    scored once more, of which `same` had the same score.
    """

    attempts: int = 0
    solved: int = 0
    verdicts: int = 0
    agreeing: int = 0
    scored_twice: int = 0
    same: int = 0

    def __post_init__(self) -> None:
        pairs = ((self.solved, self.attempts), (self.agreeing, self.verdicts), (self.same, self.scored_twice))
        if not all(0 <= part <= whole for part, whole in pairs):
            raise ValueError("of attempts, verdicts and second scores, none to all are solved, agreeing and the same")

    def __add__(self, other: TaskCounts) -> TaskCounts:
        return TaskCounts(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))


def fault_of(count: int, counts: Collection[TaskCounts]) -> str:
    """Why a set falls out, in a phrase; empty while it stays.  count: tasks of the set.  counts: of those with some."""
    twice, same = sum(task.scored_twice for task in counts), sum(task.same for task in counts)
    if twice >= LEAST_SCORED_TWICE and same < LEAST_SAME * twice:
        return f"{same} of {twice} answers that were scored twice got the same score"
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

    def note_tried(self, tried: Iterable[Tried], sets: Mapping[int, Hash]) -> None:
        """Rollouts were learned from.  sets: the roots of the sets in the slots, on our chain; others are not counted."""
        for each in tried:
            counts = TaskCounts(each.rollouts, each.solved, scored_twice=each.scored_twice, same=each.same)
            self._add(each.problem, counts, sets)

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
