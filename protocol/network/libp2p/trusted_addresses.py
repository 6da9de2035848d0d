"""Addresses that greeted peers have used: between equally crowded addresses they come first.

A peer vouches for a few addresses only, and those of members are never forgotten for those of strangers: else one key that
comes from thousands of addresses would be all that is remembered.
"""

from __future__ import annotations

from collections import OrderedDict

from protocol.network.interface import Members
from protocol.wire.identity import PeerId

MAX_ADDRESSES_PER_PEER = 4
MAX_PEERS = 1024
"""Members, and again so many strangers; the least recent is forgotten first."""

_Known = OrderedDict[PeerId, OrderedDict[str, None]]


class TrustedAddresses:
    """`rank` sorts addresses.  members: tells members from strangers."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._of_members: _Known = OrderedDict()
        self._of_strangers: _Known = OrderedDict()
        self._ranks: dict[str, int] | None = None

    def __contains__(self, address: str) -> bool:
        return self.rank(address) > 0

    def __len__(self) -> int:
        return len(self._ranked())

    def rank(self, address: str) -> int:
        """2 if a member has used the address, 1 if another greeted peer has, else 0."""
        return self._ranked().get(address, 0)

    def note(self, peer: PeerId, address: str) -> None:
        """A greeted peer uses this address."""
        member = self._members.has_member(peer)
        known, others = (self._of_members, self._of_strangers) if member else (self._of_strangers, self._of_members)
        if others.pop(peer, None) is not None or address not in known.get(peer, ()):
            self._ranks = None
        _put(known.setdefault(peer, OrderedDict()), address, MAX_ADDRESSES_PER_PEER)
        known.move_to_end(peer)
        if len(known) > MAX_PEERS:
            known.popitem(last=False)

    def _ranked(self) -> dict[str, int]:
        if self._ranks is None:
            self._ranks = {address: 1 for addresses in self._of_strangers.values() for address in addresses}
            self._ranks |= {address: 2 for addresses in self._of_members.values() for address in addresses}
        return self._ranks


def _put(addresses: OrderedDict[str, None], address: str, most: int) -> None:
    addresses[address] = None
    addresses.move_to_end(address)
    if len(addresses) > most:
        addresses.popitem(last=False)
