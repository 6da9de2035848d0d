"""Gain of a maker of rollouts that computes draws beforehand, and the work that makes a set of tasks fall out.

    python -m benchmarks.grinding [--json]

The draws (`problems_of`, `lot_of`), the `Intake` and the `OutcomeCounts` are real; solve rates are drawn.  The value of a
choice is the number of problems of the maker's own set that it adds to a batch of eight; a tenth of all problems is of two
sets.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from protocol.chain.progress import TasksInForce, first_problem
from protocol.rollouts.batch import PooledBatch, lot_of, problems_of, trainer_of
from protocol.rollouts.events import TipChanged
from protocol.rollouts.policy import PoolContext
from protocol.rollouts.pool import Intake
from protocol.run.sections import RlSection
from protocol.tasks.counting import OutcomeCounts
from protocol.trainer_link import Tried
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import MAX_BATCHES, AdmittedSet, RolloutBatch

RUN, TIP = hash_bytes("run", b""), hash_bytes("tip", b"1")
PROMPTS, GROUP = 8, 16
TRAINERS = [PeerId(f"12D3KooWtrainer{number:0>37}") for number in range(8)]
PUBLISHER = Identity.from_seed(bytes(32)).peer_id
MOST_KNOWN = 512
"""Strangers that a peer has places for (`protocol.membership.liveness`)."""


def maker(number: int) -> PeerId:
    """Return one of very many keys."""
    return PeerId(f"12D3KooW{number:0>44}")


def two_sets(percent: int, tasks: int) -> TasksInForce:
    """Return two sets of this number of tasks; the first one is the cheat's, or the attacked one."""
    sets = tuple(
        AdmittedSet(slot=slot, root=bytes([slot]) * 32, size=100, count=tasks, name=f"s{slot}", publisher=PUBLISHER)
        for slot in (1, 2)
    )
    return TasksInForce(number=1, percent=percent, sets=sets)


def of_set(drawn: tuple[int, ...], tasks: TasksInForce) -> list[int]:
    """Return the problems of the first set among these."""
    first = first_problem(1)
    return [problem for problem in drawn if first <= problem < first + tasks.sets[0].count]


# -- what a choice is worth -------------------------------------------------------------------------------------------------


def own_problems(numbers: Iterator[tuple[PeerId, int]], tasks: TasksInForce) -> dict[str, float]:
    """Return the problems of the cheat's own set in the mean one and the best one of these batches."""
    found = [len(of_set(problems_of(RUN, TIP, peer, number, PROMPTS, 1 << 16, tasks), tasks)) for peer, number in numbers]
    return {"choices": len(found), "mean": sum(found) / len(found), "best": max(found)}


def admitted(choices: Iterator[tuple[PeerId, int]], known: frozenset[PeerId]) -> Iterator[tuple[PeerId, int]]:
    """Yield those of these batches that a trainer takes if each of them is the first one that its maker states."""
    rl = RlSection(environment="add")
    context = PoolContext(TRAINERS[0], Role.TRAINER, rl)
    intake, before = Intake(context, {}), TipChanged(1, {1: hash_bytes("tip", b"0")}, {}, ())
    after = TipChanged(2, {**before.tips, 2: TIP}, {2: tuple(TRAINERS)}, (), known)
    intake.move(before, after, 0.0)
    context.moved = after
    fields: dict[str, Any] = {"version": 2, "tip": TIP, "incarnation": 1, "rollouts": 1, "tokens": 1, "size": 1, "root": TIP}
    for peer, number in choices:
        if intake.admits(PooledBatch(peer, RolloutBatch.model_construct(number=number, **fields), b""), 0.0):
            yield peer, number


def choices() -> dict[str, Any]:
    """Return the gain of each kind of choice."""
    tasks, one = two_sets(10, 500), maker(0)
    numbers = [(one, number) for number in range(MAX_BATCHES)]
    mine = [each for each in numbers if trainer_of(lot_of(TIP, *each), TRAINERS) == TRAINERS[0]]
    known, new = [maker(number) for number in range(MOST_KNOWN)], [maker(10**6 + number) for number in range(1000)]
    firsts = [(peer, number) for peer in known for number in range(64)]
    return {
        "an honest maker": own_problems(iter(mine), tasks),
        "65536 numbers": own_problems(admitted(iter(numbers), frozenset({one})), tasks),
        "1000 keys made for the tip": {
            "choices": sum(1 for _ in admitted(((peer, n) for peer in new for n in range(64)), frozenset({one})))
        },
        "512 keys that were known": own_problems(admitted(iter(firsts), frozenset(known)), tasks),
        "1000 roots": {
            "trainers drawn": len({trainer_of(PooledBatch(*_with_root(one, root)).lot, TRAINERS) for root in range(1000)})
        },
    }


