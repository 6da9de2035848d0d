"""A chain that leaves ours at some tip: verified records that lie beside ours on disk, until we take them over."""

from __future__ import annotations

from protocol.chain.base import Base
from protocol.chain.history import History
from protocol.chain.records import is_full, record_hash
from protocol.chain.store import BranchFiles
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit


class Uprooted(Exception):
    """Our chain has changed so that the branch no longer begins on it, or was taken over."""


class Branch:
    """Begins on our tip after `start` rounds; its own records are in `slot`.

    What is appended has been verified.  Our chain may move on meanwhile: `is_rooted` and `common` look at it as it is now.
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
        """The records that an earlier life left in `slot`, as far as they are one chain that begins on ours; else None."""
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
        """The next record, verified on `base`; it is on disk when this returns.  Blocking.  Raises `StoreFailed`."""
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
        """Rounds to its end."""
        return self.start + len(self._tips) - 1

    @property
    def tip(self) -> Hash:
        """Of its newest record."""
        return self._tips[-1]

    @property
    def base(self) -> Base:
        """What its next record stands on."""
        return self._history.base_on(self.length, self.tip, self._roster)

    @property
    def provisional(self) -> dict[int, tuple[PeerId, ...]]:
        """The electors of each of its own records that was certified without some of them, by round."""
        return dict(self._voters)

    @property
    def is_rooted(self) -> bool:
        """Whether it still begins on our chain."""
        return self.start <= self._history.length and self._history.tip_at(self.start) == self._tips[0]

    @property
    def common(self) -> int:
        """Rounds that it shares with our chain as it is now; it is rooted."""
        theirs = self._tips[1:]
        ours = self._history.tips(self.start + 1, len(theirs))
        shared = next((number for number, (our, their) in enumerate(zip(ours, theirs, strict=False)) if our != their), None)
        return self.start + (min(len(ours), len(theirs)) if shared is None else shared)

    def tip_at(self, rounds: int) -> Hash:
        """The tip after `rounds` rounds, at most `length`.  Raises `Uprooted`."""
        return self._tips[rounds - self.start] if rounds >= self.start else self._trunk().tip_at(rounds)

    def _trunk(self) -> History:
        if not self.is_rooted:
            raise Uprooted
        return self._history

    def tips(self, start: int, count: int) -> list[Hash]:
        """Of its own tips those after `start`, `start` + 1, ... rounds, at most `count`."""
        return self._tips[max(0, start - self.start) : max(0, start - self.start + count)]

    def commit_at(self, round: int) -> Commit:
        """The commit of a round below `length`.  Blocking.  Raises `Uprooted`."""
        commit = self._trunk().kept(round) if round < self.start else self._files.at(self.slot, round)
        if commit is None:
            raise Uprooted
        return commit
