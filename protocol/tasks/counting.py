"""Outcomes of the tasks of each admitted set, as one trainer counts them, and the faults for which a set falls out.

The module is pure: counts in, decisions out.  A set's publisher can be mistaken or hostile, and so can a peer that answers
its tasks.  A set falls out for one of three faults.  Scoring is not repeatable: one answer gets different scores on this
computer.  Nearly all tasks are never solved, for example because the set's answers are wrong.  Nearly all tasks are always
solved, so that a model learns nothing.  Each accepted batch is counted once, with rewards that this trainer computed itself.
`protocol.chain.progress` combines the findings of single trainers into the decision of the chain.

Keys are free, so a set is judged by evidence that has a price:

* Only answers of makers with a clean history count.  One maker's answers to a task count for at most half of the attempts
  that judge the task.
* A set is dead only if its judged tasks, and all answers to its tasks together, show it.  Draws give all batches the same
  number of tasks of a set, give or take one.  So an attacker that wants a good set to fall out has to make most of the
  batches, whichever tasks it aims at.
* Scores count as not repeatable only if the answers of most makers show it.

Validators' scores are counted only for display, and decide nothing: keys are free, and a crowd of keys could make any set
fall out with scores that no peer can prove false.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol.chain.progress import TasksInForce, place_of
from protocol.trainer_link import Tried
from protocol.wire import canonical
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import MAX_SET_TASKS, UNSCORED, SetKey

LEAST_ATTEMPTS = 32
"""Fewest attempts at a task for its solve rate to count."""
MOST_OF_ONE = LEAST_ATTEMPTS // 2
"""Most attempts of one maker that count at a task."""
LEAST_CLEAN = 4
"""Fewest passed checks in a row for a maker's answers to count."""
LEAST_SCORED_TWICE = 8
"""Fewest answers of a maker to a set, scored twice on this computer, for the maker to count."""
LEAST_SAME = 0.9
"""Smallest share of answers scored twice that must get the same score both times."""
LEAST_MAKERS = 2
"""Fewest makers with enough answers scored twice for a judgement of the set."""
LEAST_JUDGED = 16
"""Fewest tasks with enough attempts for a judgement of the set; all tasks, if the set has fewer."""
MOST_DEAD = 0.8
"""Largest allowed share of never solved tasks, or of always solved ones, among judged tasks and among all attempts."""
MOST_MAKERS = 8
"""Most makers that count at a task; the attempts of later makers are only displayed."""
MAX_COUNT = (1 << 32) - 1

OTHERS = ""
"""Key in place of a maker, for attempts that do not count."""
_ROW = struct.Struct(">8I")

ByMaker = Mapping[str, "TaskCounts"]
"""Outcomes of a task, by maker."""


