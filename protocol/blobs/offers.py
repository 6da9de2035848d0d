"""Offers: the chunks of a blob that we show to peers that fetch it, and the news that we send them.

Pure.  A peer that asks for a blob is told which chunks it may ask us for, and later which chunks we have received since: a
peer that is still fetching a blob offers each chunk as soon as it has it.  An origin shows different peers different chunks
(`Superseeding`); all other peers show all chunks that they have.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.blobs.blob import ChunkSet, Copies, any_of, set_of
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Superseeding: the origin of a blob shows different peers different chunks, so that it sends each chunk once.
#
# Pure.  The origin is the only peer that has the blob.  If it showed every peer all chunks, several peers would fetch the
# same chunks from it, and its line would carry more than one copy.  So each peer is shown a few chunks at a time that it
# lacks:
#
# * chunks that no guest has and that no guest is shown;
# * only when none of these are left, since a first copy is worth more than any further one: chunks that another peer was
#   shown and did not fetch in the usual time; or, once every chunk has a copy elsewhere, chunks that the fewest have.
#
# Peers serve the chunks to each other; a peer that fetched the chunks it was shown is shown more.  Only `MOST_AT_ONCE` peers
# have a place, in which we feed them; all other peers get chunks from these, so each chunk spreads sooner.  A peer that got
# `TURN` chunks, or had its place for long, loses the place to a waiting peer, so no peer can keep the whole blob to itself.
# A peer
# that fetches no chunk that it lacks for a while loses its place and waits behind all others.  Once it has a place again, it
# is shown one chunk at a time, which other peers may be shown as well, until it fetches one.


AHEAD, AHEAD_OF_ALL = 3, 12
"""Chunks that a peer is shown before it has fetched them.  Three keep our line busy if many peers share it.  If few do, a
peer is shown one more for each that it fetched, up to its share of twelve: over a long way much is under way."""
AHEAD_S, MOST_AHEAD = 0.5, 256
"""A peer on a fast line is shown as many chunks as it fetches in this time, since it is told of more only ten times a
second.
Chunks that it was not shown do not count: otherwise, a peer could fetch one chunk repeatedly and so block many others."""
MOST_AT_ONCE = 8
TURN = 16
LEAST_PATIENCE_S, FIRST_PATIENCE_S, MOST_PATIENCE_S = 2.0, 8.0, 60.0
PATIENCE_TIMES = 3.0
"""A peer that fetches nothing loses its place after this many times the usual time from showing to fetching."""
TURN_TIMES = 4.0
"""A turn ends at the latest after this many times the patience above."""
MEMORY = 0.1


@dataclass
class _Guest:
    """A peer that fetches the blob from its origin.

    has: chunks that it says it has.  shown: chunks that it lacks and may ask for, and since when; open: the same as a set.
    fed_at: when it last got a chunk, or its place; None without a place.  placed_at: when it got its place.  meals: chunks
    it got in this place.  took_at: when it last got a chunk that it was shown; pace_s: mean time between two such chunks.
    waits: its position in the queue.  idled: True if it lost its place for fetching nothing, and has fetched nothing
    since.
    """

    has: ChunkSet = 0
    shown: dict[int, float] = field(default_factory=dict)
    open: ChunkSet = 0
    fed_at: float | None = None
    placed_at: float = 0.0
    meals: int = 0
    took_at: float = 0.0
    pace_s: float = AHEAD_S
    waits: int = 0
    idled: bool = False

    def ahead(self, share: int, now: float) -> int:
        """Return the number of chunks to show ahead of fetching.

        share: the guest's share of what our line carries, in chunks.
        """
        if self.idled:
            return 1
        pace_s = max(self.pace_s, now - self.took_at, AHEAD_S / MOST_AHEAD)
        return max(min(share, AHEAD + self.meals), round(AHEAD_S / pace_s))


class Superseeding:
    """Places and chunks for the guests of the origin of a blob of `count` chunks.  `now` is trio time."""

    def __init__(self, count: int, random_: random.Random) -> None:
        self._all, self._random = (1 << count) - 1, random_
        self._shown, self._had = Copies(count), Copies(count)
        self._guests: dict[PeerId, _Guest] = {}
        self._turns = 0
        self._usual_s = 0.0

    def join(self, peer: PeerId, has: ChunkSet) -> None:
        """Add a peer that fetches the blob and already has these chunks of it."""
        if peer not in self._guests:
            self._turns += 1
            self._guests[peer] = _Guest(waits=self._turns)
        self.got(peer, has)

    def leave(self, peer: PeerId) -> None:
        """Remove a peer that is gone, or has all chunks."""
        guest = self._guests.pop(peer, None)
        if guest is not None:
            self._had.add(guest.has, -1)
            self._take_back(guest)

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """Note that a peer now has these chunks as well."""
        guest = self._guests.get(peer)
        if guest is None:
            return
        self._had.add(chunks & ~guest.has)
        guest.has |= chunks
        for chunk in [chunk for chunk in guest.shown if chunks >> chunk & 1]:
            del guest.shown[chunk]
            guest.open &= ~(1 << chunk)
            self._shown.add(1 << chunk, -1)

    def fed(self, peer: PeerId, chunk: int, now: float) -> None:
        """Note that a peer fetched a chunk from us."""
        guest = self._guests.get(peer)
        if guest is None:
            return
        if chunk in guest.shown:
            guest.pace_s += MEMORY * (now - guest.took_at - guest.pace_s)
            guest.took_at = now
            self._usual_s += (MEMORY if self._usual_s else 1.0) * (now - guest.shown[chunk] - self._usual_s)
        if not guest.has >> chunk & 1:
            guest.idled = False
            if guest.fed_at is not None:
                guest.fed_at = now
                guest.meals += 1
        self.got(peer, 1 << chunk)

    @property
    def only_here(self) -> ChunkSet:
        """Chunks that no guest has."""
        return self._had.none

    @property
    def idlers(self) -> list[PeerId]:
        """Guests that lost their place because they fetched nothing."""
        return [peer for peer, guest in self._guests.items() if guest.idled and guest.fed_at is None]

    def shown_to(self, peer: PeerId) -> ChunkSet:
        """Return the chunks that this peer is shown."""
        guest = self._guests.get(peer)
        return guest.open if guest is not None else 0

    def show(self, now: float) -> dict[PeerId, ChunkSet]:
        """Choose chunks to show each peer now, beyond those already shown; call it after each change, and often."""
        self._give_places(now)
        news: dict[PeerId, ChunkSet] = {}
        fed = [(peer, guest) for peer, guest in self._guests.items() if guest.fed_at is not None]
        share = max(AHEAD, AHEAD_OF_ALL // max(1, len(fed)))
        while fed:  # in turns, so that the first peer does not get all chunks that nobody was shown
            for peer, guest in [*fed]:
                chunk = self._next_for(guest, now) if len(guest.shown) < guest.ahead(share, now) else None
                if chunk is None:
                    fed.remove((peer, guest))
                    continue
                guest.shown[chunk] = now
                guest.open |= 1 << chunk
                self._shown.add(1 << chunk)
                news[peer] = news.get(peer, 0) | 1 << chunk
        return news

    def _patience_s(self) -> float:
        if not self._usual_s:
            return FIRST_PATIENCE_S
        return min(max(LEAST_PATIENCE_S, PATIENCE_TIMES * self._usual_s), MOST_PATIENCE_S)

    def _give_places(self, now: float) -> None:
        """Reassign the places of guests that do not use them or had their turn to the guests that have waited longest."""
        patience_s = self._patience_s()
        waiting = [guest for guest in self._guests.values() if guest.fed_at is None and self._all & ~guest.has]
        for guest in self._guests.values():
            if guest.fed_at is None:
                continue
            idle = now - guest.fed_at > patience_s
            had_turn = guest.meals >= TURN or now - guest.placed_at > TURN_TIMES * patience_s
            if idle or not self._all & ~guest.has or (waiting and had_turn):
                self._turns += 1
                guest.fed_at, guest.waits, guest.idled = None, self._turns, idle
                if idle:
                    self._take_back(guest)
        free = MOST_AT_ONCE - sum(guest.fed_at is not None for guest in self._guests.values())
        for guest in sorted(waiting, key=lambda guest: (guest.idled, guest.waits))[:free]:
            guest.fed_at = guest.placed_at = guest.took_at = now
            guest.meals, guest.pace_s = 0, AHEAD_S

    def _take_back(self, guest: _Guest) -> None:
        self._shown.add(guest.open, -1)
        guest.shown.clear()
        guest.open = 0

    def _next_for(self, guest: _Guest, now: float) -> int | None:
        lacks = self._all & ~guest.has & ~guest.open
        fresh = self._had.none & self._shown.none
        if fresh:
            return any_of(fresh, self._random)  # the guest has none of them
        first_copies = self._had.none
        if first_copies:
            late = first_copies & lacks & ~self._in_time(now)
            return any_of(late, self._random) if late else None
        rarest = self._had.rarest(lacks & self._shown.none) or self._had.rarest(lacks & ~self._in_time(now))
        return any_of(rarest, self._random) if rarest else None

    def _in_time(self, now: float) -> ChunkSet:
        """Return the chunks that a guest that has not idled was shown recently, and so may be fetching."""
        since, fetching = now - self._patience_s(), [guest for guest in self._guests.values() if not guest.idled]
        return set_of([chunk for guest in fetching for chunk, at in guest.shown.items() if at > since])


# ------------------------------------------------------------------------------------------------------------------------


NO_HURRY_S = 0.5
"""Seconds between messages to a guest about chunks that other peers have too: many small messages cost more than they
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
        if self._take_in(peer, has):
            self._untold[peer], self._told_at[peer] = 0, now
        return self._here

    def _take_in(self, peer: PeerId, has: ChunkSet) -> bool:
        """Add a guest, in place of another one if there is no room; return False if none is to be removed for it."""
        if peer not in self._has and len(self._has) >= MAX_GUESTS:
            removed = self._to_remove_for(peer)
            if removed is None:
                return False
            self.leave(removed)
        self._has[peer] = has
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


