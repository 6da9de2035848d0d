"""The record chain as this peer holds it: the certified rounds from genesis to the tip.

This module keeps hashes in memory; `protocol.chain.store` keeps the records themselves.  Positions count rounds: `tip_at(n)`
is the tip after n rounds, and record n leads from `tip_at(n)` to `tip_at(n + 1)`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from protocol.chain.base import Base, RoundSettings, fragment_of
from protocol.chain.electorate import Roster, base_on
from protocol.chain.finality import RecentWork
from protocol.chain.records import encoded_record_hash, genesis_tip, is_full, record_hash
from protocol.chain.store import BranchFiles, Store
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Commit, Record

# ------------------------------------------------------------------------------------------------------------------------
# The part of a record chain that a peer keeps in memory; pure.


ROSTERS_KEPT = 256
"""Number of newest tips whose rosters are kept, so that no records have to be read again for them."""


Change = Callable[[], None]
"""A change of the memory that is ready to be made, in the thread of its readers."""


class ChainMemory:
    """Memory of one chain.

    tips: tips after 0, 1, … rounds.  electors: electors of each tip.  provisional: rounds certified without some of the
    electors, in order.  certificates: certificates of the newest provisional records, by round.  rosters: rosters after the
    newest records, by number of rounds.  last: the newest record, if any.

    Other threads read the memory while records are added: the newest tip is added last, after all data that belongs to it.
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
        self.rosters, self.certificates = dict(rosters), dict[int, Certificate]()

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
        """Return the memory of the first `rounds` records, to continue from there.

        roster, last: the roster after these records, and the last one of them.
        """
        kept = {known: self.rosters[known] for known in self.rosters if known < rounds} | {rounds: roster}
        provisional = [round for round in self.provisional if round < rounds]
        memory = ChainMemory(self.tips[: rounds + 1], self.electors[: rounds + 1], provisional, kept, last)
        memory.certificates = {round: known for round, known in self.certificates.items() if round < rounds}
        return memory

    def adding(self, commit: Commit) -> Change:
        """Return the change that adds one more record, which has been verified; may take a moment."""
        return partial(self._add, commit, record_hash(commit.record), self.rosters[self.length].after(commit))

    def _add(self, commit: Commit, tip: Hash, roster: Roster) -> None:
        record, electors, rounds = commit.record, roster.electorate.electors, self.length + 1
        self.last = record
        if not is_full(commit.certificate):
            self.provisional.append(record.round)
            self.certificates[record.round] = commit.certificate
            self.certificates.pop(next(iter(self.certificates)) if len(self.certificates) > ROSTERS_KEPT else -1, None)
        self.electors.append(self.electors[-1] if electors == self.electors[-1] else electors)
        self.rosters[rounds] = roster
        self.rosters.pop(rounds - ROSTERS_KEPT, None)
        self.tips.append(tip)


# ------------------------------------------------------------------------------------------------------------------------
# The chain in memory and on disk.


