"""The newcomers that were let in, and by what.  Bounded, and one token's newcomers cannot push out another's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.run.admission import AdmittedBy
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

MAX_GUESTS = 4096
"""Peers remembered as let in; those that must go greet again."""


@dataclass(frozen=True)
class Guest:
    """A peer that came in with this proof, and what it was admitted by; None where its being a member was enough."""

    proof: bytes
    admitted: AdmittedBy | None

    @property
    def token(self) -> Hash | None:
        """The name of the token that let it in, if one did."""
        return self.admitted.token if self.admitted is not None else None


class Guests:
    """Remembers who came in.  stays: tells of a peer whether it keeps its place, as members of the chain do.

    A token has as many places as uses.  When they are taken, its longest known newcomer makes room; when all are taken by
    peers that stay, there is none.  When all places of all tokens are taken, the token with the most gives one up.
    """

    def __init__(self, stays: Callable[[PeerId], bool]) -> None:
        self._stays = stays
        self._guests: dict[PeerId, Guest] = {}
        self._of_token: dict[Hash | None, dict[PeerId, None]] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def get(self, peer: PeerId) -> Guest | None:
        """How `peer` came in; None when it did not."""
        return self._guests.get(peer)

    def add(self, peer: PeerId, proof: bytes, admitted: AdmittedBy | None) -> bool:
        """Remember a peer; False when its token has no place any more."""
        token = admitted.token if admitted is not None else None
        known = self._guests.get(peer)
        if known is None or known.token != token:
            if not self._make_room_in(token, admitted.uses if admitted is not None and token is not None else None, peer):
                return False
        if known is not None:
            self._forget(peer)
        if len(self._guests) >= MAX_GUESTS:
            crowd = max(self._of_token.values(), key=len)
            self._forget(next((guest for guest in crowd if not self._stays(guest)), next(iter(crowd))))
        self._guests[peer] = Guest(proof, admitted)
        self._of_token.setdefault(token, {})[peer] = None
        return True

    def _make_room_in(self, token: Hash | None, uses: int | None, peer: PeerId) -> bool:
        """Whether the token has a place for `peer` now."""
        places = self._of_token.get(token, {})
        if uses is None or len(places) < uses or self._stays(peer):
            return True
        gone = next((guest for guest in places if not self._stays(guest)), None)
        if gone is not None:
            self._forget(gone)
        return gone is not None

    def _forget(self, peer: PeerId) -> None:
        token = self._guests.pop(peer).token
        places = self._of_token[token]
        del places[peer]
        if not places:
            del self._of_token[token]
