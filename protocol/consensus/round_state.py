"""The state of a round that the proposer and the acceptor of one peer share."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.consensus.policy import ClosingPolicy
from protocol.consensus.terms import Ballot, View
from protocol.consensus.validation import leaves_out
from protocol.state.base import Base, RoundSettings
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import ChunkEntry, Commit, Plan, Promise, Ready, Voted

PATIENCE_S = 3.0
"""Seconds beyond grace and finish time that a live proposer gets before the next attempt begins; grows by attempt.  A
proposer under which nothing moved for so long may be overtaken by another."""


class RoundState:
    """One peer's knowledge of the running round.  `now` is trio time.

    attempt: the number of the attempt that we think is due.  plan: the one taken up last.  state_digest: of our outer
    state, None until it is hashed.  promised, voted: what we are bound by, as it is on disk.  obtained: the roots of the
    results that are on disk.  decided: the certified record once its result is on disk.
    """

    def __init__(self, me: PeerId, settings: RoundSettings, base: Base, now: float) -> None:
        self.me, self.settings, self.base = me, settings, base
        self.closing = ClosingPolicy(me, settings, base)
        self.doubts = Doubts()
        self.attempt = 0
        self.plan: Plan | None = None
        self.state_digest: Hash | None = None
        self.promised: Ballot | None = None
        self.voted: Voted | None = None
        self.decided: Commit | None = None
        self.obtained: set[bytes] = set()
        self._moved_at = now

    @property
    def readys(self) -> dict[PeerId, Ready]:
        """The newest READY of each peer that is ready for this round."""
        return self.closing.readys

    def promise(self) -> Promise:
        """Our last promise as a statement, with our last vote.  There must be one."""
        assert self.promised is not None
        attempt, proposer = self.promised
        return Promise(round=self.base.round, base=self.base.tip, attempt=attempt, proposer=proposer, voted=self.voted)

    # -- patience -----------------------------------------------------------------------------------------------------

    def move(self, now: float) -> None:
        """Something got further: patience begins anew."""
        self._moved_at = max(self._moved_at, now)

    def next_attempt(self, now: float, after: int | None = None) -> None:
        """Begin the attempt after this one; patience begins anew.  after: None for the running one."""
        self.attempt = (self.attempt if after is None else after) + 1
        self.move(now)

    def idle_s(self, now: float) -> float:
        """Seconds since something moved."""
        return now - self._moved_at

    def is_stalled(self, now: float, attempt: int) -> bool:
        """Whether nothing has moved for longer than this attempt is given."""
        return self.idle_s(now) > self.settings.stall_s + PATIENCE_S * (1 + attempt)

    # -- judging ------------------------------------------------------------------------------------------------------

    def is_for_this_round(self, round: int, base: bytes) -> bool:
        """Whether a statement about round `round` on the tip `base` is about ours."""
        return round == self.base.round and base == self.base.tip

    def differs_from(self, digest: bytes) -> bool:
        """Whether we know that our outer state is another one than this."""
        return self.state_digest is not None and digest != self.state_digest

    def leaves_out_too_many(self, plan: Plan, view: View) -> bool:
        """Whether the plan leaves out the contributions of more than a third of those who are ready as we see it."""
        ready = self.closing.agreed(view)[: self.settings.max_members]
        return leaves_out(plan, ready, self.readys) > len(ready) // 3


class Doubts:
    """Results that we do not vote for: with an average that was disproved, or that could not be accounted for."""

    def __init__(self) -> None:
        self._disproved: dict[tuple[int, bytes], None] = {}
        self._unaccountable: dict[bytes, None] = {}

    def disprove(self, chunk: int, hash: bytes) -> None:
        """This average of this chunk is proven wrong."""
        self._disproved[chunk, hash] = None

    def suspect(self, root: bytes) -> None:
        """The result with this root cannot be accounted for."""
        self._unaccountable[root] = None

    def is_false(self, index: Sequence[ChunkEntry]) -> bool:
        """Whether a result with this index has an average that is proven wrong."""
        return bool(self._disproved) and any((chunk, entry.hash) in self._disproved for chunk, entry in enumerate(index))

    def apply_to(self, voted: Voted) -> bool:
        """Whether we doubt the record that somebody voted for."""
        return voted.record.result_root in self._unaccountable or self.is_false(voted.index)
