"""What a person asks of a peer about sets of tasks: to offer or fetch one, and as the organiser to admit or remove one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.network.session import Session
from protocol.short_id import short_id
from protocol.state.disk import StoreFailed
from protocol.tasks.offers import MOST_OF_ONE, Offer
from protocol.tasks.organising import CannotAmend, admitting, removing
from protocol.tasks.task_sets import REPEAT_S, TaskSets
from protocol.wire.hashes import Hash
from protocol.wire.tasks import AdmittedSet, Amendment, TaskSet


class TaskDesk:
    """Of one node."""

    def __init__(self, session: Session, sets: TaskSets) -> None:
        self._session, self._sets = session, sets

    @property
    def folder(self) -> Path:
        """Where the files are; what is to be offered is put there first."""
        return self._sets.files.folder

    async def publish(self, source: Path, name: str, count: int) -> TaskSet:
        """Offer the tasks in a file of `folder`, which becomes ours.  Raises `CannotAmend`."""
        self._must_run()
        sets = self._sets
        if len(sets.own) >= MOST_OF_ONE:
            admitted = {each.root for each in sets.in_force.live}
            oldest = next((root for root in sets.own if root not in admitted), None)
            if oldest is None:
                raise CannotAmend(f"{MOST_OF_ONE} of your sets are admitted; ask the organiser to remove one")
            del sets.own[oldest]
            sets.offers.drop(oldest)
        try:
            root, size = await sets.files.adopt(source)
            body = TaskSet(name=name, count=count, size=size, root=root)
            raw = self._session.seal(body).raw
            await sets.keep_offer(raw)
        except (StoreFailed, OSError) as error:
            raise CannotAmend(f"the tasks cannot be kept: {error}") from error
        except ValueError as error:
            raise CannotAmend(f"the tasks cannot be offered: {error}") from error
        sets.own[root] = raw
        sets.hear_offer(self._session.me, body, raw)
        await sets.say(raw)
        return body

    async def obtain(self, name: str) -> tuple[Offer, Path]:
        """Fetch a set that somebody offers, by the beginning of its ID.  Raises `CannotAmend`."""
        nursery = self._must_run()
        found = [offer for offer in self._sets.offers if offer.root.hex().startswith(name)]
        if len(found) != 1:
            raise CannotAmend(f"{len(found)} sets that are offered begin with {name}; `peer tasks list` shows their IDs")
        offer = found[0]
        self._sets.asked = {offer.root}
        if not await self._sets.files.obtain(nursery, offer.root, offer.body.size, offer.publisher):
            if offer.publisher != self._session.me:
                self._sets.offers.drop(offer.root)  # somebody may have offered another's set, in a false size
            raise CannotAmend(
                f"nobody who is here has the set {name} as {short_id(offer.publisher)} offers it; "
                f"ask its publisher to start the peer, and try again after {REPEAT_S:.0f} s"
            )
        return offer, self._sets.files.path(offer.root)

    async def admit(self, name: str, percent: int | None, count: int) -> Amendment:
        """Admit a set, in which we have found so many tasks; as the organiser.  Raises `CannotAmend`.

        Of an offer, which may be of somebody who wants nobody to have the set, neither the number nor the size counts.
        """
        self._must_be_organiser()
        offer, _ = await self.obtain(name)
        body = offer.body.model_copy(update={"count": count, "size": self._sets.files.size(offer.root)})
        return await self._amend(admitting(self._sets.in_force, self._newest, replace(offer, body=body), percent))

    async def remove(self, name: str) -> Amendment:
        """Remove a set, or take its admission back; as the organiser.  Raises `CannotAmend`."""
        self._must_be_organiser()
        newest = [*self._sets.in_force.sets, *(self._newest.sets if self._newest is not None else ())]
        roots = {Hash(each.root) for each in newest if each.root.hex().startswith(name)}
        if len(roots) != 1:
            raise CannotAmend(f"{len(roots)} admitted sets begin with {name}; `peer tasks list` shows their IDs")
        return await self._amend(removing(self._sets.in_force, self._newest, roots.pop()))

    @property
    def _newest(self) -> Amendment | None:
        return self._sets.pending[0] if self._sets.pending is not None else None

    async def _amend(self, body: Amendment) -> Amendment:
        """Sign it; it is on disk before anybody hears of it, so that no number is given twice."""
        raw = self._session.seal(body).raw
        try:
            await self._sets.keep(body.number, raw)
        except StoreFailed as error:
            raise CannotAmend(f"the amendment cannot be kept: {error}") from error
        if not self._sets.take(body, raw):
            raise CannotAmend("another amendment was faster; try again")
        await self._sets.say(raw)
        return body

    def _must_run(self) -> Any:
        nursery = self._sets.nursery
        if nursery is None:
            raise CannotAmend("the peer is still starting; try again in a moment")
        return nursery

    def _must_be_organiser(self) -> None:
        self._must_run()
        if self._session.me != self._sets.organiser:
            raise CannotAmend("only the run's organiser admits tasks; ask for it, with the ID of the set")

    # -- what it looks like -------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What `peer tasks list --json` shows."""
        sets, tasks = self._sets, self._sets.in_force
        shown = {each.root: self._shown(each, each.publisher, "admitted", each) for each in tasks.sets}
        for each in self._newest.sets if self._newest is not None else ():
            shown.setdefault(each.root, self._shown(each, each.publisher, "admission pending", each))
        for offer in sets.offers:
            shown.setdefault(offer.body.root, self._shown(offer.body, offer.publisher, "offered"))
        return {
            "amendment": tasks.number,
            "pending": self._newest.number if self._newest is not None else None,
            "percent": tasks.percent,
            "sets": [*shown.values()],
        }

    def _shown(self, body: TaskSet, publisher: str, state: str, admitted: AdmittedSet | None = None) -> dict[str, Any]:
        slot = admitted.slot if admitted is not None else 0
        counting, place = self._sets.counting, (slot, Hash(body.root))
        counts = counting.of_set(*place).values()
        return {
            "id": body.root.hex(),
            "name": body.name,
            "publisher": publisher,
            "tasks": body.count,
            "size_bytes": body.size,
            "here": body.root in self._sets.files.digests,
            "state": "fell out" if slot in self._sets.in_force.fallen else state,
            "attempts": sum(each.attempts for each in counts),
            "solved": sum(each.solved for each in counts),
            "verdicts": sum(each.verdicts for each in counts),
            "agreeing": sum(each.agreeing for each in counts),
            "scored_twice": sum(each.scored_twice for each in counts),
            "same": sum(each.same for each in counts),
            "fault": counting.fault(place, body.count),
            "unusable": self._sets.unusable.get((slot, Hash(body.root)), ""),
        }
