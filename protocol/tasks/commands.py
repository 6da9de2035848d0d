"""Commands of the user about sets of tasks: offer or fetch a set, and as the organiser admit or remove a set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.chain.progress import TasksInForce
from protocol.disk import StoreFailed
from protocol.short_id import short_id
from protocol.tasks.task_sets import MOST_OF_ONE, REPEAT_S, SignedOffer, TaskSets
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.rollouts import MAX_ADMITTED_BYTES, MAX_SETS, AdmittedSet, Amendment, TaskSet

# ------------------------------------------------------------------------------------------------------------------------
# The organiser's next amendment, which admits or removes a set on top of the newest one.  This part is pure.


PERCENT = 50
"""Percentage of the problems that come from the sets, unless the organiser sets another percentage."""


class CannotAmend(Exception):
    """Refusal of a command; the text is one sentence with the remedy."""


def admitting(tasks: TasksInForce, pending: Amendment | None, offer: SignedOffer, percent: int | None) -> Amendment:
    """Return an amendment with one more set, in a slot that was never used.

    percent: None to keep the present percentage.  Raises `CannotAmend`.
    """
    number, sets, highest = _newest(tasks, pending)
    if any(each.root == offer.root for each in sets):
        raise CannotAmend(f"the set {offer.root.hex()[:12]} is admitted already")
    if len(sets) >= MAX_SETS:
        raise CannotAmend(f"{MAX_SETS} sets are admitted, which is the most allowed; remove one with `peer tasks remove ID`")
    body = offer.body
    if sum(each.size for each in sets) + body.size > MAX_ADMITTED_BYTES:
        most = MAX_ADMITTED_BYTES >> 20
        raise CannotAmend(f"the admitted sets would have more than {most} MiB; remove one with `peer tasks remove ID`")
    new = AdmittedSet(
        name=body.name, count=body.count, size=body.size, root=body.root, slot=highest + 1, publisher=offer.publisher
    )
    before = pending.percent if pending is not None else tasks.percent
    return Amendment(number=number + 1, percent=percent or before or PERCENT, sets=[*sets, new])


def removing(tasks: TasksInForce, pending: Amendment | None, root: Hash) -> Amendment:
    """Return an amendment without one set.  Raises `CannotAmend`."""
    number, sets, _ = _newest(tasks, pending)
    left = [each for each in sets if each.root != root]
    if len(left) == len(sets):
        raise CannotAmend(
            f"the set {root.hex()[:12]} is not admitted, or was removed; `peer tasks list` shows the admitted sets"
        )
    percent = pending.percent if pending is not None else tasks.percent
    return Amendment(number=number + 1, percent=percent or PERCENT, sets=left)


def _newest(tasks: TasksInForce, pending: Amendment | None) -> tuple[int, list[AdmittedSet], int]:
    """Return the number, the sets that have not fallen out, and the highest slot of the newest amendment."""
    if pending is None:
        return tasks.number, [*tasks.live], tasks.highest
    highest = max([tasks.highest, *(each.slot for each in pending.sets)])
    return pending.number, [each for each in pending.sets if each.slot not in tasks.fallen], highest


# ------------------------------------------------------------------------------------------------------------------------


class TaskSetCommands:
    """Commands about sets of tasks at one node."""

    def __init__(self, session: Session, sets: TaskSets) -> None:
        self._session, self._sets = session, sets

    @property
    def folder(self) -> Path:
        """Folder of the files; the caller of `publish` first puts the file into this folder."""
        return self._sets.files.folder

    async def publish(self, source: Path, name: str, count: int) -> TaskSet:
        """Offer the tasks in a file of `folder`, and take the file over.  Raises `CannotAmend`."""
        self._must_run()
        sets = self._sets
        if len(sets.own) >= MOST_OF_ONE:
            admitted = {each.root for each in sets.in_force.live}
            oldest = next((root for root in sets.own if root not in admitted), None)
            if oldest is None:
                raise CannotAmend(f"{MOST_OF_ONE} of your sets are admitted; ask the organiser to remove one")
            sets.withdraw(oldest)
        try:
            async with sets.tidying:
                root, size = await sets.files.adopt(source)
                body = TaskSet(name=name, count=count, size=size, root=root)
                raw = self._session.seal(body).raw
                await sets.keep_offer(root, raw)
        except (StoreFailed, OSError) as error:
            raise CannotAmend(
                f"the tasks cannot be stored, so they are not offered: {error}; then publish them again"
            ) from error
        except ValueError as error:
            raise CannotAmend(f"the tasks cannot be offered: {error}") from error
        sets.hear_offer(self._session.me, body, raw)
        await sets.say(raw)
        return body

    async def obtain(self, name: str) -> tuple[SignedOffer, Path]:
        """Fetch an offered set, named by the beginning of its ID.  Raises `CannotAmend`."""
        self._must_run()
        found = [offer for offer in self._sets.offers if offer.root.hex().startswith(name)]
        if len(found) != 1:
            raise CannotAmend(f"{len(found)} sets that are offered begin with {name}; `peer tasks list` shows their IDs")
        offer = found[0]
        async with self._sets.tidying:
            self._sets.ask_for(offer.root)
        if not await self._sets.files.obtain(self._sets.running, offer.root, offer.body.size, offer.publisher):
            if offer.publisher != self._session.me:
                self._sets.offers.drop(offer.root)  # the offer may name another peer's set with a false size
            raise CannotAmend(
                f"no peer here has the set {name} as {short_id(offer.publisher)} offers it; "
                f"ask its publisher to start the peer, and try again after {REPEAT_S:.0f} s"
            )
        return offer, self._sets.files.path(offer.root)

    async def admit(self, name: str, percent: int | None, count: int) -> Amendment:
        """Admit, as the organiser, a set in which we have found `count` tasks.  Raises `CannotAmend`.

        The number of tasks and the size in the offer do not count: a false offer could prevent peers from getting the set.
        """
        self._must_be_organiser()
        offer, _ = await self.obtain(name)
        body = offer.body.model_copy(update={"count": count, "size": self._sets.files.size(offer.root)})
        return await self._amend(admitting(self._sets.in_force, self._newest, replace(offer, body=body), percent))

    async def remove(self, name: str) -> Amendment:
        """Remove a set, or revoke a pending admission, as the organiser.  Raises `CannotAmend`."""
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
        """Sign and store an amendment; it is on disk before it is sent, so that no number is used twice."""
        raw = self._session.seal(body).raw
        try:
            await self._sets.keep(body.number, raw)
        except StoreFailed as error:
            raise CannotAmend(f"the amendment cannot be kept: {error}") from error
        if not self._sets.take(body, raw):
            raise CannotAmend("another amendment was made at the same time; try again")
        await self._sets.say(raw)
        return body

    def _must_run(self) -> None:
        if not self._sets.running.is_open:
            raise CannotAmend("the peer is still starting; try again in a moment")

    def _must_be_organiser(self) -> None:
        self._must_run()
        if self._session.me != self._sets.organiser:
            raise CannotAmend("only the run's organiser can admit tasks; send the organiser the ID of the set")

    # -- status -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the sets as `peer tasks list --json` shows them."""
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
        counting, key = self._sets.counting, (slot, Hash(body.root))
        counts = counting.of_set(*key).values()
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
            "fault": counting.fault(key, body.count),
            "unusable": self._sets.unusable.get((slot, Hash(body.root)), ""),
        }
