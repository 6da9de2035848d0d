"""Who votes on the next record: a pure function of the records up to the tip.

Peer IDs cost nothing, so a vote is not given for being there.  It is earned by taking part in `seasoning_rounds` records in
a row, and kept by being a member of the records that follow.  In an open run the electors that are younger than
`tenure_rounds` hold together at most a quarter of the votes, so a crowd of keys grows by a third of the others' votes in
each `tenure_rounds` records, and not in each record.

Until four peers hold a seat, the founders vote, all of them and nobody else.  Three cases:

* Named founders, closed admission: each seasoned peer holds a seat at once.
* Named founders, open admission: a founder that is seasoned is senior; the others take the seats of the young, one for
  three seniors and at least one.  The seats carry no votes until there are four of them.  An electorate of two or three, in
  which one key that nobody knows could stop the run, never votes; and with one founder it takes a crowd two tenures to
  come to vote at all.
* founders = "anyone": the members of the last record vote until four are seasoned.  Those are senior from then on.

From four electors on nobody falls back to the founders: no record takes four or more electors below four.

Where there are more candidates than seats, those come first who began earlier (the first record of their series).  The
peer ID decides only between candidates of the same record.  To grind low IDs gains nothing over making more keys: all keys
of one record are before all keys of the next one, and nobody loses a seat to a newcomer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from protocol.run.manifest import MAX_ELECTORS
from protocol.state.base import RoundSettings
from protocol.wire.identity import PeerId

FEWEST_SEATED = 4
"""With fewer electors not even one liar is tolerated; so seasoned peers vote from here on, and never become fewer."""
MISSES = 3
"""Records in a row that an elector may not miss."""


def tolerated(electors: int) -> int:
    """How many liars an electorate of this size bears: less than a third, none below four."""
    return (electors - 1) // 3 if electors >= FEWEST_SEATED else 0


def quorum_size(electors: int) -> int:
    """How many electors decide: any two quorums share more than `tolerated` electors; a majority below four."""
    return (electors + tolerated(electors)) // 2 + 1


@dataclass(frozen=True, slots=True)
class Standing:
    """What the records say about one peer that votes or is earning a vote.  Records are numbered from 1.

    first: the record that began the unbroken series with which the vote is earned.
    is_seasoned: the series was long enough; from then on it is enough to be a member.
    missed: records in a row, up to the last one, without it; 0 until it is seasoned.
    seated: the record that gave it its seat; None without a seat.
    is_trusted: its seat never counts as young: admission is not open, or it is a founder, or one of the first electors of
      a run without named founders.
    """

    peer: PeerId
    first: int
    is_seasoned: bool = False
    missed: int = 0
    seated: int | None = None
    is_trusted: bool = False


@dataclass(frozen=True)
class Electorate:
    """Who votes on the record after the first `height` records.  Immutable; standings that did not change are shared.

    electors: sorted; empty only before the first record of a run without named founders: the plan's members vote on it.
    is_founding: the founders (or the members of the last record) still vote.
    standings: sorted by peer; of the electors, and of members of the last three records.
    """

    settings: RoundSettings
    height: int
    electors: tuple[PeerId, ...]
    is_founding: bool
    standings: tuple[Standing, ...]

    @classmethod
    def start(cls, settings: RoundSettings) -> Electorate:
        """The electorate at genesis."""
        return cls(settings, 0, settings.founders or (), True, ())

    @property
    def quorum(self) -> int:
        """Votes that decide."""
        return quorum_size(len(self.electors))

    def after(self, members: Sequence[PeerId], masks: Sequence[bytes]) -> Electorate:
        """The electorate after one more record, which has been verified.

        members: of the record, in the order of the masks' bits.  masks: one a chunk (`protocol.wire.masks`).
        """
        height = self.height + 1
        updated = self._updated(height, frozenset(members), contributors(members, masks))
        gone = self._gone(height, updated)
        standings = self._seated(height, [standing for standing in updated if standing.peer not in gone])
        seats = _seats(standings)
        is_founding = self.is_founding and len(seats) < FEWEST_SEATED
        electors = tuple(standing.peer for standing in seats)
        if is_founding:
            electors = self.settings.founders or _earliest(members, standings)
        return Electorate(self.settings, height, electors, is_founding, tuple(standings))

    def _updated(self, height: int, members: frozenset[PeerId], contributing: frozenset[PeerId]) -> list[Standing]:
        """The standings after the record `height`, before seats are lost and given; sorted by peer."""
        new = contributing.difference(standing.peer for standing in self.standings)
        updated = [Standing(peer, height, self.settings.seasoning_rounds == 1) for peer in new]
        for standing in self.standings:
            if standing.is_seasoned:
                missed = 0 if standing.peer in members else standing.missed + 1
                updated.append(standing if missed == standing.missed else replace(standing, missed=missed))
            elif standing.peer in contributing:
                is_seasoned = height - standing.first + 1 >= self.settings.seasoning_rounds
                updated.append(replace(standing, is_seasoned=True) if is_seasoned else standing)
        return sorted(updated, key=lambda standing: standing.peer)

    def _gone(self, height: int, standings: Sequence[Standing]) -> frozenset[PeerId]:
        """Peers that missed too many records: of those without a vote all, of the electors as many as may go at once."""
        missing = [standing for standing in standings if standing.missed >= MISSES]
        if self.is_founding:
            return frozenset(standing.peer for standing in missing)
        due = sorted(_seats(missing), key=lambda each: (each.missed, each.seated, each.first, each.peer), reverse=True)
        staying = due[self._removable(height, _seats(standings), due) :]
        return frozenset(standing.peer for standing in missing).difference(standing.peer for standing in staying)

    def _removable(self, height: int, seats: Sequence[Standing], due: Sequence[Standing]) -> int:
        """How many of `due`, in this order, may lose their seats, counting the young that lose theirs along with them."""
        most = min(tolerated(len(seats)), len(seats) - FEWEST_SEATED)
        young = sum(self._is_young(height, standing) for standing in seats)
        seniors = len(seats) - young
        for count, standing in enumerate(due):
            is_young = self._is_young(height, standing)
            young, seniors = young - is_young, seniors - (not is_young)
            if count + 1 + max(0, young - young_seats(seniors)) > most:
                return count
        return len(due)

    def _seated(self, height: int, standings: Sequence[Standing]) -> list[Standing]:
        """The standings with seats given: to the trusted first, then to others as far as the young have seats.

        Young electors above their share, because seniors have gone, wait for the next seat that is free.
        """
        seats = sorted(_seats(standings), key=lambda each: (each.seated, each.first, each.peer))
        young = [standing for standing in seats if self._is_young(height, standing)]
        waiting = [each for each in standings if each.is_seasoned and each.seated is None and not each.missed]
        waiting.sort(key=lambda standing: (standing.first, standing.peer))
        trusted = [each for each in waiting if self._is_trusted(each.peer)][: MAX_ELECTORS - len(seats)]
        seniors = len(seats) - len(young) + len(trusted)
        share = min(young_seats(seniors), MAX_ELECTORS - seniors)
        others = [each for each in waiting if not self._is_trusted(each.peer)][: max(0, share - len(young))]
        changed = {each.peer: replace(each, seated=None) for each in young[share:]}
        changed |= {each.peer: replace(each, seated=height, is_trusted=True) for each in trusted}
        changed |= {each.peer: replace(each, seated=height) for each in others}
        return [changed.get(standing.peer, standing) for standing in standings]

    def _is_young(self, height: int, standing: Standing) -> bool:
        """Whether it holds a seat, and has voted on fewer than `tenure_rounds` records since it was given."""
        if standing.seated is None or standing.is_trusted:
            return False
        return height - standing.seated < self.settings.tenure_rounds

    def _is_trusted(self, peer: PeerId) -> bool:
        """Whether a seat that it is given now never counts as young."""
        founders = self.settings.founders
        return not self.settings.is_open or (self.is_founding if founders is None else peer in founders)


def young_seats(seniors: int) -> int:
    """Seats of the young beside so many seniors: at most a quarter of all seats, but always one."""
    return max(1, seniors // 3)


def contributors(members: Sequence[PeerId], masks: Sequence[bytes]) -> frozenset[PeerId]:
    """The members whose parts are in the masks of more than half of the chunks."""
    width = (len(members) + 7) // 8
    rows = np.frombuffer(b"".join(masks), dtype=np.uint8).reshape(len(masks), width)
    counts = np.unpackbits(rows, axis=1, count=len(members), bitorder="little").sum(axis=0, dtype=np.uint16)
    return frozenset(members[index] for index in np.flatnonzero(counts > len(masks) // 2).tolist())


def _seats(standings: Sequence[Standing]) -> list[Standing]:
    return [standing for standing in standings if standing.seated is not None]


def _earliest(members: Sequence[PeerId], standings: Sequence[Standing]) -> tuple[PeerId, ...]:
    """The members of the last record; if they are too many, those whose series began earliest."""
    first = {standing.peer: standing.first for standing in standings}
    ranked = sorted(members, key=lambda peer: (first.get(peer, math.inf), peer))
    return tuple(sorted(ranked[:MAX_ELECTORS]))