class OriginOffer(Offer):
    """Offer of a blob that few or no other peers have: each guest is shown other chunks (`Superseeding`)."""

    def __init__(self, count: int, random_: random.Random, is_member: IsMember) -> None:
        super().__init__(count, 0, is_member)
        self._showing = Superseeding(count, random_)

    @property
    def only_here(self) -> ChunkSet:
        """Chunks that would be lost with us, as far as we know."""
        return self._showing.only_here

    def join(self, peer: PeerId, has: ChunkSet, now: float) -> ChunkSet:
        """Add a peer as `Offer.join` does."""
        if self._take_in(peer, has):
            self._showing.join(peer, has)
            self._note(now)
        self._untold.pop(peer, None)
        return self._showing.shown_to(peer)

    def _to_remove_for(self, peer: PeerId) -> PeerId | None:
        """Return the guest of `Offer._to_remove_for`, or else an idle guest; only a member may replace a member."""
        idlers = sorted(self._showing.idlers, key=self._is_member)
        idler = next((idler for idler in idlers if self._is_member(peer) or not self._is_member(idler)), None)
        return super()._to_remove_for(peer) or idler

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """Note chunks as `Offer.got` does."""
        super().got(peer, chunks)
        self._showing.got(peer, chunks & self._all)

    def fed(self, peer: PeerId, chunk: int, now: float) -> None:
        """Note a chunk as `Offer.fed` does."""
        self._showing.fed(peer, chunk, now)
        super().fed(peer, chunk, now)

    def leave(self, peer: PeerId) -> None:
        """Remove a peer as `Offer.leave` does."""
        super().leave(peer)
        self._showing.leave(peer)

    def news(self, now: float) -> dict[PeerId, ChunkSet]:
        """Return the chunks that each guest is shown and was not told about yet."""
        self._note(now)
        news, self._untold = self._untold, {}
        return news

    def _note(self, now: float) -> None:
        for peer, chunks in self._showing.show(now).items():
            self._untold[peer] = self._untold.get(peer, 0) | chunks
