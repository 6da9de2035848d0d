"""Who owes us something in an exchange, since when, and when we last heard of it.

A chunk may take long on a line that carries several at a time, so its bytes count as they come; but those of one chunk only,
until it is here and right: else whoever pushes rubbish would be waited for as long as it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from protocol.wire.identity import PeerId


class Debts:
    """`now` is trio time.  chunk_s: bytes of one chunk count for so long (s).

    pace_s: how long it took until more than half of the others had delivered something, 0 before.  On lines that carry
    large chunks to many at a time that is long, and so are honest silences.
    """

    def __init__(self, peers: Iterable[PeerId], now: float, chunk_s: float) -> None:
        self._heard, self._chunk_s, self._begun, self.pace_s = dict.fromkeys(peers, now), chunk_s, now, 0.0
        self._announced: dict[PeerId, float] = {}
        """Peers that have begun to push something since they last delivered, and when."""
        self._delivered: dict[PeerId, float] = {}
        self._owing: dict[PeerId, float] = {}

    def announced(self, peer: PeerId, now: float) -> None:
        """A peer began to push something.  That counts once; then only what arrives and is new."""
        if peer in self._heard and peer not in self._announced:
            self._announced[peer] = now
            self._heard[peer] = now

    def moving(self, peer: PeerId, now: float) -> None:
        """More of what it began to push is here."""
        if now - max(self._announced.get(peer, -inf), self._delivered.get(peer, -inf)) < self._chunk_s:
            self._heard[peer] = now

    def held(self, peer: PeerId, now: float) -> None:
        """It would push, and has to wait for us."""
        if peer in self._heard:
            self._heard[peer] = now

    def delivered(self, peer: PeerId, now: float) -> None:
        """A peer delivered something new."""
        if peer in self._heard:
            self._announced.pop(peer, None)
            self._heard[peer] = self._delivered[peer] = now
            if not self.pace_s and 2 * len(self._delivered) > len(self._heard) - 1:
                self.pace_s = now - self._begun

    def overdue(self, owing: Mapping[PeerId, float], now: float) -> list[PeerId]:
        """Those that have kept us waiting for too long, sorted.

        owing: everybody that owes us something now, and how long (s) it may be silent; patience begins with the debt.
        """
        self._owing = {peer: self._owing.get(peer, now) for peer in owing}
        return sorted(peer for peer, patience in owing.items() if now - max(self._heard[peer], self._owing[peer]) > patience)
