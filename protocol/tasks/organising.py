"""The organiser's next amendment: what is admitted and what is removed, on top of the newest one.  Pure."""

from __future__ import annotations

from protocol.state.tasks_in_force import TasksInForce
from protocol.tasks.offers import Offer
from protocol.wire.hashes import Hash
from protocol.wire.tasks import MAX_ADMITTED_BYTES, MAX_SETS, AdmittedSet, Amendment

PERCENT = 50
"""Of the problems that are of the sets, unless the organiser says another one."""


class CannotAmend(Exception):
    """The text is one sentence with the remedy."""


def admitting(tasks: TasksInForce, pending: Amendment | None, offer: Offer, percent: int | None) -> Amendment:
    """With one set more; its slot was never given.  percent: None to leave it as it is.  Raises `CannotAmend`."""
    number, sets, highest = _newest(tasks, pending)
    if any(each.root == offer.root for each in sets):
        raise CannotAmend(f"the set {offer.root.hex()[:12]} is admitted already")
    if len(sets) >= MAX_SETS:
        raise CannotAmend(f"{MAX_SETS} sets are admitted, as many as may be; remove one with `peer tasks remove`")
    body = offer.body
    if sum(each.size for each in sets) + body.size > MAX_ADMITTED_BYTES:
        most = MAX_ADMITTED_BYTES >> 20
        raise CannotAmend(f"the admitted sets would have more than {most} MiB; remove one with `peer tasks remove`")
    new = AdmittedSet(
        name=body.name, count=body.count, size=body.size, root=body.root, slot=highest + 1, publisher=offer.publisher
    )
    before = pending.percent if pending is not None else tasks.percent
    return Amendment(number=number + 1, percent=percent or before or PERCENT, sets=[*sets, new])


def removing(tasks: TasksInForce, pending: Amendment | None, root: Hash) -> Amendment:
    """Without one set.  Raises `CannotAmend`."""
    number, sets, _ = _newest(tasks, pending)
    left = [each for each in sets if each.root != root]
    if len(left) == len(sets):
        raise CannotAmend(f"the set {root.hex()[:12]} is not admitted, or fell out; `peer tasks list` shows those that are")
    percent = pending.percent if pending is not None else tasks.percent
    return Amendment(number=number + 1, percent=percent or PERCENT, sets=left)


def _newest(tasks: TasksInForce, pending: Amendment | None) -> tuple[int, list[AdmittedSet], int]:
    """Number, sets that have not fallen out, and highest slot, of the newest amendment that there is."""
    if pending is None:
        return tasks.number, [*tasks.live], tasks.highest
    highest = max([tasks.highest, *(each.slot for each in pending.sets)])
    return pending.number, [each for each in pending.sets if each.slot not in tasks.fallen], highest
