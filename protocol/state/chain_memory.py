"""What a peer keeps in memory of a record chain.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.state.base import RoundSettings
from protocol.state.chain import genesis_tip, is_full, record_hash
from protocol.state.roster import Roster
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Record

ROSTERS_KEPT = 256
"""Tips whose roster is known without reading records again."""


@dataclass(frozen=True)
class Link:
    """One more record.  tip, roster: after it."""

    commit: Commit
    tip: Hash
    roster: Roster


class ChainMemory:
    """Of one chain.  tips: after 0, 1, … rounds.  electors: of each tip.  provisional: rounds certified without some of
    the electors, in order.  rosters: by rounds, after the newest records.  last: the newest record, if any.

    Read in other threads while records are added: the newest tip comes after all that belongs to it.
    """

    def __init__(
        self,
        tips: list[Hash],
        electors: list[tuple[PeerId, ...]],
        provisional: list[int],
        rosters: Mapping[int, Roster],
        last: Record | None,
    ) -> None:
        assert len(tips) == len(electors) and len(tips) - 1 in rosters
        self.tips, self.electors, self.provisional, self.last = tips, electors, provisional, last
        self.rosters = dict(rosters)

    @classmethod
    def start(cls, settings: RoundSettings) -> ChainMemory:
        """Of a chain without records."""
        roster = Roster.start(settings)
        return cls([genesis_tip(settings.run)], [roster.electorate.electors], [], {0: roster}, None)

    @property
    def length(self) -> int:
        """How many records."""
        return len(self.tips) - 1

    def first(self, rounds: int, roster: Roster, last: Record | None) -> ChainMemory:
        """What there is of the first `rounds` records, to go on from there.  roster, last: of these."""
        kept = {known: self.rosters[known] for known in self.rosters if known < rounds} | {rounds: roster}
        provisional = [round for round in self.provisional if round < rounds]
        return ChainMemory(self.tips[: rounds + 1], self.electors[: rounds + 1], provisional, kept, last)

    def link(self, commit: Commit) -> Link:
        """What one more record, which has been verified, adds; it may take a moment."""
        return Link(commit, record_hash(commit.record), self.rosters[self.length].after(commit))

    def add(self, link: Link) -> None:
        """Add it."""
        record, electors, rounds = link.commit.record, link.roster.electorate.electors, self.length + 1
        self.last = record
        if not is_full(link.commit.certificate):
            self.provisional.append(record.round)
        self.electors.append(self.electors[-1] if electors == self.electors[-1] else electors)
        self.rosters[rounds] = link.roster
        self.rosters.pop(rounds - ROSTERS_KEPT, None)
        self.tips.append(link.tip)
