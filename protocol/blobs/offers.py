"""Offers: the chunks of a blob that we show to peers that fetch it, and the notices about new chunks that we send them.

Pure.  A peer that asks for a blob is told which chunks it may ask us for, and later which chunks we have received since: a
peer that is still fetching a blob offers each chunk as soon as it has it.  An origin shows different peers different chunks
(`OriginOffer`); all other peers show all chunks that they have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.blobs.blob import ChunkSet, Copies, any_of, set_of
from protocol.wire.identity import PeerId

NO_HURRY_S = 0.5
"""Seconds between messages to a guest about chunks that other peers have as well: many small messages cost more than they
gain."""
MAX_GUESTS = 64
"""Most peers that are told about new chunks of a blob; all other peers have to ask again."""

IsMember = Callable[[PeerId], bool]


class Offer:
    """Offer of a blob of `count` chunks to its guests, the peers that fetch it.  `now` is trio time.

    here: chunks that are here; all of them are offered.  Guests are told at once of chunks that they can get only from us.
    The same message lists all chunks that came since their last message.
    """

    def __init__(self, count: int, here: ChunkSet, is_member: IsMember) -> None:
        self._all, self._here, self._is_member = (1 << count) - 1, here, is_member
        self._has: dict[PeerId, ChunkSet] = {}
        """Chunks of each guest."""
        self._untold: dict[PeerId, ChunkSet] = {}
        """Chunks of which each guest has not been told yet."""
        self._told_at: dict[PeerId, float] = {}
        self._firsts: ChunkSet = 0
        """Chunks that no peer but the origin had before us, as far as we know."""

    def add(self, chunk: int, *, is_first: bool = False) -> None:
        """Add a chunk that is here now.  is_first: True if it came from an origin, which shows it to no other peer."""
        self._here |= 1 << chunk
        if is_first:
            self._firsts |= 1 << chunk
        for peer in self._untold:
            self._untold[peer] |= 1 << chunk

    def join(self, peer: PeerId, has: ChunkSet, now: float) -> ChunkSet:
        """Add a peer that fetches the blob and already has these chunks of it; return the chunks that it may ask us for."""
        if self._makes_room_for(peer):
            self._has[peer], self._untold[peer], self._told_at[peer] = has, 0, now
        return self._here

    def _makes_room_for(self, peer: PeerId) -> bool:
        """Return True if there is a place for a guest, maybe that of another one, which is then removed."""
        if peer not in self._has and len(self._has) >= MAX_GUESTS:
            removed = self._to_remove_for(peer)
            if removed is None:
                return False
            self.leave(removed)
        return True

    def _to_remove_for(self, peer: PeerId) -> PeerId | None:
        """Return a guest that has all chunks or, if `peer` is a member, a stranger; None if there is none."""
        done = next((guest for guest, has in self._has.items() if has == self._all), None)
        if done is None and self._is_member(peer):
            done = next((guest for guest in self._has if not self._is_member(guest)), None)
        return done

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """Note that a peer now has these chunks as well."""
        if peer in self._has:
            self._has[peer] |= chunks & self._all

    def fed(self, peer: PeerId, chunk: int, now: float) -> None:
        """Note that a peer has fetched a chunk from us."""
        self.got(peer, 1 << chunk)

    def leave(self, peer: PeerId) -> None:
        """Remove a peer that is gone."""
        for known in (self._has, self._untold, self._told_at):
            known.pop(peer, None)

    def guests(self) -> list[PeerId]:
        """Return the peers that fetch the blob, as far as we know."""
        return [*self._has]

    def news(self, now: float) -> dict[PeerId, ChunkSet]:
        """Return the chunks to tell each peer about now, without those that it has; all untold ones if `now` is infinite."""
        news = {}
        for peer, chunks in self._untold.items():
            told = chunks & ~self._has[peer]
            if told & self._firsts or (told and now - self._told_at[peer] >= NO_HURRY_S):
                news[peer] = told
        for peer in news:
            self._untold[peer], self._told_at[peer] = 0, now
        return news


# ------------------------------------------------------------------------------------------------------------------------
# Superseeding: the origin of a blob shows different peers different chunks, so that it sends each chunk once.
#
# The origin is the only peer that has the blob.  If it showed every peer all chunks, several peers would fetch the same
# chunks from it, and its line would carry more than one copy.  So each peer is shown a few chunks at a time that it lacks:
#
# * chunks that no guest has and that no guest is shown;
# * once every chunk has a copy elsewhere, chunks that the fewest have.
#
# Peers serve the chunks to each other; a peer that fetched the chunks it was shown is shown more.  A chunk that a peer does
# not fetch in three times the usual time is shown to others, to twice as many at a time whenever that happens.  Such a peer
# is shown one chunk at a time, which other peers may be shown as well, until it fetches one.


AHEAD, MOST_AHEAD = 2, 256
"""Fewest and most chunks that a peer is shown ahead of what it fetches: two keep our line busy if many peers share it."""
SOON_S = 1.0
"""A peer that fetches a chunk this soon is shown one more at a time.

