"""The record chain as this peer holds it: the certified rounds from genesis to the tip.

Keeps hashes in memory; `protocol.chain.store` keeps the records themselves.  Positions count rounds: `tip_at(n)` is the tip
after n rounds, and record n leads from `tip_at(n)` to `tip_at(n + 1)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from protocol.chain.base import Base, RoundSettings, fragment_of
from protocol.chain.electorate import Roster, base_on
from protocol.chain.records import genesis_tip, is_full, record_hash
from protocol.chain.store import Store
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Commit, Record

# ------------------------------------------------------------------------------------------------------------------------
# The part of a record chain that a peer keeps in memory.  Pure.


ROSTERS_KEPT = 256
"""Newest tips whose rosters are known without reading records again."""


@dataclass(frozen=True)
class ChainLink:
    """One more record of a chain.  tip, roster: after the record."""

    commit: Commit
    tip: Hash
    roster: Roster


class ChainMemory:
    """Memory of one chain.

    tips: after 0, 1, … rounds.  electors: of each tip.  provisional: rounds certified without some of the electors, in
    order.  rosters: by rounds, after the newest records.  last: the newest record, if any.

    Other threads read it while records are added: the newest tip is added after everything that belongs to it.
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
        """Return the memory of a chain without records."""
        roster = Roster.start(settings)
        return cls([genesis_tip(settings.run)], [roster.electorate.electors], [], {0: roster}, None)

    @property
    def length(self) -> int:
        """Number of records."""
        return len(self.tips) - 1

    def first(self, rounds: int, roster: Roster, last: Record | None) -> ChainMemory:
        """Return the memory of the first `rounds` records, to continue from there.  roster, last: of these records."""
        kept = {known: self.rosters[known] for known in self.rosters if known < rounds} | {rounds: roster}
        provisional = [round for round in self.provisional if round < rounds]
        return ChainMemory(self.tips[: rounds + 1], self.electors[: rounds + 1], provisional, kept, last)

    def link(self, commit: Commit) -> ChainLink:
        """Return the link that one more record, which has been verified, adds; this may take a moment."""
        return ChainLink(commit, record_hash(commit.record), self.rosters[self.length].after(commit))

    def add(self, link: ChainLink) -> None:
        """Add a link to the chain."""
        record, electors, rounds = link.commit.record, link.roster.electorate.electors, self.length + 1
        self.last = record
        if not is_full(link.commit.certificate):
            self.provisional.append(record.round)
        self.electors.append(self.electors[-1] if electors == self.electors[-1] else electors)
        self.rosters[rounds] = link.roster
        self.rosters.pop(rounds - ROSTERS_KEPT, None)
        self.tips.append(link.tip)


# ------------------------------------------------------------------------------------------------------------------------


Change = Callable[[], None]


