"""Sets of tasks in force that are out of reach: since when, and what a trainer does about them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import inf

from protocol.events import Notice
from protocol.network.session import Session
from protocol.state.replica import Replica
from protocol.state.tasks_in_force import TasksInForce
from protocol.wire.hashes import Hash
from protocol.wire.tasks import Place

LOST_S = 600.0
"""A set in force that could not be had or used for so long is one that this peer is against: else it held the run up."""
VOTE_S = 30.0
"""For so long a voter waits for batches to learn from before it contributes nothing to say that it is against a lost set."""


class LostSets:
    """As one peer sees it.  slots: of the sets that could not be had or used for `LOST_S`."""

    def __init__(self, session: Session, replica: Replica) -> None:
        self._session, self._replica = session, replica
        self._lacking: dict[Place, float] = {}
        """Sets in force that are not here, or cannot be used, and since when."""
        self.places: frozenset[Place] = frozenset()

    def note(self, tasks: TasksInForce, here: Container[Hash], unusable: Mapping[Place, str], now: float) -> None:
        """Give up sets in force that have been out of reach for too long, until they are here after all.

        here: the roots of those whose bytes are.  unusable: those that cannot be used, and why.
        """
        lacking = [each for each in tasks.live if each.root not in here or each.place in unusable]
        self._lacking = {each.place: self._lacking.get(each.place, now) for each in lacking}
        lost = frozenset(place for place, since in self._lacking.items() if now - since >= LOST_S)
        for each in lacking:
            if each.place in lost - self.places:
                why = unusable.get(each.place)
                state = f"could not be used for {LOST_S:.0f} s ({why})" if why else f"has not come for {LOST_S:.0f} s"
                text = f"the set of tasks {each.name} {state}; a trainer without it votes to leave the set out"
                self._session.emit(Notice("warning", text))
        self.places = lost

    def patience_s(self, tasks: TasksInForce) -> float:
        """For how long a round waits for batches before a trainer contributes nothing; infinite where no set is lost.

        Only a voter's word takes a set out.  Others give those that have the set `LOST_S` a round, so that a trainer which
        lacks a sandbox closes no rounds before them; where nobody has it, the record that comes then may carry an amendment.
        """
        if not any(each.place in self.places for each in tasks.live):
            return inf
        electors = self._replica.history.roster.electorate.electors
        return VOTE_S if not electors or self._session.me in electors else LOST_S
