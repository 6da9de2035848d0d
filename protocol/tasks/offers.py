"""Sets of tasks that peers offer, as one peer has heard of them.  Pure.

Keys are free, so the offers of all strangers together have bounded room: the oldest of them makes room.  Members of the
chain come before strangers.  Peers repeat their offers, so nothing is lost by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.tasks import TaskSet

MOST = 256
MOST_OF_ONE = 8
"""Most sets that one peer offers at a time."""


@dataclass(frozen=True)
class SignedOffer:
    """Signed offer of a set.  raw: the statement as it travels.  is_member: True if a record names the publisher."""

    body: TaskSet
    publisher: PeerId
    raw: bytes
    is_member: bool = False

    @property
    def root(self) -> Hash:
        """Name of the set."""
        return Hash(self.body.root)


class Offers:
    """Offers by the names of their sets.

    The first offer that was heard counts, but a member's replaces a stranger's: anybody can offer another's set, in a false
    size.
    """

    def __init__(self) -> None:
        self._known: dict[Hash, SignedOffer] = {}

    def __iter__(self) -> Iterator[SignedOffer]:
        return iter([*self._known.values()])

    def find(self, root: Hash) -> SignedOffer | None:
        """Return the offer of this set, if there is one."""
        return self._known.get(root)

    def hear(self, offer: SignedOffer) -> bool:
        """Take in an offer; return True if it is news and there is room for it."""
        known = self._known.get(offer.root)
        if known is not None and (known.is_member or not offer.is_member):
            return False
        others = [other for other in self._known.values() if other.root != offer.root]
        if sum(other.publisher == offer.publisher for other in others) >= MOST_OF_ONE:
            return False
        if known is None and len(self._known) >= MOST:
            strangers = (known for known in self._known.values() if not known.is_member)
            victim = next(strangers, next(iter(self._known.values())) if offer.is_member else None)
            if victim is None:
                return False
            del self._known[victim.root]
        self._known[offer.root] = offer
        return True

    def drop(self, root: Hash) -> None:
        """Forget the offer of a set."""
        self._known.pop(root, None)
