"""Task sets from the crowd that are in force at a version: a function of the chain, and so the same for everybody.

A record may carry an amendment that the organiser signed; its sets are in force from the version that the record makes.
Members of a record may vote sets out, judging by their counts.  A set that more than half of the voters are against in one
record is out from then on, until the organiser gives it another slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from protocol.chain.amendment import tasks_of
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from protocol.wire.messages import Record
from protocol.wire.tasks import MAX_SET_TASKS, AdmittedSet, Amendment

OWN_PROBLEMS = 1 << 40
"""First number of a problem from the crowd; lower numbers are of the manifest's environment."""


def first_problem(slot: int) -> int:
    """Return the number of the first problem of the set in a slot; its other problems follow."""
    return OWN_PROBLEMS + slot * MAX_SET_TASKS


def place_of(problem: int) -> tuple[int, int] | None:
    """Return the slot and the number of the task; None for a problem of the manifest's environment."""
    return divmod(problem - OWN_PROBLEMS, MAX_SET_TASKS) if problem >= OWN_PROBLEMS else None


@dataclass(frozen=True)
class TasksInForce:
    """State of the task sets at a version.

    number: of the newest amendment, 0 before there was one.  percent: of the problems that come from the sets.  sets: of
    that amendment.  fallen: slots of the sets that were voted out.  highest: highest slot ever given.  since: the first
    version with that amendment.  fell: the first version without the set that was voted out last.
    """

    number: int = 0
    percent: int = 0
    sets: tuple[AdmittedSet, ...] = ()
    fallen: frozenset[int] = frozenset()
    highest: int = 0
    since: int = 0
    fell: int = 0

    @cached_property
    def live(self) -> tuple[AdmittedSet, ...]:
        """Sets that problems are drawn from, by slot."""
        return tuple(each for each in self.sets if each.slot not in self.fallen)

    def flaw(self, amendment: Amendment, *, has_rollouts: bool = True) -> None:
        """Raise `Malformed` if this amendment cannot come next."""
        if not has_rollouts:
            raise Malformed("an amendment of tasks in a run without rollouts")
        if amendment.number <= self.number:
            raise Malformed(f"an amendment with the number {amendment.number}, after one with {self.number}")
        if any(each.slot <= self.highest and each not in self.sets for each in amendment.sets):
            raise Malformed("an amendment that gives a slot to another set")

    def after(self, record: Record, electors: Sequence[PeerId]) -> TasksInForce:
        """Return the state after one more, verified record.  electors: its voters; if there are none, its members vote."""
        new = tasks_of(record)
        if new is None and not self.live:
            return self
        voters: set[str] = {*electors} or {member.peer for member in record.members}
        against = [member.against or 0 for member in record.members if member.peer in voters]
        fallen = self.fallen | {
            each.slot for at, each in enumerate(self.sets) if 2 * sum(mask >> at & 1 for mask in against) > len(voters)
        }
        version = record.round + 1
        fell = self.fell if fallen == self.fallen else version
        if new is None:
            return self if fallen == self.fallen else replace(self, fallen=fallen, fell=fell)
        slots = [each.slot for each in new.sets]
        highest, left = max([self.highest, *slots]), fallen.intersection(slots)
        return TasksInForce(new.number, new.percent, tuple(new.sets), left, highest, since=version, fell=fell)