class History:
    """The chain that `store` holds.  Changes write through to it.

    `written` and `switched` put a change on disk, and may be called in another thread.  Each returns a function that makes
    the change in memory; call it in the thread of the readers.  So no reader sees half of a change, such as the length of
    one chain with the roster of another.
    """

    def __init__(self, settings: RoundSettings, store: Store) -> None:
        self._settings, self._store = settings, store
        self._now = memory = ChainMemory.start(settings)
        for round in range(store.records.length()):
            commit = store.records.at(round)
            if commit is None or commit.record.previous != memory.tips[-1]:
                store.records.set_aside_from(round)
                break
            memory.adding(commit)()

    def damage(self) -> str:
        """Return a sentence about records that were set aside and not replaced since; empty if there are none.  Blocking."""
        lost = self._store.records.lost_from(self.length)
        if not lost:
            return ""
        return (
            f"{lost} {'record' if lost == 1 else 'records'} after round {self.length} cannot be read in {self._store.root}, "
            "because one of them is damaged; this peer fetches them from other peers, and if no peer has them, restore that "
            "folder from a backup"
        )

    @property
    def length(self) -> int:
        """Number of committed rounds, which is also the number of the next round."""
        return self._now.length

    @property
    def tip(self) -> Hash:
        """Hash of the newest record; before the first record, the genesis tip of the run."""
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

        The base contains the electors, but no other facts about peers.
        """
        now = self._now
        if round > now.length or now.tips[round] != tip:
            return None
        return Base(round, fragment_of(round, self._settings.fragments), now.tips[round], now.electors[round])

    @property
    def final(self) -> int:
        """Number of final records (`protocol.chain.finality`)."""
        return self.roster.finality.final

    @property
    def provisional(self) -> list[int]:
        """Rounds whose records were certified without some electors and are not final, in order."""
        final, provisional = self.final, self._now.provisional
        return provisional[bisect_left(provisional, final) :]

    def electors_at(self, rounds: int) -> tuple[PeerId, ...]:
        """Return the electors at the tip after `rounds` rounds, at most `length`."""
        return self._now.electors[rounds]

    def has_member(self, peer: PeerId) -> bool:
        """Return True if any record of this chain names `peer` as a member."""
        return peer in self.roster.members

    def is_active(self, peer: PeerId) -> bool:
        """Return True for a voter on the next record, and for a member with a part in the last one.

        Where the organiser admits members, all members are active: keys that may become one are not free.
        """
        roster = self.roster
        parts = roster.contributors if self._settings.is_open else roster.members
        return peer in parts or peer in roster.electorate.electors

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

    def certificate_at(self, round: int) -> Certificate:
        """Return the certificate of a round below `length`.  Reads the record again unless it is a new provisional one."""
        return self._now.certificates.get(round) or self.commit_at(round).certificate

    def kept(self, round: int) -> Commit | None:
        """Return the commit of a round, to answer other peers.

        Such questions run in other threads than changes of the chain. Return None if it is not on disk: during an exchange
        of branches, records leave the disk before they leave the memory.
        """
        return self._store.records.at(round) if round < self.length else None

    def encoded(self, round: int, tip: Hash) -> bytes | None:
        """Return the encoded commit that leads to `tip` in `round`, as `kept` does; None if another or none is on disk.

        The commit is not decoded, which takes milliseconds: only its record is hashed.
        """
        raw = self._store.records.encoded_at(round)
        return raw if raw is not None and encoded_record_hash(raw) == tip else None

    # -- changes ------------------------------------------------------------------------------------------------------

    def append(self, commit: Commit) -> None:
        """Add the next record on disk and in memory (see `written`)."""
        self.written(commit)()

    def written(self, commit: Commit) -> Change:
        """Write the next record, which the caller has verified; it is on disk on return."""
        assert commit.record.previous == self.tip and commit.record.round == self.length, "not the next record"
        self._store.records.write(commit)
        return self._now.adding(commit)

    def switch(self, common: int, slot: str, length: int) -> str:
        """Exchange branches on disk and in memory (see `switched`)."""
        kept, change = self.switched(common, slot, length)
        change()
        return kept

    def switched(self, common: int, slot: str, length: int) -> tuple[str, Change]:
        """Keep the first `common` records, and continue with the records in the branch `slot` up to `length` rounds.

        The caller has verified them.  Whenever this process dies, one of the two chains is whole on disk.  Also returns the
        slot that now holds our records from `common` on.  Raises `StoreFailed`.
        """
        assert 0 <= common <= min(self.length, length)
        kept, roster = self.tip.hex(), self.roster_at(common)
        self._store.switch(common, slot, length, kept)
        memory = self._now.first(common, roster, self.commit_at(common - 1).record if common else None)
        for round in range(common, length):
            memory.adding(self.commit_at(round))()
        return kept, partial(self._become, memory)

    def _become(self, memory: ChainMemory) -> None:
        self._now = memory


# ------------------------------------------------------------------------------------------------------------------------
# A chain that leaves ours at some tip: its verified records lie beside ours on disk until we adopt them.


class Uprooted(Exception):
    """A branch that no longer begins on our chain, because our chain has changed or has adopted the branch."""


@dataclass(frozen=True, slots=True)
class ProvisionalMark:
    """Electors of a provisional record, the electors that its certificate leaves out, and the recent work before it."""

    electors: tuple[PeerId, ...]
    absent: frozenset[PeerId]
    work: RecentWork


class Branch:
    """A chain that begins on our tip after `start` rounds; its own records are in `slot`.

    The caller has verified every record before it is appended.  Our chain may change meanwhile: `is_rooted` and `common`
    compare the branch with the chain's present state.
    """

    def __init__(self, history: History, files: BranchFiles, slot: str, start: int) -> None:
        self._history, self._files = history, files
        self.slot, self.start = slot, start
        self._tips = [history.tip_at(start)]
        self._roster = history.roster_at(start)
        self._provisional: dict[int, ProvisionalMark] = {}
        self.size_bytes = 0

    @classmethod
    def open(cls, history: History, files: BranchFiles, slot: str) -> Branch | None:
        """Return the branch left in `slot` before a restart, up to the first gap; None if it does not begin on our chain."""
        rounds = files.slots().get(slot, [])
        first = files.at(slot, rounds[0]) if rounds and rounds[0] <= history.length else None
        if first is None or first.record.previous != history.tip_at(rounds[0]):
            return None
        branch = cls(history, files, slot, rounds[0])
        branch._note(first)
        for round in rounds[1:]:
            commit = files.at(slot, round)
            if commit is None or commit.record.previous != branch.tip:
                break
            branch._note(commit)
        branch.size_bytes = files.size_bytes(slot)
        return branch

    def append(self, commit: Commit) -> None:
        """Append the next record, verified on `base`; it is on disk on return.  Blocking.  Raises `StoreFailed`."""
        assert commit.record.previous == self.tip and commit.record.round == self.length, "not the next record"
        self.size_bytes += self._files.append(self.slot, commit)
        self._note(commit)

    def _note(self, commit: Commit) -> None:
        if not is_full(commit.certificate):
            electors, absent = self._roster.electorate.electors, frozenset(map(PeerId, commit.certificate.absent))
            self._provisional[commit.record.round] = ProvisionalMark(electors, absent, self._roster.work)
        self._tips.append(record_hash(commit.record))
        self._roster = self._roster.after(commit)

    @property
    def length(self) -> int:
        """Number of rounds from genesis to the end of the branch."""
        return self.start + len(self._tips) - 1

    @property
    def tip(self) -> Hash:
        """Tip after the newest record of the branch."""
        return self._tips[-1]

    @property
    def base(self) -> Base:
        """Base of the next record of the branch."""
        return self._history.base_on(self.length, self.tip, self._roster)

    @property
    def final(self) -> int:
        """Number of rounds up to the last final record of the branch."""
        return self._roster.finality.final

    @property
    def provisional(self) -> dict[int, ProvisionalMark]:
        """The branch's own provisional records, by round."""
        return dict(self._provisional)

    @property
    def is_rooted(self) -> bool:
        """True if the branch still begins on our chain."""
        return self.start <= self._history.length and self._history.tip_at(self.start) == self._tips[0]

    @property
    def common(self) -> int:
        """Number of rounds that the branch shares with our present chain.  The branch must be rooted."""
        theirs = self._tips[1:]
        ours = self._history.tips(self.start + 1, len(theirs))
        shared = next((number for number, (our, their) in enumerate(zip(ours, theirs, strict=False)) if our != their), None)
        return self.start + (min(len(ours), len(theirs)) if shared is None else shared)

    def tip_at(self, rounds: int) -> Hash:
        """Return the tip after `rounds` rounds, at most `length`.  Raises `Uprooted`."""
        return self._tips[rounds - self.start] if rounds >= self.start else self._trunk().tip_at(rounds)

    def _trunk(self) -> History:
        if not self.is_rooted:
            raise Uprooted
        return self._history

    def tips(self, start: int, count: int) -> list[Hash]:
        """Return the branch's own tips after `start`, `start` + 1, ... rounds, at most `count`."""
        return self._tips[max(0, start - self.start) : max(0, start - self.start + count)]

    def commit_at(self, round: int) -> Commit:
        """Return the commit of a round below `length`.  Blocking.  Raises `Uprooted`."""
        commit = self._trunk().kept(round) if round < self.start else self._files.at(self.slot, round)
        if commit is None:
            raise Uprooted
        return commit