class History:
    """The chain that `store` holds.  Changes write through to it.

    `written`, `switched` and `strengthened` put a change on disk, and may be called in another thread.  Each returns a
    function that makes the change in memory; call it in the thread of the readers.  So no reader sees half of a change, the
    length of one chain and the roster of another.
    """

    def __init__(self, settings: RoundSettings, store: Store) -> None:
        self._settings, self._store = settings, store
        self._now = memory = ChainMemory.start(settings)
        for round in range(store.records.length()):
            commit = store.records.at(round)
            if commit is None or commit.record.previous != memory.tips[-1]:
                store.records.truncate(round)
                break
            memory.add(memory.link(commit))

    @property
    def length(self) -> int:
        """Number of rounds committed, which is also the number of the next round."""
        return self._now.length

    @property
    def tip(self) -> Hash:
        """Hash of the newest record; the genesis tip of the run before there is a record."""
        return self._now.tips[-1]

    @property
    def last(self) -> Record | None:
        """The newest record; None at genesis."""
        return self._now.last

    @property
    def base(self) -> Base:
        """Base of the next round."""
        now = self._now
        rounds = now.length
        return base_on(self._settings, rounds, now.tips[rounds], now.rosters[rounds])

    def base_on(self, rounds: int, tip: Hash, roster: Roster) -> Base:
        """Return the base of a record after `rounds` rounds of any chain."""
        return base_on(self._settings, rounds, tip, roster)

    @property
    def roster(self) -> Roster:
        """Roster at the tip."""
        now = self._now
        return now.rosters[now.length]

    def roster_at(self, rounds: int) -> Roster:
        """Return the roster after the first `rounds` records, at most `length`.  Reads the records again for an old one."""
        if (known := self._now.rosters.get(rounds)) is not None:
            return known
        roster = Roster.start(self._settings)
        for round in range(rounds):
            roster = roster.after(self.commit_at(round))
        return roster

    def base_at(self, round: int, tip: bytes) -> Base | None:
        """Return the base for judging ballots of this round on this tip; None if the tip is not in this chain.

        The base has the electors, and nothing about other peers.
        """
        now = self._now
        if round > now.length or now.tips[round] != tip:
            return None
        return Base(round, fragment_of(round, self._settings.fragments), now.tips[round], now.electors[round])

    @property
    def final(self) -> int:
        """Number of final records: they and all before them were certified by the whole electorate."""
        return self._now.provisional[0] if self._now.provisional else self.length

    @property
    def provisional(self) -> list[int]:
        """Rounds whose records were certified without some electors, in order."""
        return list(self._now.provisional)

    def has_member(self, peer: PeerId) -> bool:
        """Return True if any record of this chain names `peer` as a member."""
        return peer in self.roster.members

    def tip_at(self, rounds: int) -> Hash:
        """Return the tip after `rounds` rounds, at most `length`."""
        return self._now.tips[rounds]

    def tips(self, start: int, count: int) -> list[Hash]:
        """Return the tips after `start`, `start` + 1, ... rounds, at most `count`."""
        return self._now.tips[start : start + count]

    def commit_at(self, round: int) -> Commit:
        """Return the commit of a round below `length`."""
        commit = self._store.records.at(round)
        assert commit is not None, f"record {round} is in the chain but not on disk"
        return commit

    def kept(self, round: int) -> Commit | None:
        """Return the commit of a round for questions of others, which come in other threads than changes of the chain.

        Return None if it is not on disk: while branches are exchanged, records leave the disk before the chain forgets them.
        """
        return self._store.records.at(round) if round < self.length else None

    def record_at(self, round: int) -> Record | None:
        """Return the record of `round`; None below genesis."""
        return self.commit_at(round).record if round >= 0 else None

    # -- changes ------------------------------------------------------------------------------------------------------

    def append(self, commit: Commit) -> None:
        """Add the next record on disk and in memory (see `written`)."""
        self.written(commit)()

    def written(self, commit: Commit) -> Change:
        """Write the next record, which the caller has verified; it is on disk on return."""
        assert commit.record.previous == self.tip and commit.record.round == self.length, "not the next record"
        self._store.records.write(commit)
        return partial(self._now.add, self._now.link(commit))

    def strengthen(self, round: int, certificate: Certificate) -> None:
        """Make a provisional record full on disk and in memory (see `strengthened`)."""
        self.strengthened(round, certificate)()

    def strengthened(self, round: int, certificate: Certificate) -> Change:
        """Make a provisional record of our chain full by this certificate.

        The caller has verified it.  It is on disk on return.
        """
        assert round in self._now.provisional and is_full(certificate)
        self._store.records.write(self.commit_at(round).model_copy(update={"certificate": certificate}))
        return partial(self._now.provisional.remove, round)

    def switch(self, common: int, slot: str, length: int) -> str:
        """Exchange branches on disk and in memory (see `switched`)."""
        kept, change = self.switched(common, slot, length)
        change()
        return kept

    def switched(self, common: int, slot: str, length: int) -> tuple[str, Change]:
        """Keep the first `common` records, and continue with those in the branch `slot` up to `length` rounds.

        The caller has verified them.  One chain or the other is whole on disk, whenever we die.  Also returns the slot that
        now holds our records from `common` on.  Raises `StoreFailed`.
        """
        assert 0 <= common <= min(self.length, length)
        kept, roster = self.tip.hex(), self.roster_at(common)
        self._store.switch(common, slot, length, kept)
        memory = self._now.first(common, roster, self.record_at(common - 1))
        for round in range(common, length):
            memory.add(memory.link(self.commit_at(round)))
        return kept, partial(self._become, memory)

    def _become(self, memory: ChainMemory) -> None:
        self._now = memory
