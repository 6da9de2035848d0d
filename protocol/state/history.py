"""The record chain as this peer holds it: the certified rounds from genesis to the tip.

A thin memory of hashes over `protocol.state.store`, which keeps the records themselves.  Positions count rounds: `tip_at(n)`
is the tip after n rounds, and record n leads from `tip_at(n)` to `tip_at(n + 1)`.
"""

from __future__ import annotations

from collections import deque

from protocol.state.base import Base, RoundSettings, fragment_of
from protocol.state.chain import genesis_tip, is_full, record_hash
from protocol.state.electorate import Electorate
from protocol.state.roster import Roster, base_on
from protocol.state.store import Store
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Commit, Record

ROSTERS_KEPT = 256
"""Tips whose roster is known without reading records again."""


class History:
    """Reads the chain that `store` holds.  Appending and switching write through to it."""

    def __init__(self, settings: RoundSettings, store: Store) -> None:
        self._settings, self._store = settings, store
        self._tips = [genesis_tip(settings.run)]
        self._last: Record | None = None
        self._rosters = deque([Roster(Electorate.start(settings))], maxlen=ROSTERS_KEPT)
        """After the newest records; the last one is of the tip."""
        self._electors = [self._rosters[-1].electorate.electors]
        """Of each tip."""
        self._provisional: list[int] = []
        for round in range(store.records.length()):
            commit = store.records.at(round)
            if commit is None or commit.record.previous != self._tips[-1]:
                store.records.truncate(round)
                break
            self._take(commit)

    def _take(self, commit: Commit) -> None:
        record = commit.record
        self._tips.append(record_hash(record))
        self._last = record
        if not is_full(commit.certificate):
            self._provisional.append(record.round)
        self._rosters.append(self._rosters[-1].after(commit))
        electors = self.roster.electorate.electors
        self._electors.append(self._electors[-1] if electors == self._electors[-1] else electors)

    @property
    def length(self) -> int:
        """Rounds committed, and the number of the next one."""
        return len(self._tips) - 1

    @property
    def tip(self) -> Hash:
        """The hash of the newest record; of the run, before there is one."""
        return self._tips[-1]

    @property
    def last(self) -> Record | None:
        """The newest record, None at genesis."""
        return self._last

    @property
    def base(self) -> Base:
        """What the next round stands on."""
        return base_on(self._settings, self.length, self.tip, self.roster)

    def base_on(self, rounds: int, tip: Hash, roster: Roster) -> Base:
        """What a record stands on after `rounds` rounds of any chain."""
        return base_on(self._settings, rounds, tip, roster)

    @property
    def roster(self) -> Roster:
        """What the chain says about peers."""
        return self._rosters[-1]

    def roster_at(self, rounds: int) -> Roster:
        """What the first `rounds` records say about peers, at most `length`.  Reads them again when that is long ago."""
        back = self.length - rounds
        if back < len(self._rosters):
            return self._rosters[-1 - back]
        roster = Roster(Electorate.start(self._settings))
        for round in range(rounds):
            roster = roster.after(self.commit_at(round))
        return roster

    def base_at(self, round: int, tip: bytes) -> Base | None:
        """What ballots of this round on this tip are judged by; None where the tip is not in this chain.

        It has the electors, and nothing about other peers.
        """
        if round >= len(self._electors) or self._tips[round] != tip:
            return None
        return Base(round, fragment_of(round, self._settings.fragments), self._tips[round], self._electors[round])

    @property
    def final(self) -> int:
        """Rounds whose records are final: they and all before them were certified by the whole electorate."""
        return self._provisional[0] if self._provisional else self.length

    @property
    def provisional(self) -> list[int]:
        """The rounds whose records were certified without some electors, in order."""
        return list(self._provisional)

    def has_member(self, peer: PeerId) -> bool:
        """Whether any record of this chain names `peer` as a member."""
        return peer in self.roster.members

    def tip_at(self, rounds: int) -> Hash:
        """The tip after `rounds` rounds, at most `length`."""
        return self._tips[rounds]

    def tips(self, start: int, count: int) -> list[Hash]:
        """The tips after `start`, `start` + 1, ... rounds, at most `count`."""
        return self._tips[start : start + count]

    def commit_at(self, round: int) -> Commit:
        """The commit of a round below `length`."""
        commit = self._store.records.at(round)
        assert commit is not None, f"record {round} is in the chain but not on disk"
        return commit

    def kept(self, round: int) -> Commit | None:
        """The commit of a round, for questions of others, which come in other threads than changes of the chain.

        None where it is not on disk: while branches are exchanged, records leave it before the chain forgets them.
        """
        return self._store.records.at(round) if round < self.length else None

    def record_at(self, round: int) -> Record | None:
        """The record of `round`; None below genesis."""
        return self.commit_at(round).record if round >= 0 else None

    def append(self, commit: Commit) -> None:
        """Add the next record; it is on disk when this returns.  The caller has verified it."""
        assert commit.record.previous == self.tip and commit.record.round == self.length, "not the next record"
        self._store.records.write(commit)
        self._take(commit)

    def strengthen(self, round: int, certificate: Certificate) -> None:
        """A provisional record of our chain becomes full, by this certificate; on disk when this returns.  Verified by the
        caller."""
        assert round in self._provisional and is_full(certificate)
        self._store.records.write(self.commit_at(round).model_copy(update={"certificate": certificate}))
        self._provisional.remove(round)

    def switch(self, common: int, slot: str, length: int) -> str:
        """Keep the first `common` records, and go on with those in the branch `slot` up to `length` rounds.

        Verified by the caller.  One chain or the other is whole on disk, whenever we die.  Returns the slot in which our
        records from `common` on are now.  Raises `StoreFailed`.
        """
        assert 0 <= common <= min(self.length, length)
        kept, roster = self.tip.hex(), self.roster_at(common)
        self._store.switch(common, slot, length, kept)
        for _ in range(min(self.length - common, len(self._rosters))):
            self._rosters.pop()
        if not self._rosters:
            self._rosters.append(roster)
        del self._tips[common + 1 :]
        del self._electors[common + 1 :]
        self._provisional = [round for round in self._provisional if round < common]
        self._last = self.record_at(common - 1)
        for round in range(common, length):
            self._take(self.commit_at(round))
        return kept