A fast line needs this because the peer is told of new chunks only ten times a second, and a long way because many chunks are
under way.
"""
LEAST_PATIENCE_S, FIRST_PATIENCE_S, MOST_PATIENCE_S = 2.0, 8.0, 60.0
PATIENCE_TIMES = 3.0
"""A chunk that is not fetched is shown to others after this many times the usual time from showing to fetching."""
MEMORY = 0.1


@dataclass
class _Guest:
    """A peer that fetches the blob from its origin.

    shown: chunks that it lacks and may ask for, and since when.  window: chunks that it is shown at a time.  idled: True if
    it did not fetch a chunk in time, and has fetched nothing since.
    """

    shown: dict[int, float] = field(default_factory=dict)
    window: int = AHEAD
    idled: bool = False


class OriginOffer(Offer):
    """Offer of a blob that few or no other peers have: each guest is shown other chunks."""

    def __init__(self, count: int, random_: random.Random, is_member: IsMember) -> None:
        super().__init__(count, 0, is_member)
        self._random, self._usual_s = random_, FIRST_PATIENCE_S / PATIENCE_TIMES
        self._had = Copies(count)
        """Chunks by the number of guests that have them."""
        self._guests: dict[PeerId, _Guest] = {}
        self._at_once = [1] * count
        """Guests that each chunk may be shown to at a time."""

    @property
    def only_here(self) -> ChunkSet:
        """Chunks that no guest has, so that they would be lost with us."""
        return self._had.none

    def join(self, peer: PeerId, has: ChunkSet, now: float) -> ChunkSet:
        """Add a peer as `Offer.join` does."""
        if not self._makes_room_for(peer):
            return 0
        self._has.setdefault(peer, 0)
        self._guests.setdefault(peer, _Guest())
        self.got(peer, has)
        self._show([peer], now)
        return set_of([*self._guests[peer].shown])

    def _to_remove_for(self, peer: PeerId) -> PeerId | None:
        """Return the guest of `Offer._to_remove_for`, or else an idle guest; only a member may replace a member."""
        idlers = sorted((each for each, guest in self._guests.items() if guest.idled), key=self._is_member)
        idler = next((idler for idler in idlers if self._is_member(peer) or not self._is_member(idler)), None)
        return super()._to_remove_for(peer) or idler

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """Note chunks as `Offer.got` does."""
        if (guest := self._guests.get(peer)) is not None:
            self._had.add(chunks & self._all & ~self._has[peer])
            guest.shown = {chunk: at for chunk, at in guest.shown.items() if not chunks >> chunk & 1}
        super().got(peer, chunks)

    def fed(self, peer: PeerId, chunk: int, now: float) -> None:
        """Note a chunk as `Offer.fed` does."""
        if (guest := self._guests.get(peer)) is not None:
            if (at := guest.shown.get(chunk)) is not None:
                self._usual_s += MEMORY * (now - at - self._usual_s)
                guest.window = min(guest.window + 1, MOST_AHEAD) if now - at < SOON_S else max(guest.window - 1, AHEAD)
            guest.idled = guest.idled and bool(self._has[peer] >> chunk & 1)
        super().fed(peer, chunk, now)

    def leave(self, peer: PeerId) -> None:
        """Remove a peer as `Offer.leave` does."""
        if self._guests.pop(peer, None) is not None:
            self._had.add(self._has[peer], -1)
        super().leave(peer)

    def news(self, now: float) -> dict[PeerId, ChunkSet]:
        """Choose chunks to show each guest now, beyond those already shown; return them.  Call it often."""
        oldest = now - min(max(LEAST_PATIENCE_S, PATIENCE_TIMES * self._usual_s), MOST_PATIENCE_S)
        for guest in self._guests.values():
            if any(at < oldest for at in guest.shown.values()):
                for chunk in [chunk for chunk, at in guest.shown.items() if at < oldest]:
                    self._at_once[chunk] = min(2 * self._at_once[chunk], MAX_GUESTS)
                guest.shown = {chunk: at for chunk, at in guest.shown.items() if at >= oldest}
                guest.idled, guest.window = True, AHEAD
        return self._show([*self._guests], now)

    def _show(self, peers: list[PeerId], now: float) -> dict[PeerId, ChunkSet]:
        """Show these guests as many chunks as their windows have room for, one each in turn; return the chunks."""
        shown = Counter(chunk for guest in self._guests.values() if not guest.idled for chunk in guest.shown)
        taken = set_of([chunk for chunk, times in shown.items() if times >= self._at_once[chunk]])
        news: dict[PeerId, ChunkSet] = {}
        while peers:
            for peer in [*peers]:
                guest = self._guests[peer]
                lacks = self._all & ~self._has[peer] & ~set_of([*guest.shown])
                # no further copy is worth as much as the first one of another chunk
                wanted = (self._had.none or self._had.rarest(lacks & ~taken)) & lacks & ~taken
                if not wanted or len(guest.shown) >= (1 if guest.idled else guest.window):
                    peers.remove(peer)
                    continue
                chunk = any_of(wanted, self._random)
                guest.shown[chunk] = now
                shown[chunk] += not guest.idled
                taken |= (shown[chunk] >= self._at_once[chunk]) << chunk
                news[peer] = news.get(peer, 0) | 1 << chunk
        return news
