"""Which record proposals can be put to the vote, given what has been said: by an honest proposer and by a liar.

An honest one is the real `Proposer`, which has heard any quorum of view changes.  A liar assembles a record proposal from
any view changes, its own and others', with any proof, and anything is tried that the checks of the real voter might let
through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple

from protocol.agreement.ballot import Ballot, Justification, check_lock, check_view_change, justify
from protocol.agreement.events import Send
from protocol.agreement.proposer import Proposer, ViewChangeLog
from protocol.allreduce.assignment import plan_hash
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_VIEW_CHANGE_BYTES
from protocol.wire.messages import Certificate, RecordProposal, Step, ViewChange, unpack
from tests.explore.certificates import Assembled
from tests.explore.council import NAMES, BallotKey, Council, LockKey, Seats, ViewChangeKey, VoteKey
from tests.protocol.council import RUN

Effect = tuple[LockKey | None, ...]
SignedViewChange = tuple[int, ViewChangeKey]
"""A view change and the seat of its sender."""


class RecordProposalKey(NamedTuple):
    """What matters of a record proposal to a voter: which record, and the lock that it carries on."""

    ballot: BallotKey
    record: int
    carried: LockKey | None


class Candidates:
    """Record proposals that are looked for as they are asked for, and remembered."""

    def __init__(self, search: Iterator[tuple[RecordProposalKey, RecordProposal]]) -> None:
        self._search, self._found = search, list[tuple[RecordProposalKey, RecordProposal]]()

    def __iter__(self) -> Iterator[tuple[RecordProposalKey, RecordProposal]]:
        yield from self._found
        for each in self._search:
            self._found.append(each)
            yield each


class RecordProposals:
    """Finds the proposals for one record in one ballot.  liars: their seats.  absences: the lists that are explored."""

    def __init__(self, council: Council, liars: Seats, absences: Sequence[Seats]) -> None:
        self._council, self._liars, self._absences = council, liars, absences
        self._ballots: dict[BallotKey, Ballot] = {}
        self._found: dict[tuple[object, ...], Candidates] = {}
        self._own: dict[tuple[BallotKey, int], list[ViewChangeKey]] = {}
        self._effects: dict[tuple[BallotKey, int, ViewChangeKey], Effect] = {}
        self._proven: dict[tuple[object, ...], bool] = {}
        self._justified: dict[tuple[object, ...], list[LockKey] | None] = {}

    def ballot(self, key: BallotKey) -> Ballot:
        """The real ballot."""
        if key not in self._ballots:
            self._ballots[key] = self._council.ballot(key)
        return self._ballots[key]

    def leader(self, key: BallotKey) -> int:
        """The seat of the proposer of a ballot."""
        return self._council.peers.index(self.ballot(key).proposer)

    def find(
        self, key: BallotKey, record: int, heard: tuple[frozenset[ViewChangeKey], ...], assembled: Assembled
    ) -> Candidates:
        """The record proposals for this record, one for each lock that it can carry on, or without one.

        heard: the view changes for this ballot of each honest elector that were sent, by seat; liars need none.
        assembled: what the votes prove.
        """
        known = (key, record, heard, assembled.provable[record])
        found = self._found.get(known)
        if found is None:
            found = self._found[known] = Candidates(self._search(key, record, heard, assembled.proofs))
        return found

    def _search(
        self, key: BallotKey, record: int, heard: Sequence[frozenset[ViewChangeKey]], proofs: Mapping[LockKey, Certificate]
    ) -> Iterator[tuple[RecordProposalKey, RecordProposal]]:
        leader, found = self.leader(key), set[RecordProposalKey]()
        for view_changes in self._choices(key, heard):
            for carried, proof in self._carried(key, record, view_changes, proofs):
                name = RecordProposalKey(key, record, carried)
                if name in found:
                    continue
                if leader in self._liars:
                    signed = [self._council.view_change(*view_change) for view_change in view_changes]
                    proposal: RecordProposal | None = self._council.record_proposal(key, record, signed, proof)
                else:
                    proposal = self.proposed(key, record, view_changes, proofs)
                if proposal is not None and proposal.record == self._council.records[record]:
                    found.add(name)
                    yield name, proposal

    def _choices(self, key: BallotKey, heard: Sequence[frozenset[ViewChangeKey]]) -> Iterator[tuple[SignedViewChange, ...]]:
        """The view changes of every smallest quorum.

        More view changes never allow more: of a larger set, the view change that names the lock to be carried on, and others
        of it, are a quorum which allows the same.
        """
        sent = [
            [
                (seat, view_change)
                for view_change in (
                    self._own_view_changes(key, seat) if seat in self._liars else sorted(heard[seat], key=repr)
                )
            ]
            for seat in self._council.voters(key.absent)
        ]
        for senders in combinations([view_changes for view_changes in sent if view_changes], self.ballot(key).quorum):
            yield from product(*senders)

    def _own_view_changes(self, key: BallotKey, seat: int) -> list[ViewChangeKey]:
        """What a liar can say in a view change: any lock of a lower attempt, of the whole electorate or of a part.

        Of view changes that alone have the same effect, one is enough.
        """
        if (key, seat) not in self._own:
            locks = [
                LockKey(attempt, absent, record)
                for attempt in range(key.attempt)
                for absent in self._absences
                for record in range(len(NAMES))
            ]
            full = [None, *(lock for lock in locks if not lock.absent)]
            reduced = [None, *(lock for lock in locks if lock.absent)]
            view_changes = [ViewChangeKey(key.attempt, key.absent, lock, other) for lock, other in product(full, reduced)]
            different = {self._effect(key, seat, view_change): view_change for view_change in reversed(view_changes)}
            self._own[key, seat] = list(reversed(different.values()))
        return self._own[key, seat]

    def _effect(self, key: BallotKey, seat: int, view_change: ViewChangeKey) -> Effect:
        """The locks that a quorum would have to carry on if this were its only view change."""
        if (key, seat, view_change) not in self._effects:
            council, ballot, body = self._council, self.ballot(key), self._council.view_change_body(view_change)
            assert check_view_change(ballot, body) is None
            alone = Justification(ballot, {council.peers[seat]: body}).highest_locks()
            self._effects[key, seat, view_change] = tuple(council.lock_key(name) for name in alone)
        return self._effects[key, seat, view_change]

    def _carried(
        self, key: BallotKey, record: int, view_changes: tuple[SignedViewChange, ...], proofs: Mapping[LockKey, Certificate]
    ) -> list[tuple[LockKey | None, Certificate | None]]:
        """Locks on this record that these view changes let a proposal carry on, with their proofs; (None, None) for none."""
        names = self._highest(key, view_changes)
        if not names:
            return [] if names is None else [(None, None)]
        carried: list[tuple[LockKey | None, Certificate | None]] = []
        for lock in names:
            if lock.record == record:
                proof = proofs.get(lock) or self._council.forged(VoteKey(Step.FIRST, *lock))
                if self._proves(key, lock, proof):
                    carried.append((lock, proof))
        return carried

    def _highest(self, key: BallotKey, view_changes: tuple[SignedViewChange, ...]) -> list[LockKey] | None:
        """The locks of which one must be carried on; None when the view changes justify nothing.

        Asked once for all view changes with the same effects.  The voter that is shown the proposal opens those in it again.
        """
        known = (key, tuple([(seat, self._effect(key, seat, view_change)) for seat, view_change in view_changes]))
        if known not in self._justified:
            try:
                names = justify(
                    RUN, self.ballot(key), [self._council.view_change(*view_change) for view_change in view_changes]
                ).highest_locks()
                locks = dict.fromkeys(self._council.lock_key(name) for name in names)
                self._justified[known] = [lock for lock in locks if lock is not None]
            except Malformed:
                self._justified[known] = None
        return self._justified[known]

    def _proves(self, key: BallotKey, lock: LockKey, proof: Certificate) -> bool:
        known = (key, lock, tuple(vote.signature for vote in proof.votes))
        if known not in self._proven:
            name = self._council.lock_name(lock)
            assert name is not None
            try:
                check_lock(RUN, self.ballot(key), self._council.records[lock.record], name, proof)
                self._proven[known] = True
            except Malformed:
                self._proven[known] = False
        return self._proven[known]

    def proposed(
        self, key: BallotKey, record: int, view_changes: Sequence[SignedViewChange], proofs: Mapping[LockKey, Certificate]
    ) -> RecordProposal | None:
        """The proposal of an honest proposer that has heard these view changes, and whose exchange gave `record`."""
        council, leader = self._council, self.leader(key)
        state = council.state(leader, None)
        state.go_to_attempt(key.attempt, 0.0)
        state.results[plan_hash(council.plan)] = (tuple(council.indices[record]), council.provenance)
        log = ViewChangeLog(state)
        for seat, view_change in view_changes:
            for lock in (view_change.lock, view_change.reduced):
                if lock is not None:
                    proof = proofs.get(lock) or council.forged(VoteKey(Step.FIRST, *lock))
                    log.on_lock(council.peers[seat], council.lock(lock.record, proof))
            sender, body, envelope = unpack(council.view_change(seat, view_change), RUN, max_bytes=MAX_VIEW_CHANGE_BYTES)
            assert isinstance(body, ViewChange)
            log.on_view_change(sender, body, envelope.signature, {}, 0.0)
        effects = Proposer(state, log).lead(self.ballot(key), council.view(key.absent), 0.0)
        bodies = [effect.body for effect in effects if isinstance(effect, Send)]
        return next((body for body in bodies if isinstance(body, RecordProposal)), None)
