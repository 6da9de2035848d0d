"""Giving the trainer process the sets of tasks that the versions have, and saying so where one is missing."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.events import Notice
from protocol.network.session import Session
from protocol.rollouts.turn import Turn
from protocol.state.tasks_in_force import place_of
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import RolloutLink, TaskFile


class GivenTasks:
    """Of one trainer process: which sets it has.  A version whose sets it lacks is neither generated, judged nor learned."""

    def __init__(self, session: Session, tasks: TaskSets, link: RolloutLink, turn: Turn) -> None:
        self._session, self._tasks, self._link, self._turn = session, tasks, link, turn
        self._given: list[TaskFile] = []
        self._slots: frozenset[int] = frozenset()
        self._pid: int | None = None
        self._told = ""
        tasks.opened = self._has

    def _has(self, slots: Sequence[int]) -> bool:
        return not slots or (self._pid == self._link.pid and self._slots.issuperset(slots))

    def holds(self, version: int) -> bool:
        """Whether it has all sets of a version of our chain."""
        return self._has([each.slot for each in self._tasks.at(version).live])

    def missing(self, version: int) -> str:
        """What a version waits for, in a sentence; empty where it waits for nothing."""
        for each in self._tasks.at(version).live:
            if each.root not in self._tasks.files.digests:
                return f"the tasks of the set {each.name} ({each.root.hex()[:12]}) are still being fetched"
            if each.slot in self._tasks.unusable:
                return f"the tasks of the set {each.name} cannot be used here: {self._tasks.unusable[each.slot]}"
            if not self._has([each.slot]):
                return f"the trainer process reads the tasks of the set {each.name}"
        return ""

    async def follow(self) -> None:
        """Give it what it lacks.  Raises `TrainerDied`."""
        wanted = self._tasks.usable_files()
        if wanted == self._given and (not wanted or self._pid == self._link.pid):
            return
        async with self._turn.taken():
            refused = await self._link.use_tasks(wanted)
            self._pid = self._link.pid
        self._given = wanted
        self._slots = frozenset(slot_of(each.first) for each in wanted if each.first not in refused)
        self._tasks.unusable = {slot_of(first): reason for first, reason in refused.items()}
        self._tell()

    def _tell(self) -> None:
        text = "; ".join(self._tasks.unusable.values())
        if text and text != self._told:
            self._session.emit(Notice("warning", f"a set of tasks cannot be used here: {text}"))
        self._told = text


def slot_of(first: int) -> int:
    """The slot of the set whose first problem has this number."""
    place = place_of(first)
    assert place is not None, "a problem of a set"
    return place[0]
