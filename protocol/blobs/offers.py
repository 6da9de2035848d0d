"""What we offer of a blob to peers that fetch it, and what they are told of it.

Pure.  A peer that asks for a blob is told what it may ask us for, and from then on what comes to it: a peer that fetches a
blob itself offers each chunk as soon as it has it.  An origin shows different peers different chunks
(`protocol.blobs.offers`); everybody else shows all that is here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from protocol.blobs.blob import ChunkSet, set_of
from protocol.blobs.messages import Copies, any_of
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# What the origin of a blob shows to whom, so that it sends each chunk once.
#
# Pure.  The origin is the only one that has the blob.  Were all of it shown to everybody, several peers would fetch the same
# chunks from it, and its line would carry more than one copy.  So each peer is shown some chunks at a time, that it has not:
#
# * chunks that nobody has and nobody is shown;
# * when there are none left, and only then, for a first copy is worth more than any further one: those that were shown and
#   not fetched in the time that it usually takes, to another peer; else, when everything is through, those that the fewest
#   have.
#
# Peers serve them to each other; a peer that fetched what it was shown is shown more.  Only `MOST_AT_ONCE` peers have a
# place where they are fed: the others live on what those pass on, and each chunk is through the sooner.  Whoever got `TURN`
# chunks, or had its place for long, gives it to one that waits: nobody can keep all of the blob to itself.  Whoever fetches
# nothing that it lacks for a while loses its place, waits behind all others, and keeps from nobody the chunk that it is
# shown now and then, until it fetches one.


AHEAD, AHEAD_OF_ALL = 3, 12
"""How many chunks a peer is shown before it has fetched them.  Three keep our line busy where many peers share it.  Where
few do, a peer is shown one more for each that it fetched, up to its share of twelve: over a long way much is under way."""
AHEAD_S, MOST_AHEAD = 0.5, 256
"""A peer on a fast line is shown as much as it fetches in this time, for it hears of more only ten times a second.  What it
fetches that it was not shown does not count: whoever fetches one chunk again and again must not keep many from others."""
MOST_AT_ONCE = 8
TURN = 16
LEAST_PATIENCE_S, FIRST_PATIENCE_S, MOST_PATIENCE_S = 2.0, 8.0, 60.0
PATIENCE_TIMES = 3.0
"""A peer that fetches nothing loses its place after so many times as long as it usually takes from showing to fetching."""
TURN_TIMES = 4.0
"""A turn is over after so many times as long as that, at the latest."""
MEMORY = 0.1


@dataclass
class _Guest:
    """has: chunks that it said to have.  shown: those that it has not and may ask for, since when; open: the same as a set.

    fed_at: when it last got one, or its place; None without a place.  placed_at: when it got its place.  meals: chunks it
    got in this place.  took_at: when it last got one that it was shown; pace_s: from one of these to the next, on average.
    waits: its place in the queue.  idled: it lost its place since it fetched nothing, and has fetched nothing since.
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

    def take_place(self, now: float) -> None:
        """It is fed from now on."""
        self.fed_at = self.placed_at = self.took_at = now
        self.meals, self.pace_s = 0, AHEAD_S

    def show(self, chunk: int, now: float) -> None:
        """It may ask for this chunk."""
        self.shown[chunk] = now
        self.open |= 1 << chunk

    def take(self, chunk: int, now: float) -> float:
        """It fetched a chunk that it was shown; returns for how long it had been."""
        self.pace_s += MEMORY * (now - self.took_at - self.pace_s)
        self.took_at = now
        return now - self.shown[chunk]

    def ahead(self, share: int, now: float) -> int:
        """How many chunks it is shown before it has fetched them.  share: of what our line should have under way."""
        if self.idled:
            return 1
        pace_s = max(self.pace_s, now - self.took_at, AHEAD_S / MOST_AHEAD)
        return max(min(share, AHEAD + self.meals), round(AHEAD_S / pace_s))


