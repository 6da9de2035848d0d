"""Nobody is stuck: from every state, once all honest electors hear each other, the next honest proposer decides the round.

The liars are silent.  Nothing that was said or locked before may stand in the way.
"""

from __future__ import annotations

from itertools import count

from protocol.chain.electorate import quorum_size
from protocol.chain.records import record_hash
from protocol.wire.messages import Lock, RecordProposal, Step
from tests.explore.certificates import Certificates
from tests.explore.council import SEATS, BallotKey, Council, LockKey, Seats, VoteKey
from tests.explore.electors import Electors
from tests.explore.record_proposals import RecordProposals
from tests.explore.symmetry import State


class Progress:
    """Plays the attempt after those that are explored.  Judges the locks that the electors hold: nothing else matters."""

    def __init__(
        self,
        council: Council,
        electors: Electors,
        proposals: RecordProposals,
        honest: Seats,
        liars: Seats,
        attempts: int,
    ) -> None:
        self._council, self._electors, self._proposals, self._honest = council, electors, proposals, honest
        self._attempt = next(a for a in count(attempts) if proposals.leader(BallotKey(a, ())) not in liars)
        self._absences = list(electors.absences)
        self._certificates = Certificates(council, (), [()], self._attempt + 1)
        self._judged: dict[tuple[object, ...], str | None] = {}

    def flaw(self, state: State) -> str | None:
        """Why the electors cannot decide from this state; None when they can, or are too few."""
        if len(self._honest) < quorum_size(SEATS):
            return None
        kept = [self._electors.known[number].kept for number in state]
        locks = tuple((each.lock, each.reduced) for each in kept)
        if locks not in self._judged:
            self._judged[locks] = self._play(state)
        return self._judged[locks]

    def _play(self, state: State) -> str | None:
        electors, ballot = self._electors, BallotKey(self._attempt, ())
        now = [electors.call(seat, number, self._attempt) for seat, number in zip(self._honest, state, strict=True)]
        view_changes = [
            (seat, view_change)
            for seat, number in zip(self._honest, now, strict=True)
            for view_change in electors.known[number].view_changes
            if BallotKey(view_change.attempt, view_change.absent) == ballot
        ]
        kept = [each for number in now if (each := electors.kept(number)) is not None]
        locks = [lock for each in kept for lock in (each.lock, each.reduced) if lock is not None]
        proofs = {
            LockKey(lock.proof.attempt, self._council.seats(lock.proof.absent), self._council.names[_name(lock)]): lock.proof
            for lock in locks
        }
        proposal = self._proposals.proposed(ballot, 0, view_changes, proofs)
        if proposal is None:
            return "stuck: an honest proposer finds no record proposal that the view changes of all honest electors allow"
        record = self._council.names[_name(proposal)]
        name = ("progress", state, proposal.record.result_root)
        now = [electors.vote(seat, number, proposal, None, name) for seat, number in zip(self._honest, now, strict=True)]
        proof = self._certificates.of(self._cast(now)).proofs.get(LockKey(*ballot, record))
        if proof is None:
            return "stuck: honest electors refuse an honest proposer's record proposal"
        shown = (*name, "proof")
        now = [electors.vote(seat, number, proposal, proof, shown) for seat, number in zip(self._honest, now, strict=True)]
        done = VoteKey(Step.SECOND, *ballot, record) in self._certificates.of(self._cast(now)).second
        return None if done else "stuck: honest electors refuse a second vote"

    def _cast(self, state: list[int]) -> tuple[frozenset[VoteKey], ...]:
        votes = [frozenset[VoteKey]()] * SEATS
        for seat, number in zip(self._honest, state, strict=True):
            votes[seat] = self._electors.known[number].votes
        return tuple(votes)


def _name(of: Lock | RecordProposal) -> bytes:
    return record_hash(of.record)
