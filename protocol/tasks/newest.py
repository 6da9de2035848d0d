"""The organiser's newest amendment, as one peer has heard of it.  Pure.

It is remembered until there is a newer one, also when a record has it: a branch of the chain that comes instead may lack
that record, and then the amendment waits for another one.
"""

from __future__ import annotations

from protocol.state.tasks_in_force import TasksInForce
from protocol.wire.canonical import Malformed
from protocol.wire.tasks import Amendment

Signed = tuple[Amendment, bytes]
"""An amendment, and the statement as it travels."""


class Newest:
    """Of one peer.  What it is given was signed by the organiser."""

    def __init__(self) -> None:
        self._known: Signed | None = None

    def hear(self, tasks: TasksInForce, body: Amendment, raw: bytes) -> bool:
        """Whether this amendment is news, and can come after what is in force.  Of two with one number the first counts."""
        if body.number <= self._number or not _can_follow(tasks, body):
            return False
        self._known = body, raw
        return True

    def recall(self, body: Amendment, raw: bytes) -> None:
        """What an earlier life knew; a record may have it."""
        if body.number > self._number:
            self._known = body, raw

    def pending(self, tasks: TasksInForce) -> Signed | None:
        """It, while no record of the chain has it or a newer one."""
        return self._known if self._number > tasks.number else None

    def next(self, tasks: TasksInForce) -> Signed | None:
        """It, if the next record may carry it: another amendment may have come first that leaves no room for it."""
        pending = self.pending(tasks)
        return pending if pending is not None and _can_follow(tasks, pending[0]) else None

    @property
    def _number(self) -> int:
        return self._known[0].number if self._known is not None else 0


def _can_follow(tasks: TasksInForce, body: Amendment) -> bool:
    try:
        tasks.flaw(body)
    except Malformed:
        return False
    return True
