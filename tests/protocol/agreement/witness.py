"""What honest peers said in a round, over all their lives: they contradict neither their disks nor themselves."""

from __future__ import annotations

from protocol.chain.records import is_full, record_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Step, ViewChange, Vote, VoterState


class Witness:
    """Raises AssertionError as soon as an honest peer breaks a rule, or two full records are certified."""

    def __init__(self) -> None:
        self._entered: dict[PeerId, int] = {}
        """The highest attempt that a peer took part in."""
        self._votes: dict[tuple[PeerId, int, Step], tuple[list[str], bytes]] = {}
        self._full: dict[bytes, None] = {}

    def hear(self, peer: PeerId, body: ViewChange | Vote, kept: VoterState | None) -> None:
        """`peer` is about to say this.  kept: what is on its disk."""
        assert (kept.attempt if kept is not None else 0) == body.attempt, "what binds a voter is on disk before it is said"
        assert body.attempt >= self._entered.get(peer, 0), "nobody takes part in an earlier attempt"
        self._entered[peer] = body.attempt
        if isinstance(body, ViewChange):
            votes_alone = not body.held  # members without electors may go on without a lock of the dead
            assert kept is None or kept.lock is None or body.lock is not None or votes_alone, "a lock is told"
            return
        assert kept is not None
        vote = (body.absent, body.record_hash)
        assert (kept.absent, kept.first if body.step is Step.FIRST else kept.second) == vote
        assert self._votes.setdefault((peer, body.attempt, body.step), vote) == vote, "nobody votes twice"
        if body.step is Step.SECOND:
            lock = kept.reduced if body.absent else kept.lock
            assert lock is not None and record_hash(lock.record) == body.record_hash, "a second vote locks"

    def see(self, commit: Commit) -> None:
        """This record is certified."""
        if is_full(commit.certificate):
            self._full[record_hash(commit.record)] = None
        assert len(self._full) <= 1, "two records were certified by the whole electorate"
