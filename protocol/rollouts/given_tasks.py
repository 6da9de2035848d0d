"""Giving the trainer process the sets of tasks that the versions have, and saying so where one is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import trio

from protocol.events import Notice
from protocol.network.session import Session
from protocol.rollouts.turn import Turn
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import RolloutLink, TaskFile
from protocol.wire.tasks import AdmittedSet, Place

AGAIN_S = 60.0
"""After so long, sets that could not be used are tried again."""


class GivenTasks:
    """Of one trainer process: which sets it has.  A version whose sets it lacks is neither generated, judged nor learned."""

    def __init__(self, session: Session, tasks: TaskSets, link: RolloutLink, turn: Turn) -> None:
        self._session, self._tasks, self._link, self._turn = session, tasks, link, turn
        self._given: Mapping[Place, TaskFile] = {}
        self._held: frozenset[Place] = frozenset()
        self._pid: int | None = None
        self._again_at, self._told = inf, ""
        tasks.opened = self._has

    def _has(self, sets: Sequence[AdmittedSet]) -> bool:
        return not sets or (self._pid == self._link.pid and self._held.issuperset(each.place for each in sets))

    def holds(self, version: int) -> bool:
        """Whether it has all sets of a version of our chain."""
        return self._has(self._tasks.at(version).live)

    def missing(self, version: int) -> str:
        """What a version waits for, in a sentence; empty where it waits for nothing."""
        for each in self._tasks.at(version).live:
            if each.root not in self._tasks.files.digests:
                return f"the tasks of the set {each.name} ({each.root.hex()[:12]}) are still being fetched"
            if each.place in self._tasks.unusable:
                return f"the tasks of the set {each.name} cannot be used here: {self._tasks.unusable[each.place]}"
            if not self._has([each]):
                return f"the trainer process reads the tasks of the set {each.name}"
        return ""

    async def follow(self) -> None:
        """Give it what it lacks, and now and then what it refused: its file, or this computer, may have been at fault.

        Raises `TrainerDied`.
        """
        if trio.current_time() >= self._again_at:
            await self._tasks.files.look_again([root for _, root in self._tasks.unusable])
        wanted = self._tasks.usable_files()
        is_given = wanted == self._given and (not wanted or self._pid == self._link.pid)
        if is_given and trio.current_time() < self._again_at:
            return
        async with self._turn.taken():
            refused = await self._link.use_tasks([*wanted.values()])
            self._pid = self._link.pid
        self._given = wanted
        self._held = frozenset(place for place, file in wanted.items() if file.first not in refused)
        self._tasks.unusable = {place: refused[file.first] for place, file in wanted.items() if file.first in refused}
        self._again_at = trio.current_time() + AGAIN_S if refused else inf
        self._tell()

    def _tell(self) -> None:
        text = "; ".join(self._tasks.unusable.values())
        if text and text != self._told:
            self._session.emit(Notice("warning", f"a set of tasks cannot be used here: {text}"))
        self._told = text