class Superseeding:
    """Of a blob of `count` chunks.  `now` is trio time."""

    def __init__(self, count: int, random_: random.Random) -> None:
        self._all, self._random = (1 << count) - 1, random_
        self._shown, self._had = Copies(count), Copies(count)
        self._guests: dict[PeerId, _Guest] = {}
        self._turns = 0
        self._usual_s = 0.0

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
            self._take_back(guest)

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """It has these, too."""
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
        """It fetched a chunk from us."""
        guest = self._guests.get(peer)
        if guest is None:
            return
        if chunk in guest.shown:
            self._usual_s += (MEMORY if self._usual_s else 1.0) * (guest.take(chunk, now) - self._usual_s)
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
        """Guests that fetched nothing when they could."""
        return [peer for peer, guest in self._guests.items() if guest.idled and guest.fed_at is None]

    def shown_to(self, peer: PeerId) -> ChunkSet:
        """What this peer may know that we have."""
        guest = self._guests.get(peer)
        return guest.open if guest is not None else 0

    def show(self, now: float) -> dict[PeerId, ChunkSet]:
        """What to show to whom now, beyond what they were shown; call it when something has changed, and often."""
        self._give_places(now)
        news: dict[PeerId, ChunkSet] = {}
        fed = [(peer, guest) for peer, guest in self._guests.items() if guest.fed_at is not None]
        share = max(AHEAD, AHEAD_OF_ALL // max(1, len(fed)))
        while fed:  # in turns, so that the first peer does not get all that nobody was shown
            for peer, guest in [*fed]:
                chunk = self._next_for(guest, now) if len(guest.shown) < guest.ahead(share, now) else None
                if chunk is None:
                    fed.remove((peer, guest))
                    continue
                guest.show(chunk, now)
                self._shown.add(1 << chunk)
                news[peer] = news.get(peer, 0) | 1 << chunk
        return news

    def _patience_s(self) -> float:
        if not self._usual_s:
            return FIRST_PATIENCE_S
        return min(max(LEAST_PATIENCE_S, PATIENCE_TIMES * self._usual_s), MOST_PATIENCE_S)

    def _give_places(self, now: float) -> None:
        """Take the places of those that do not use them or had their turn, and give them to those that waited longest."""
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
            guest.take_place(now)

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
        """Chunks that somebody who fetches was shown lately, and may be fetching."""
        since, fetching = now - self._patience_s(), [guest for guest in self._guests.values() if not guest.idled]
        return set_of([chunk for guest in fetching for chunk, at in guest.shown.items() if at > since])


# ------------------------------------------------------------------------------------------------------------------------


NO_HURRY_S = 0.5
"""How often a guest is told of chunks that others have as well: many small statements cost more than they gain."""
MAX_GUESTS = 64
"""Peers that are told what comes to a blob; the others have to ask again."""

IsMember = Callable[[PeerId], bool]


def has_place(peer: PeerId, guests: Mapping[PeerId, ChunkSet], all_: ChunkSet, is_member: IsMember) -> PeerId | bool:
    """Whether there is room for one more guest; or the guest that has to go for it.

    That is one that has all, or, for a member, a stranger.  guests: what each of them has.
    """
    if peer in guests or len(guests) < MAX_GUESTS:
        return True
    done = next((guest for guest, has in guests.items() if has == all_), None)
    if done is None and is_member(peer):
        done = next((guest for guest in guests if not is_member(guest)), None)
    return done if done is not None else False


class Offer(Protocol):
    """`now` is trio time."""

    def join(self, peer: PeerId, has: ChunkSet, now: float) -> ChunkSet:
        """A peer fetches the blob, and has this much of it; returns what it may ask us for."""
        ...

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """It has these, too."""
        ...

    def fed(self, peer: PeerId, chunk: int, now: float) -> None:
        """It has fetched a chunk from us."""
        ...

    def leave(self, peer: PeerId) -> None:
        """It is gone."""
        ...

    def guests(self) -> list[PeerId]:
        """The peers that fetch the blob, as far as we are told."""
        ...

    def news(self, now: float) -> dict[PeerId, ChunkSet]:
        """What is to be told to whom now; all of it when `now` is infinite."""
        ...


class OpenOffer:
    """All that is here, of a blob of `count` chunks, is open to everybody.

    Guests are told at once of what nobody else can give them, and with it of all that came since they were told.
    """

    def __init__(self, count: int, here: ChunkSet, is_member: IsMember) -> None:
        self._here, self._all, self._is_member = here, (1 << count) - 1, is_member
        self._untold: dict[PeerId, ChunkSet] = {}
        """Of each guest, what came since it was told."""
        self._told_at: dict[PeerId, float] = {}
        self._firsts: ChunkSet = 0
        """What nobody had before us, as far as we know."""
        self._has: dict[PeerId, ChunkSet] = {}

    def add(self, chunk: int, *, is_first: bool = False) -> None:
        """A chunk is here now.  is_first: it came from an origin, which shows it to nobody else."""
        self._here |= 1 << chunk
        if is_first:
            self._firsts |= 1 << chunk
        for peer in self._untold:
            self._untold[peer] |= 1 << chunk

    def join(self, peer: PeerId, has: ChunkSet, now: float) -> ChunkSet:
        """As `Offer.join`."""
        place = has_place(peer, self._has, self._all, self._is_member)
        if isinstance(place, str):
            self.leave(place)
        if place:
            self._has[peer], self._untold[peer], self._told_at[peer] = has, 0, now
        return self._here

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """As `Offer.got`."""
        if peer in self._has:
            self._has[peer] |= chunks & self._all

    def fed(self, peer: PeerId, chunk: int, now: float) -> None:
        """As `Offer.fed`."""
        self.got(peer, 1 << chunk)

    def leave(self, peer: PeerId) -> None:
        """As `Offer.leave`."""
        self._has.pop(peer, None)
        self._untold.pop(peer, None)
        self._told_at.pop(peer, None)

    def guests(self) -> list[PeerId]:
        """As `Offer.guests`."""
        return [*self._has]

    def news(self, now: float) -> dict[PeerId, ChunkSet]:
        """As `Offer.news`: only what they do not have."""
        news = {}
        for peer, chunks in self._untold.items():
            told = chunks & ~self._has[peer]
            if told & self._firsts or (told and now - self._told_at[peer] >= NO_HURRY_S):
                news[peer] = told
        for peer in news:
            self._untold[peer], self._told_at[peer] = 0, now
        return news


class OriginOffer:
    """Of a blob of `count` chunks that nobody else has, or few."""

    def __init__(self, count: int, random_: random.Random, is_member: IsMember) -> None:
        self._showing, self._all, self._is_member = Superseeding(count, random_), (1 << count) - 1, is_member
        self._has: dict[PeerId, ChunkSet] = {}
        self._untold: dict[PeerId, ChunkSet] = {}

    @property
    def only_here(self) -> ChunkSet:
        """Chunks that would be lost with us, as far as we know."""
        return self._showing.only_here

    def join(self, peer: PeerId, has: ChunkSet, now: float) -> ChunkSet:
        """As `Offer.join`."""
        place = has_place(peer, self._has, self._all, self._is_member) or self._place_of_an_idler(peer)
        if isinstance(place, str):
            self.leave(place)
        if place:
            self._has[peer] = has
            self._showing.join(peer, has)
            self._note(now)
        self._untold.pop(peer, None)
        return self._showing.shown_to(peer)

    def _place_of_an_idler(self, peer: PeerId) -> PeerId | bool:
        """A guest that fetched nothing when it could may go for a newcomer, a member only for a member."""
        idlers = self._showing.idlers
        strangers = [idler for idler in idlers if not self._is_member(idler)]
        return next(iter(strangers or (idlers if self._is_member(peer) else [])), False)

    def got(self, peer: PeerId, chunks: ChunkSet) -> None:
        """As `Offer.got`."""
        if peer in self._has:
            self._has[peer] |= chunks & self._all
            self._showing.got(peer, chunks & self._all)

    def fed(self, peer: PeerId, chunk: int, now: float) -> None:
        """As `Offer.fed`."""
        if peer in self._has:
            self._has[peer] |= 1 << chunk
            self._showing.fed(peer, chunk, now)

    def leave(self, peer: PeerId) -> None:
        """As `Offer.leave`."""
        self._showing.leave(peer)
        self._has.pop(peer, None)
        self._untold.pop(peer, None)

    def guests(self) -> list[PeerId]:
        """As `Offer.guests`."""
        return [*self._has]

    def news(self, now: float) -> dict[PeerId, ChunkSet]:
        """As `Offer.news`."""
        self._note(now)
        news, self._untold = self._untold, {}
        return news

    def _note(self, now: float) -> None:
        for peer, chunks in self._showing.show(now).items():
            self._untold[peer] = self._untold.get(peer, 0) | chunks
