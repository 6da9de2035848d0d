"""A chain that leaves ours at some tip: its verified records lie beside ours on disk until we take them over."""

from __future__ import annotations

from protocol.chain.base import Base
from protocol.chain.history import History
from protocol.chain.records import is_full, record_hash
from protocol.chain.store import BranchFiles
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit


class Uprooted(Exception):
    """A branch that no longer begins on our chain, because ours has changed, or that was taken over."""


class Branch:
    """A chain that begins on our tip after `start` rounds; its own records are in `slot`.

    The caller has verified every record before it is appended.  Our chain may move on meanwhile: `is_rooted` and `common`
    compare with its present state.
    """

    def __init__(self, history: History, files: BranchFiles, slot: str, start: int) -> None:
        self._history, self._files = history, files
        self.slot, self.start = slot, start
        self._tips = [history.tip_at(start)]
        self._roster = history.roster_at(start)
        self._voters: dict[int, tuple[PeerId, ...]] = {}
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
            self._voters[commit.record.round] = self._roster.electorate.electors
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
    def provisional(self) -> dict[int, tuple[PeerId, ...]]:
        """Electors of each of the branch's own records that was certified without some of them, by round."""
        return dict(self._voters)

    @property
    def is_rooted(self) -> bool:
        """True if the branch still begins on our chain."""
        return self.start <= self._history.length and self._history.tip_at(self.start) == self._tips[0]

    @property
    def common(self) -> int:
        """Number of rounds shared with our chain as it is now.  The branch must be rooted."""
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
