"""Who owes us something in an exchange, since when, and when we last heard of it.

A chunk may take long on a line that carries several at a time, so its bytes count as they come; but those of one chunk only,
until it is here and right: else whoever pushes rubbish would be waited for as long as it does.  Whoever has to wait for a
buffer here does not owe us what it could not send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf

from protocol.wire.identity import PeerId


class Debts:
    """`now` is trio time.  chunk_s: bytes of one chunk count for so long (s)."""

    def __init__(self, peers: Iterable[PeerId], now: float, chunk_s: float) -> None:
        self._heard, self._chunk_s, self._begun = dict.fromkeys(peers, now), chunk_s, now
        self._announced: dict[PeerId, float] = {}
        """Peers that have begun to push something since they last delivered, and when."""
        self._first: dict[PeerId, float] = {}
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
        """A push of this peer waits for a buffer here, for which it is not to blame."""
        if peer in self._heard:
            self._heard[peer] = now

    def delivered(self, peer: PeerId, now: float) -> None:
        """A peer delivered something new."""
        if peer in self._heard:
            self._announced.pop(peer, None)
            self._heard[peer] = self._delivered[peer] = now
            self._first.setdefault(peer, now)

    def pace_s(self, peers: Collection[PeerId], most_s: float, now: float) -> float:
        """How long it took until half of these delivered something; until they have, the time so far, `most_s` at most.

        On lines that carry large chunks to many at a time that is long, and so are honest silences.
        """
        first = sorted(self._first[peer] for peer in peers if peer in self._first)
        half = (len(peers) + 1) // 2
        return first[half - 1] - self._begun if 0 < half <= len(first) else min(now - self._begun, most_s)

    def overdue(self, owing: Mapping[PeerId, float], now: float) -> list[PeerId]:
        """Those that have kept us waiting for too long, sorted.

        owing: everybody that owes us something now, and how long (s) it may be silent; patience begins with the debt.
        """
        self._owing = {peer: self._owing.get(peer, now) for peer in owing}
        return sorted(peer for peer, patience in owing.items() if now - max(self._heard[peer], self._owing[peer]) > patience)
