"""What the origin of a blob shows to whom, so that it sends each chunk once.

Pure.  The origin is the only one that has the blob.  Were all of it shown to everybody, several peers would fetch the same
chunks from it, and its line would carry more than one copy.  So each peer is shown a few chunks at a time, that it has not:
first those that nobody was shown, then those that the fewest have.  They serve them to each other; a peer that fetched what
it was shown is shown more.  Only `MOST_AT_ONCE` peers are fed at a time: the others live on what those pass on, and each
chunk is through the sooner.  A peer that fetches nothing for `PATIENCE_S` gives its place to another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from protocol.content.blob import ChunkSet
from protocol.content.copies import Copies, any_of
from protocol.wire.identity import PeerId

AHEAD = 3
"""Chunks that a peer is shown and has not fetched: so many keep its line busy."""
MOST_AT_ONCE = 8
PATIENCE_S = 10.0


@dataclass
class _Guest:
    """has: chunks that it said to have.  shown: what it may ask for.  fed_at: when it last got one; None without a place.

    waits: its place in the queue.
    """

    has: ChunkSet = 0
    shown: ChunkSet = 0
    fed_at: float | None = None
    waits: int = 0


class Superseeding:
    """Of a blob of `count` chunks.  `now` is trio time."""

    def __init__(self, count: int, random_: random.Random) -> None:
        self._all, self._random = (1 << count) - 1, random_
        self._shown, self._had = Copies(count), Copies(count)
        self._guests: dict[PeerId, _Guest] = {}
        self._turns = 0

    def join(self, peer: PeerId, has: ChunkSet) -> None:
        """A peer fetches the blob, and has this much of it."""
        if peer not in self._guests:
            self._turns += 1
            self._guests[peer] = _Guest(waits=self._turns)
        self.got(peer, has)

    def leave(self, peer: PeerId) -> None:
        """It is gone, or has all."""
        guest = self._guests.pop(peer, None)
        if guest is not None:
            self._had.add(guest.has, -1)
            self._shown.add(guest.shown & ~guest.has, -1)

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """It has these, too."""
        guest = self._guests.get(peer)
        if guest is None:
            return
        self._had.add(chunks & ~guest.has)
        guest.has |= chunks

    def fed(self, peer: PeerId, now: float) -> None:
        """It fetched a chunk from us."""
        guest = self._guests.get(peer)
        if guest is not None and guest.fed_at is not None:
            guest.fed_at = now

    def shown_to(self, peer: PeerId) -> ChunkSet:
        """What this peer may know that we have."""
        guest = self._guests.get(peer)
        return guest.shown if guest is not None else 0

    def show(self, now: float) -> dict[PeerId, ChunkSet]:
        """What to show to whom now, beyond what they were shown; call it when something has changed, and often."""
        self._give_places(now)
        news: dict[PeerId, ChunkSet] = {}
        for _ in range(AHEAD):  # in turns, so that the first peer does not get all that nobody was shown
            for peer, guest in self._guests.items():
                if guest.fed_at is not None and (guest.shown & ~guest.has).bit_count() < AHEAD:
                    chunk = self._next_for(guest)
                    if chunk is not None:
                        guest.shown |= 1 << chunk
                        self._shown.add(1 << chunk)
                        news[peer] = news.get(peer, 0) | 1 << chunk
        return news

    def _give_places(self, now: float) -> None:
        """Take the places of those that do not use them, and give free ones to those that have waited longest."""
        for guest in self._guests.values():
            idle = guest.fed_at is not None and now - guest.fed_at > PATIENCE_S
            if idle or not self._all & ~guest.has:
                self._turns += 1
                guest.fed_at, guest.waits = None, self._turns
                self._shown.add(guest.shown & ~guest.has, -1)
                guest.shown &= guest.has
        free = MOST_AT_ONCE - sum(guest.fed_at is not None for guest in self._guests.values())
        waiting = [guest for guest in self._guests.values() if guest.fed_at is None and self._all & ~guest.has]
        for guest in sorted(waiting, key=lambda guest: guest.waits)[:free]:
            guest.fed_at = now

    def _next_for(self, guest: _Guest) -> int | None:
        open_to_it = self._all & ~(guest.has | guest.shown)
        if not open_to_it:
            return None
        return any_of(open_to_it & self._shown.none or self._had.rarest(open_to_it), self._random)
