"""Who owes us something in an exchange, since when, and when we last heard of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.wire.identity import PeerId


class Debts:
    """`now` is trio time.  A peer that pushes rubbish is not heard by it: else it would be waited for as long as it does."""

    def __init__(self, peers: Iterable[PeerId], now: float) -> None:
        self._heard = dict.fromkeys(peers, now)
        self._announced: set[PeerId] = set()
        """Peers that have begun to push something since they last delivered."""
        self._owing: dict[PeerId, float] = {}

    def announced(self, peer: PeerId, now: float) -> None:
        """A peer began to push something.  That counts once; then only what arrives and is new."""
        if peer in self._heard and peer not in self._announced:
            self._announced.add(peer)
            self._heard[peer] = now

    def delivered(self, peer: PeerId, now: float) -> None:
        """A peer delivered something new."""
        if peer in self._heard:
            self._announced.discard(peer)
            self._heard[peer] = now

    def overdue(self, owing: Mapping[PeerId, float], now: float) -> list[PeerId]:
        """Those that have kept us waiting for too long, sorted.

        owing: everybody that owes us something now, and how long (s) it may be silent; patience begins with the debt.
        """
        self._owing = {peer: self._owing.get(peer, now) for peer in owing}
        return sorted(peer for peer, patience in owing.items() if now - max(self._heard[peer], self._owing[peer]) > patience)