@dataclass(frozen=True)
class TaskCounts:
    """Outcomes of a task.  attempts: number of scored answers, of which `solved` got more than half of the reward.

    verdicts: number of answers that a second peer scored as well, of which `agreeing` got the same score.  scored_twice:
    number of answers that we scored twice, of which `same` got the same score.
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

    @property
    def of_one(self) -> TaskCounts:
        """Outcomes scaled down to the weight of one maker; a task never or always solved remains so."""
        if self.attempts <= MOST_OF_ONE:
            return self
        solved = self.solved * MOST_OF_ONE // self.attempts
        least, most = int(self.solved > 0), MOST_OF_ONE - int(self.solved < self.attempts)
        return TaskCounts(MOST_OF_ONE, min(most, max(least, solved)), scored_twice=self.scored_twice, same=self.same)


def fault_of(count: int, tasks: Collection[ByMaker]) -> str:
    """Return the fault for which a set falls out, as a phrase; empty if the set stays.

    count: number of tasks of the set.  tasks: outcomes of some of these tasks.
    """
    return _unrepeatable(tasks) or _dead(count, tasks)


def _unrepeatable(tasks: Collection[ByMaker]) -> str:
    """Return the fault of a set whose scores are not repeatable, for most makers; empty without this fault."""
    by_maker: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for task in tasks:
        for maker, counts in task.items():
            both = by_maker[maker]
            both[0] += counts.scored_twice
            both[1] += counts.same
    voices = [(twice, same) for maker, (twice, same) in by_maker.items() if maker != OTHERS and twice >= LEAST_SCORED_TWICE]
    against = [twice for twice, same in voices if same < LEAST_SAME * twice]
    if len(voices) < LEAST_MAKERS or 2 * len(against) <= len(voices):
        return ""
    twice, same = map(sum, zip(*voices, strict=True))
    return f"{same} of {twice} answers that were scored twice got the same score"


def _dead(count: int, tasks: Collection[ByMaker]) -> str:
    """Return the fault of a set with nearly all tasks never solved or always solved; empty without this fault."""
    found = [_tried(task) for task in tasks]  # pairs for speed: a set has up to 10 000 tasks, with several makers each
    judged = sum(attempts >= LEAST_ATTEMPTS for attempts, _ in found)
    if judged < min(LEAST_JUDGED, count):
        return ""
    all_attempts = sum(attempts for attempts, _ in found)
    never = [attempts for attempts, solved in found if solved == 0]
    always = [attempts for attempts, solved in found if solved == attempts]
    for dead, says in ((never, "were never solved"), (always, "were solved by every answer")):
        of_judged = sum(attempts >= LEAST_ATTEMPTS for attempts in dead)
        if of_judged > MOST_DEAD * judged and sum(dead) > MOST_DEAD * all_attempts:
            return f"{of_judged} of {judged} tasks {says}"
    return ""


def _tried(task: ByMaker) -> tuple[int, int]:
    """Return (number of attempts at a task that count, number of these that solved the task)."""
    attempts = solved = 0
    for maker, counts in task.items():
        if maker != OTHERS:
            counted = counts.of_one
            attempts, solved = attempts + counted.attempts, solved + counted.solved
    return attempts, solved


class OutcomeCounts:
    """Counts of one trainer.  is_new: True if the counts changed since the last `encode`.

    Counts belong to a set in a slot: on another branch of the chain the slot may hold another set.
    """

    def __init__(self) -> None:
        self._sets: dict[SetKey, dict[int, dict[str, TaskCounts]]] = {}
        self.is_new = False

    def note_tried(self, tried: Iterable[Tried], makers: Sequence[PeerId | None], sets: Mapping[int, Hash]) -> None:
        """Count rollouts from which we learned.

        makers: the makers of the batches, by place; None for a maker without a clean history.  sets: the roots of the sets
        in the slots of our chain; rollouts of other sets are not counted.
        """
        for each in tried:
            counts = TaskCounts(each.rollouts, each.solved, scored_twice=each.scored_twice, same=each.same)
            self._add(each.problem, makers[each.batch] or OTHERS, counts, sets)

    def note_scores(self, problems: Iterable[int], ours: bytes, theirs: bytes, sets: Mapping[int, Hash]) -> None:
        """Count another peer's scores next to ours, by rollout.

        problems: each rollout's problem.  sets: roots of the sets, as for `note_tried`.
        """
        for problem, our, their in zip(problems, ours, theirs, strict=False):
            if UNSCORED not in (our, their):
                self._add(problem, OTHERS, TaskCounts(verdicts=1, agreeing=int(our == their)), sets)

    def _add(self, problem: int, maker: str, counts: TaskCounts, sets: Mapping[int, Hash]) -> None:
        place = place_of(problem)
        if place is None or place[0] not in sets:
            return
        task = self._sets.setdefault((place[0], sets[place[0]]), {}).setdefault(place[1], {})
        if maker not in task and len(task.keys() - {OTHERS}) >= MOST_MAKERS:
            maker = OTHERS
        task[maker] = task.get(maker, TaskCounts()) + counts
        self.is_new = True

    def keep_only(self, sets: Mapping[int, Hash]) -> None:
        """Forget the counts of all other sets."""
        self._sets = {(slot, root): of_set for (slot, root), of_set in self._sets.items() if sets.get(slot) == root}

    def of_set(self, slot: int, root: Hash) -> Mapping[int, TaskCounts]:
        """Return the outcomes of a set by task, summed over all makers."""
        tasks = self._sets.get((slot, root), {})
        return {task: sum(by_maker.values(), start=TaskCounts()) for task, by_maker in tasks.items()}

    def fault(self, key: SetKey, count: int) -> str:
        """Return the fault of the set in a slot, as `fault_of` does."""
        return fault_of(count, self._sets.get(key, {}).values())

    def against(self, tasks: TasksInForce, lost: Collection[SetKey] = ()) -> int | None:
        """Return the sets that fall out by our counts: bit i for the amendment's i-th set; None if no set falls out.

        lost: sets that fall out whatever their counts.
        """
        mask = 0
        for at, each in enumerate(tasks.sets):
            is_bad = each.key in lost or self.fault(each.key, each.count)
            if each.slot not in tasks.fallen and is_bad:
                mask |= 1 << at
        return mask or None

    def encode(self) -> bytes:
        """Encode the counts for `decode` after a restart."""
        self.is_new = False
        return canonical.encode({f"{slot} {root.hex()}": _encoded(of_set) for (slot, root), of_set in self._sets.items()})

    @classmethod
    def decode(cls, data: bytes) -> OutcomeCounts:
        """Decode counts.  Raises ValueError for bytes that `encode` cannot have produced."""
        made, fields = cls(), canonical.decode(data, max_bytes=len(data))
        if not isinstance(fields, dict):
            raise ValueError("the counts are not a map")
        for key, of_set in fields.items():
            slot, _, root = key.partition(" ")
            if not root:
                raise ValueError("counts in another format")
            made._sets[int(slot), Hash(bytes.fromhex(root))] = _decoded(of_set)
        return made


def _encoded(of_set: Mapping[int, ByMaker]) -> list[object]:
    """Return the makers, and the encoded rows, one for each pair of task and maker."""
    makers = sorted({maker for by_maker in of_set.values() for maker in by_maker})
    numbers = {maker: number for number, maker in enumerate(makers)}
    rows = (
        _ROW.pack(task, numbers[maker], *(min(count, MAX_COUNT) for count in vars(counts).values()))
        for task, by_maker in of_set.items()
        for maker, counts in by_maker.items()
    )
    return [makers, b"".join(rows)]


def _decoded(fields: object) -> dict[int, dict[str, TaskCounts]]:
    match fields:
        case [[*makers], bytes(rows)] if len(rows) % _ROW.size == 0 and all(isinstance(maker, str) for maker in makers):
            of_set: dict[int, dict[str, TaskCounts]] = {}
            for task, maker, *counts in _ROW.iter_unpack(rows):
                if task >= MAX_SET_TASKS or maker >= len(makers):
                    raise ValueError("counts of a task or a maker that does not exist")
                of_set.setdefault(task, {})[makers[maker]] = TaskCounts(*counts)
            return of_set
    raise ValueError("counts in another format")
