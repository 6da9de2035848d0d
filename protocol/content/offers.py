"""What we offer of a blob to peers that fetch it, and what they are told of it.

Pure.  A peer that asks for a blob is told what it may ask us for, and from then on what comes to it: a peer that fetches a
blob itself offers each chunk as soon as it has it.  An origin shows different peers different chunks
(`protocol.content.superseeding`); everybody else shows all that is here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from protocol.content.blob import ChunkSet
from protocol.content.superseeding import Superseeding
from protocol.wire.identity import PeerId

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
