"""The places of strangers in the membership: fair shares for the neighbours that bring them, none of them a member's.

Keys are free, connections are not.  A stranger that is connected to us has its place for itself; all others are charged to
the neighbour that brought their first heartbeat, and make room first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping

from protocol.network.interface import Members
from protocol.wire.identity import PeerId

MAX_MEMBERS = 2048
MAX_STRANGERS = 512
"""As many as there may be connections; those that are not connected share what these leave."""


def displaced(
    brought_by: Mapping[PeerId, PeerId], connected: Collection[PeerId], newcomer: PeerId, forwarder: PeerId
) -> PeerId | None:
    """The stranger that makes room for `newcomer`, which `forwarder` brought; None if the newcomer gets no place.

    brought_by: the strangers known and who brought each, the longest silent first.
    """
    shares: dict[PeerId, list[PeerId]] = {}
    for peer, neighbour in brought_by.items():
        if peer not in connected:
            shares.setdefault(neighbour, []).append(peer)
    if not shares:
        return None
    largest = max(shares.values(), key=len)
    if newcomer not in connected and len(largest) <= len(shares.get(forwarder, ())) + 1:
        return None
    return largest[0]


class Marks:
    """How far each peer's statements were taken note of, as incarnation and serial; nothing up to there is news.

    Of members and of strangers so many are remembered each; the oldest is forgotten first.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._of_members: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()
        self._of_strangers: OrderedDict[PeerId, tuple[int, int]] = OrderedDict()

    def is_old(self, peer: PeerId, mark: tuple[int, int]) -> bool:
        """Whether a statement with this mark is from before the peer's."""
        return any(peer in marks and mark <= marks[peer] for marks in (self._of_members, self._of_strangers))

    def note(self, peer: PeerId, mark: tuple[int, int]) -> None:
        """From now on statements up to this one are old; does nothing when they were already."""
        if self.is_old(peer, mark):
            return
        member = self._members.has_member(peer)
        marks, most = (self._of_members, MAX_MEMBERS) if member else (self._of_strangers, MAX_STRANGERS)
        marks[peer] = mark
        marks.move_to_end(peer)
        if len(marks) > most:
            marks.popitem(last=False)
