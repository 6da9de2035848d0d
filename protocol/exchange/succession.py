"""Who averages each chunk, and who does when its owner is lost."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.exchange.assignment import plan_hash, takeover_order
from protocol.wire.identity import PeerId
from protocol.wire.messages import Plan


class Succession:
    """The owner of a chunk is the first in its takeover order that is waited for; we are, when nobody else is left."""

    def __init__(self, me: PeerId, plan: Plan, members: Sequence[PeerId]) -> None:
        self._me, self._name, self._members = me, plan_hash(plan), members
        self._orders = [[members[owner]] for owner in plan.owners]
        """The takeover order of each chunk; the planned owner alone, as long as that is enough."""
        self.lost: dict[PeerId, None] = {}
        """Members that are waited for no more, in this exchange."""
        self.shares: dict[PeerId, float] = {}
        """The part of the time that members get who kept earlier exchanges waiting; others get all of it.  With 0 a member
        is not waited for at all: what it gives counts if it is here in time."""

    def share(self, peer: PeerId) -> float:
        """The part of the time that this member gets."""
        return self.shares.get(peer, 1.0)

    def is_awaited(self, peer: PeerId) -> bool:
        """Whether anybody waits for what this member gives."""
        return peer not in self.lost and self.share(peer) > 0

    def planned(self, chunk: int) -> PeerId:
        """The member that the plan gave this chunk."""
        return self._orders[chunk][0]

    def owner(self, chunk: int) -> PeerId:
        """The member that averages this chunk now."""
        order = self._orders[chunk]
        if order[0] not in self.lost:
            return order[0]
        if len(order) == 1:
            order = self._orders[chunk] = takeover_order(self._name, chunk, self._members, order[0])
        return next((peer for peer in order if self.is_awaited(peer)), self._me)

    def is_in_line(self, peer: PeerId, chunk: int) -> bool:
        """Whether this member owns the chunk, or follows an owner that was lost."""
        return peer in self._orders[chunk]

    def may_sign(self, peer: PeerId, chunk: int) -> bool:
        """Whether this member averages the chunk now, or did before we gave it up: the others would come first with less
        than the owner has."""
        owner = self.owner(chunk)
        order = self._orders[chunk]
        return peer == owner or peer in order[: order.index(owner)]
