"""Which sets of tasks a trainer process is taken to have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio
import trio.testing

from protocol.chain.progress import TasksInForce, first_problem
from protocol.rollouts.trainer import AGAIN_S, LoadedTasks, TrainerLock
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import SharedTaskFile
from protocol.wire.hashes import Hash
from protocol.wire.rollouts import AdmittedSet, Amendment
from tests.protocol.peers import ANN

A, B = Hash(b"a" * 32), Hash(b"b" * 32)


def in_force(root: Hash, number: int = 1) -> TasksInForce:
    one = AdmittedSet(name="set", count=3, size=9, root=root, slot=5, publisher=ANN.peer_id)
    return TasksInForce(number, 50, (one,), highest=5)


class Stage:
    """A trainer process, and the sets that are in force.  pending: an amendment that no record has.  refused: by root."""

    pid: int | None = 7

    def __init__(self) -> None:
        self.tasks, self.pending, self.given = in_force(A), in_force(A), list[list[str]]()
        self.refused, self.looked = dict[str, str](), list[list[Hash]]()
        self.digests = {A: "a", B: "b"}
        files = SimpleNamespace(digests=self.digests, path=lambda root: Path(root.hex()), look_again=self.look_again)
        self.sets: Any = SimpleNamespace(files=files, unusable={}, at=lambda version: self.tasks, _versions=lambda: [3])
        self.sets.usable_files = self.usable_files
        self.sets.note_unusable = partial(TaskSets.note_unusable, cast(Any, self.sets))
        others: Any = self
        self.held = LoadedTasks(others, others.sets, others, TrainerLock())

    def emit(self, event: object) -> None:
        """Told to nobody."""

    def usable_files(self) -> Any:
        self.sets.pending = (Amendment(number=2, percent=50, sets=[*self.pending.sets]), b"")
        return TaskSets.usable_files(self.sets)

    async def look_again(self, roots: Sequence[Hash]) -> None:
        await trio.lowlevel.checkpoint()
        self.looked.append([*roots])

    async def use_tasks(self, files: Sequence[SharedTaskFile]) -> dict[int, str]:
        await trio.lowlevel.checkpoint()
        self.given.append([file.digest for file in files])
        return {file.first: self.refused[file.digest] for file in files if file.digest in self.refused}


def test_a_slot_that_is_another_sets_on_another_branch_has_not_the_tasks_of_this_one() -> None:
    """Else batches were made and judged with the problems of the wrong set, and honest peers set aside."""

    async def main() -> None:
        stage = Stage()
        await stage.held.follow()
        assert stage.held.has(stage.sets.at(3).live) and not stage.held.missing(3)
        stage.tasks = stage.pending = in_force(B)
        assert not stage.held.has(stage.sets.at(3).live) and "reads the tasks" in stage.held.missing(3)
        await stage.held.follow()
        assert stage.held.has(stage.sets.at(3).live) and stage.given == [["a"], ["b"]]

    trio.run(main)


def test_an_amendment_that_can_never_come_takes_no_slot_of_what_is_in_force() -> None:
    async def main() -> None:
        stage = Stage()
        stage.pending = in_force(B, 2)
        await stage.held.follow()
        assert stage.held.has(stage.sets.at(3).live) and stage.given == [["a"]]

    trio.run(main)


def test_what_could_not_be_used_is_looked_at_and_tried_again_after_a_while() -> None:
    async def main() -> None:
        stage = Stage()
        stage.refused = {"a": "there is no file"}
        for _ in range(3):
            await stage.held.follow()
        assert len(stage.given) == 1 and stage.sets.unusable == {(5, A): "there is no file"}
        assert "there is no file" in stage.held.missing(3)
        await trio.sleep(AGAIN_S)
        await stage.held.follow()
        assert stage.looked == [[A]] and len(stage.given) == 2
        stage.refused = {}
        await trio.sleep(AGAIN_S)
        await stage.held.follow()
        assert stage.held.has(stage.sets.at(3).live) and stage.sets.unusable == {}
        await trio.sleep(AGAIN_S)
        await stage.held.follow()
        assert len(stage.given) == 3, "nothing is left to be tried"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_numbers_of_problems_are_those_of_the_slot() -> None:
    stage = Stage()
    assert [file.first for file in stage.usable_files().values()] == [first_problem(5)]
