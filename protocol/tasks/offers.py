"""The sets of tasks that peers offer, as one peer has heard of them.  Pure.

Keys are free, so what strangers offer has bounded room for all of them together: the oldest of them makes room.  Members of
the chain come before strangers.  Who offers a set says so again and again, so nothing is lost by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.tasks import TaskSet

MOST = 256
MOST_OF_ONE = 8
"""Sets that one peer offers at a time."""


@dataclass(frozen=True)
class Offer:
    """A signed statement.  raw: as it travels.  is_member: whether a record names the publisher."""

    body: TaskSet
    publisher: PeerId
    raw: bytes
    is_member: bool = False

    @property
    def root(self) -> Hash:
        """The name of the set."""
        return Hash(self.body.root)


class Offers:
    """By the names of the sets; the one that was heard first counts, but for a member's, which comes before a stranger's:
    anybody can offer another's set, in a false size."""

    def __init__(self) -> None:
        self._known: dict[Hash, Offer] = {}

    def __iter__(self) -> Iterator[Offer]:
        return iter([*self._known.values()])

    def find(self, root: Hash) -> Offer | None:
        """The offer of this set."""
        return self._known.get(root)

    def hear(self, offer: Offer) -> bool:
        """Whether this is news, and there is room for it."""
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
        """It is not offered any more."""
        self._known.pop(root, None)
