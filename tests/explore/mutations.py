"""Rules that are broken on purpose, one at a time: the proof that the search sees a split where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from protocol.agreement import ballot, policy, proposer, voter
from protocol.agreement.ballot import Justification, highest
from protocol.chain import electorate, records, store
from protocol.chain.base import Base
from protocol.chain.store import VoteFiles
from protocol.sync.fork_choice import Candidate
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import is_authentic, rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, LockName, Record, Step, ViewChange, Vote, VoterState
from tests.explore import certificates, motions, returning
from tests.explore.council import Seats
from tests.explore.search import WHOLE, Config


@dataclass(frozen=True)
class Mutation:
    """how: what is wrong with the build, in a phrase.  config: the smallest search that finds it; None for the returns."""

    name: str
    how: str
    config: Config | None
    patches: Callable[[], Sequence[Any]]


@contextmanager
def mutated(mutation: Mutation | None) -> Iterator[None]:
    """Within, the rule is broken."""
    patches = mutation.patches() if mutation is not None else ()
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patches):
            each.stop()


def _lock_rule() -> Sequence[Any]:
    return [patch.object(Justification, "highest_locks", lambda self: [])]


def _quorum() -> Sequence[Any]:
    real = electorate.quorum_size
    modules = (electorate, records, policy)
    return [patch.object(module, "quorum_size", lambda electors: max(1, real(electors) - 1)) for module in modules]


def _persistence() -> Sequence[Any]:
    return [patch.object(VoteFiles, "save", lambda self, round, tip, raw: None)]


def _proof_check() -> Sequence[Any]:
    modules = (proposer, ballot, motions)
    return [patch.object(module, "check_lock", lambda run, ballot, record, lock, proof: None) for module in modules]


def _monotony() -> Sequence[Any]:
    real = ballot.view_change_of

    def view_change_of(kept: VoterState, ballot: ballot.Ballot, held: list[PeerId], plan: Hash | None) -> ViewChange | None:
        return real(kept.model_copy(update={"attempt": ballot.attempt}), ballot, held, plan)

    return [patch.object(voter, "enter", lambda kept, attempt: kept), patch.object(voter, "view_change_of", view_change_of)]


def _absent_lists() -> Sequence[Any]:
    def verify_votes(run: Hash, base: Base, record: Record, certificate: Certificate, step: Step) -> None:
        """Every signature counts that holds for some absent list."""
        lists: list[list[str]] = [list(certificate.absent), *([str(peer)] for peer in base.electors)]
        counted = []
        for signature in certificate.votes:
            for absent in lists:
                vote = Vote(
                    round=record.round,
                    base=base.tip,
                    attempt=certificate.attempt,
                    step=step,
                    absent=absent,
                    record_hash=records.record_hash(record),
                )
                statement = rebuild(run, Vote.KIND, PeerId(signature.peer), vote.encode(), signature.signature)
                if is_authentic(statement):
                    counted.append(signature)
                    break
        if len(counted) < electorate.quorum_size(len(records.voters_of(base, record.members, certificate.absent))):
            raise Malformed("too few votes")

    return [patch.object(module, "verify_votes", verify_votes) for module in (records, ballot, voter, certificates)]


def _reduced_as_full() -> Sequence[Any]:
    def highest_locks(self: Justification) -> list[LockName]:
        return highest([lock for roll in self.rolls.values() for lock in (roll.lock, roll.reduced)])

    return [patch.object(Justification, "highest_locks", highest_locks)]


def _confirming() -> Sequence[Any]:
    return [patch.object(store, "is_locked_elsewhere", lambda kept, record: False)]


def _coming() -> Sequence[Any]:
    return [patch.object(Candidate, "_wins", lambda self, other: False)]


def _all() -> Sequence[Any]:
    return [patch.object(returning, "follows", lambda counted: 2 * counted.on > returning.LARGEST)]


def _liar(seat: int, *absences: Seats) -> Config:
    """The liar proposes in attempt 0 or in attempt 1."""
    return Config((seat,), 2, (WHOLE, *absences), progress=False, confirming=False)


MUTATIONS = (
    Mutation("lock-rule", "a motion need not carry on the highest lock that its rolls name", _liar(1), _lock_rule),
    Mutation("quorum", "one vote less than a quorum certifies", _liar(0), _quorum),
    Mutation("persistence", "what binds an elector is forgotten at a restart", _liar(0), _persistence),
    Mutation("proof-check", "a lock that is carried on needs no proof", _liar(1), _proof_check),
    Mutation("monotony", "an elector votes in a lower attempt after its roll for a higher one", _liar(1), _monotony),
    Mutation("absent-lists", "votes with different absent lists add up", _liar(1, (3,)), _absent_lists),
    Mutation(
        "reduced-as-full", "locks of a part count as locks of the whole electorate", _liar(1, (0, 2, 3)), _reduced_as_full
    ),
    Mutation("confirming", "who is locked on another record confirms one", Config((0,), 2, progress=False), _confirming),
)

RETURNS = (
    Mutation("coming", "who is on a branch that loses does not count as coming over to the one that wins", None, _coming),
    Mutation("all-electors", "a branch is followed by more than half of all electors, in place of those heard", None, _all),
)
"""Rules about who follows whom, which are found by going through the returns."""