def _with_root(peer: PeerId, root: int) -> tuple[PeerId, RolloutBatch, bytes]:
    name = hash_bytes("root", root.to_bytes(4, "big"))
    return peer, RolloutBatch.model_construct(tip=TIP, number=0, root=name, version=2), b""


# -- falling out ------------------------------------------------------------------------------------------------------------


class Trial:
    """One trainer that counts batches of some makers until the first set falls out."""

    def __init__(self, tasks: TasksInForce, makers: int, seed: int = 1) -> None:
        self.tasks, self.random, self.makers = tasks, Random(seed), makers
        self.counting, self.hit = OutcomeCounts(), Counter[int]()
        self._roots = {each.slot: Hash(each.root) for each in tasks.sets}
        self._rates = [self.random.uniform(0.05, 0.9) for _ in range(tasks.sets[0].count)]
        self._numbers = Counter[PeerId]()
        self._next: dict[PeerId, tuple[int, ...]] = {}

    def drawn(self, peer: PeerId) -> tuple[int, ...]:
        """Return the problems of the maker's next batch."""
        if peer not in self._next:
            self._next[peer] = problems_of(RUN, TIP, peer, self._numbers[peer], PROMPTS, 1 << 16, self.tasks)
        return self._next[peer]

    def learn(self, peer: PeerId, solved: Callable[[int], int]) -> None:
        """Learn from a batch of this maker."""
        problems = of_set(self.drawn(peer), self.tasks)
        self._numbers[peer] += 1
        del self._next[peer]
        self.hit.update(problems)
        self.counting.note_tried([Tried(problem, GROUP, solved(problem)) for problem in problems], [peer], self._roots)

    def solve(self, problem: int) -> int:
        """Return the number of right answers of an honest group to a good task."""
        rate = self._rates[problem - first_problem(1)]
        return sum(self.random.random() < rate for _ in range(GROUP))

    @property
    def fell(self) -> bool:
        """True if the first set falls out."""
        return bool((self.counting.against(self.tasks) or 0) & 1)


def honest_batches(percent: int, count: int, broken: float) -> int | None:
    """Return the batches of honest makers until a set falls out of which this share is unsolvable; None if it stays."""
    trial = Trial(two_sets(percent, count), 16)
    dead = {first_problem(1) + task for task in range(count) if trial.random.random() < broken}
    for number in range(1, 10_001):
        trial.learn(maker(number % 16), lambda problem: 0 if problem in dead else trial.solve(problem))
        if number % 50 == 0 and trial.fell:
            return number
    return None


def attacked(percent: int, count: int, share: float, keys: int) -> int | None:
    """Return the batches until a good set falls out for a trainer; None if it stays.

    Cheats with this number of keys of a clean history make this share of the batches and solve nothing.  Of their keys' next
    batches they make the one that hits the most-hit tasks.
    """
    trial = Trial(two_sets(percent, count), 16)
    cheats = [maker(1000 + number) for number in range(keys)]
    for number in range(1, 2001):
        if trial.random.random() < share:
            trial.learn(max(cheats, key=lambda peer: _worth(trial, peer)), lambda problem: 0)
        else:
            trial.learn(maker(number % 16), trial.solve)
        if number % 50 == 0 and trial.fell:
            return number
    return None


def _worth(trial: Trial, peer: PeerId) -> tuple[int, float]:
    problems = of_set(trial.drawn(peer), trial.tasks)
    return sum(trial.hit[problem] for problem in problems), trial.random.random()


def falling_out() -> dict[str, Any]:
    """Return the number of batches of each kind of falling out."""
    return {
        "broken": {
            f"{percent} % of problems, {count} tasks, {round(100 * broken)} % never solved": honest_batches(
                percent, count, broken
            )
            for percent, count, broken in (
                (10, 100, 1.0),
                (10, 500, 1.0),
                (30, 5000, 1.0),
                (30, 500, 1.0),
                (30, 500, 0.9),
                (30, 500, 0.5),
            )
        },
        "good, attacked": {
            f"{round(100 * share)} % of batches, {keys} keys": attacked(30, 500, share, keys)
            for share, keys in ((0.1, 2), (0.25, 2), (0.5, 8), (0.5, 32), (0.7, 8), (0.9, 8))
        },
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    found = {"choices": choices(), "falling out": falling_out()}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for title, part in found.items():
        print(title)
        for name, value in part.items():
            print(f"  {name}: {value}")


if __name__ == "__main__":
    main()
