"""The address book: the peers that may be dialled, with their addresses, and who has a place in it.

Addresses come from the person and this computer (given), or from anybody (claimed); an address that has led to its peer is
reached.  Peers that were given, and members, have places of their own; strangers share others, which they lose when they are
not reached in time.  Whoever has been away for long makes room for others of its kind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from protocol.network.interface import Members
from protocol.network.libp2p.attempts import Attempt
from protocol.wire.identity import PeerId

MAX_KEPT = 1024
"""Peers that were given, and members."""
MAX_STRANGERS = 256
MAX_ADDRESSES_PER_PEER = 8
CLAIM_S = 600.0
"""A stranger that was not reached for so long loses its place."""
FIRST_PAUSE_S = 1.0


class Standing(IntEnum):
    """How an address is known."""

    CLAIMED = 0
    GIVEN = 1
    REACHED = 2


@dataclass
class Entry:
    """One peer.

    since: when it was entered, or last met.  given: by the person or this computer.  met: it was reached, or connected for
    long.  addresses: newest first.  tried: the last attempt at each.  other_run: it was connected and did not know our run.
    Times are trio times.
    """

    since: float
    given: bool = False
    met: bool = False
    addresses: dict[str, Standing] = field(default_factory=dict)
    pause_s: float = FIRST_PAUSE_S
    due_at: float = 0.0
    dialling: bool = False
    tried: dict[str, Attempt] = field(default_factory=dict)
    other_run: bool = False

    def meet(self, now: float, address: str = "") -> None:
        """The peer was there just now; at `address`, if we dialled."""
        self.met, self.since = True, now
        if address in self.addresses:
            self.addresses[address] = Standing.REACHED

    def add(self, address: str, standing: Standing) -> None:
        """Put a new address first; the least known one makes room."""
        others = sorted(self.addresses, key=lambda other: -self.addresses[other])[: MAX_ADDRESSES_PER_PEER - 1]
        self.addresses = {address: standing} | {other: self.addresses[other] for other in others}
        self.tried = {tried: self.tried[tried] for tried in self.tried if tried in self.addresses}


class Book:
    """The entries, the least recently heard of first.

    members: tells members from strangers.  in_use: whether a peer's entry has to stay as it is now.
    """

    def __init__(self, members: Members, in_use: Callable[[PeerId], bool]) -> None:
        self._members, self._in_use = members, in_use
        self._entries: OrderedDict[PeerId, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._entries

    def __iter__(self) -> Iterator[tuple[PeerId, Entry]]:
        return iter(self._entries.items())

    def get(self, peer: PeerId) -> Entry | None:
        """The entry of a peer; None when it has none."""
        return self._entries.get(peer)

    def remove(self, peer: PeerId) -> None:
        """Take a peer out, if it is in."""
        self._entries.pop(peer, None)

    def add(self, peer: PeerId, address: str, *, claimed: bool, now: float) -> Entry | None:
        """Enter an address; the entry of its peer if the address is new there, else None."""
        standing = Standing.CLAIMED if claimed else Standing.GIVEN
        entry = self._entries.get(peer)
        if entry is None:
            if not self._make_room(self._members.has_member(peer) or not claimed, now):
                return None
            entry = self._entries[peer] = Entry(now)
        self._entries.move_to_end(peer)
        entry.given = entry.given or not claimed
        if address in entry.addresses:
            entry.addresses[address] = max(standing, entry.addresses[address])
            return None
        entry.add(address, standing)
        return entry

    def is_favoured(self, peer: PeerId, entry: Entry) -> bool:
        """Whether more speaks for dialling a peer than what a stranger claims."""
        return entry.met or self._is_kept(peer, entry)

    def expire(self, now: float) -> None:
        """Take out the strangers that were not reached in time."""
        for peer, entry in list(self._entries.items()):
            if not self.is_favoured(peer, entry) and self._is_away(peer, entry, now):
                del self._entries[peer]

    def worth_keeping(self) -> list[str]:
        """Addresses that were reached, then those that were given or that members claim; none that only strangers claim."""
        found = [
            (standing is not Standing.REACHED, not kept, -standing, address)
            for peer, entry in reversed(self._entries.items())
            for kept in [self._is_kept(peer, entry)]
            for address, standing in entry.addresses.items()
            if standing is not Standing.CLAIMED or kept
        ]
        return [address for *_, address in sorted(found, key=lambda item: item[:3])]

    def _make_room(self, kept: bool, now: float) -> bool:
        """Whether a peer may be entered, among those that are kept or among the strangers."""
        rivals = [(peer, entry) for peer, entry in self._entries.items() if self._is_kept(peer, entry) is kept]
        if len(rivals) < (MAX_KEPT if kept else MAX_STRANGERS):
            return True
        idle = [(peer, entry) for peer, entry in rivals if not entry.dialling and not self._in_use(peer)]
        if not kept:
            idle = [(peer, entry) for peer, entry in idle if self._may_go(peer, entry, now)]
        if not idle:
            return False
        peer, _ = min(idle, key=lambda item: (self._members.has_member(item[0]), item[1].met))
        del self._entries[peer]
        return True

    def _may_go(self, peer: PeerId, entry: Entry, now: float) -> bool:
        return self._is_away(peer, entry, now) or (bool(entry.tried) and not entry.met)

    def _is_away(self, peer: PeerId, entry: Entry, now: float) -> bool:
        return now > entry.since + CLAIM_S and not entry.dialling and not self._in_use(peer)

    def _is_kept(self, peer: PeerId, entry: Entry) -> bool:
        return entry.given or self._members.has_member(peer)
