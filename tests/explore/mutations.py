"""Rules that are broken on purpose, one at a time: the proof that the search sees a split where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from protocol.agreement import ballot, policy, proposer, voter
from protocol.agreement.ballot import Justification, highest
from protocol.chain import electorate, records, store
from protocol.chain.base import Base
from protocol.chain.finality import Finality, Unconfirmed
from protocol.chain.store import VoteFiles
from protocol.node.round_parts import VoteLog
from protocol.sync import fork_choice
from protocol.sync.fork_choice import Candidate, Constituency, ForkChoice
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import is_authentic, rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, LockName, Record, Step, ViewChange, Vote, VoterState
from tests.explore import certificates, record_proposals, returning
from tests.explore.council import Seats
from tests.explore.parts import Parting, Votes
from tests.explore.search import WHOLE, Config


@dataclass(frozen=True)
class Mutation:
    """A broken rule.

    how: what is wrong with the build, in a phrase.  config: the smallest search that finds it; None for the returns.
    """

    name: str
    how: str
    config: Config | Parting | None
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
    modules = (proposer, ballot, record_proposals)
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
        return highest(
            [lock for view_change in self.view_changes.values() for lock in (view_change.lock, view_change.reduced)]
        )

    return [patch.object(Justification, "highest_locks", highest_locks)]


def _confirming() -> Sequence[Any]:
    return [patch.object(store, "is_locked_elsewhere", lambda kept, record: False)]


def _coming() -> Sequence[Any]:
    return [patch.object(Candidate, "_wins", lambda self, other: False)]


def _all() -> Sequence[Any]:
    return [patch.object(returning, "follows", lambda counted: 2 * counted.on > returning.LARGEST)]


# Rules about several tips.


def _confirmation_kept() -> Sequence[Any]:
    return [patch.object(Votes, "confirm", lambda self, records: None)]


def _one_confirmation() -> Sequence[Any]:
    def is_bound_elsewhere(self: VoteFiles, round: int, tip: Hash, record: Hash) -> bool:
        return store.is_locked_elsewhere(store.read_voter_state(self.load(round, tip)), record)

    return [patch.object(VoteFiles, "is_bound_elsewhere", is_bound_elsewhere)]


def _bound_stays() -> Sequence[Any]:
    return [patch.object(ForkChoice, "_is_bound_elsewhere", lambda self, branch, round: False)]


def _bound_abstains() -> Sequence[Any]:
    return [*_bound_stays(), patch.object(VoteLog, "_is_bound_elsewhere", lambda self: False)]


def _confirmed_abstains() -> Sequence[Any]:
    real = ForkChoice.back_to

    async def load(self: VoteLog, base: Base) -> tuple[VoterState | None, bool]:
        return self._replica.store.votes.load(base.round, base.tip), self._is_bound_elsewhere()  # type: ignore[return-value]

    def back_to(self: ForkChoice) -> int | None:
        with patch.object(Votes, "confirmed", lambda self: frozenset()):
            return real(self)

    return [patch.object(VoteLog, "load", load), patch.object(ForkChoice, "back_to", back_to)]


def _away() -> Sequence[Any]:
    real = fork_choice.Standpoint
    return [patch.object(fork_choice, "Standpoint", lambda tip, was_away, *more: real(tip, False, *more))]


def _work() -> Sequence[Any]:
    real = Constituency.rank
    return [patch.object(Constituency, "rank", lambda self, first, part: real(self, first, part)._replace(lacks_most=False))]


def _final_wins() -> Sequence[Any]:
    real = ForkChoice._wins

    def wins(self: ForkChoice, branch: Any, common: int, *more: Any) -> bool | None:
        final, branch.final = branch.final, common
        try:
            return real(self, branch, common, *more)
        finally:
            branch.final = final

    return [patch.object(ForkChoice, "_wins", wins)]


def _final_by_all() -> Sequence[Any]:
    real = Finality.after

    def after(self: Finality, electors: tuple[PeerId, ...], quorum: int, certificate: Certificate, members: Any) -> Finality:
        """Votes for provisional records confirm, also those below."""
        found = real(self, electors, quorum, certificate, members)
        signed = {**self.signed, **{PeerId(vote.peer): 1 << 20 for vote in certificate.votes}}
        left = tuple(each for each in found.unconfirmed if not replace(each, since=0).is_confirmed(signed))
        return Finality(found.rounds, left, MappingProxyType(signed if left else {}))

    return [patch.object(Finality, "after", after)]


def _confirmable() -> Sequence[Any]:
    return [patch.object(Unconfirmed, "is_confirmable", lambda self, newest: True)]


def _stuck() -> Sequence[Any]:
    return [patch.object(fork_choice, "is_stuck", lambda electors, counted: False)]


def _unheard() -> Sequence[Any]:
    real = fork_choice.is_stuck
    return [patch.object(fork_choice, "is_stuck", lambda electors, counted: real(electors, replace(counted, unheard=0)))]


def _ahead() -> Sequence[Any]:
    real = fork_choice.is_stuck
    return [patch.object(fork_choice, "is_stuck", lambda electors, counted: len(electors) == 3 and real(electors, counted))]


def _says_bound() -> Sequence[Any]:
    return [patch.object(fork_choice.Standpoint, "is_bound", False)]


def _least() -> Sequence[Any]:
    return [patch.object(Constituency, "least", lambda self, weights, me, heard: 1)]


def _liar(seat: int, *absences: Seats) -> Config:
    """The liar proposes in attempt 0 or in attempt 1."""
    return Config((seat,), 2, (WHOLE, *absences), progress=False, confirming=False)


MUTATIONS = (
    Mutation(
        "lock-rule", "a record proposal need not carry on the highest lock that its view changes name", _liar(1), _lock_rule
    ),
    Mutation("quorum", "one vote less than a quorum certifies", _liar(0), _quorum),
    Mutation("persistence", "what binds an elector is forgotten at a restart", _liar(0), _persistence),
    Mutation("proof-check", "a lock that is carried on needs no proof", _liar(1), _proof_check),
    Mutation("monotony", "an elector votes in a lower attempt after its view change for a higher one", _liar(1), _monotony),
    Mutation("absent-lists", "votes with different absent lists add up", _liar(1, (3,)), _absent_lists),
    Mutation(
        "reduced-as-full", "locks of a part count as locks of the whole electorate", _liar(1, (0, 2, 3)), _reduced_as_full
    ),
    Mutation("confirming", "who is locked on another record confirms one", Config((0,), 2, progress=False), _confirming),
)

TWO = Parting(2, (1, 1))
LOSES_SEATS = Parting(2, (1, 1), loses_seats=True)
THREE = Parting(3, (1, 1, 1), restarts=False, settles=False)
YOUNG = replace(THREE, loses_seats=True)
PARTS = (
    Mutation("confirmation-kept", "what an elector confirmed is not on its disk", THREE, _confirmation_kept),
    Mutation("locked-stays", "who is locked on another record follows a provisional one", TWO, _bound_stays),
    Mutation("locked-abstains", "who is locked on another record follows, and votes above", THREE, _bound_abstains),
    Mutation("confirmed-abstains", "who confirmed a record returns to the tip and votes there", THREE, _confirmed_abstains),
    Mutation("away", "who was away counts as off a record", TWO, _away),
    Mutation("work", "the recent work decides nothing", Parting(2, (3, 1)), _work),
    Mutation(
        "final-wins",
        "a final record does not win over a provisional one of members with most of the work",
        Parting(3, (5, 1, 1), restarts=False),
        _final_wins,
    ),
    Mutation("final-by-all", "votes in ballots of a part confirm", THREE, _final_by_all),
    Mutation("confirmable", "a part without a quorum confirms its records", LOSES_SEATS, _confirmable),
    Mutation("stuck", "electors without a quorum wait for one that is locked elsewhere", TWO, _stuck),
    Mutation("unheard", "electors that are not heard count towards that quorum", replace(THREE, settles=True), _unheard),
    Mutation("ahead", "a branch holds that its own last electors cannot go on with", replace(YOUNG, settles=True), _ahead),
    Mutation("says-bound", "who is bound to a record counts as coming over from it", TWO, _says_bound),
    Mutation(
        "least", "an open run's founder follows any record without a vote", Parting(1, (1, 1, 1, 1), is_open=True), _least
    ),
    Mutation("one-confirmation", "who confirmed a record confirms another one on the same tip", THREE, _one_confirmation),
)
"""Rules about several tips.  The last one takes half a minute."""

RETURNS = (
    Mutation("coming", "who is on a branch that loses does not count as coming over to the one that wins", None, _coming),
    Mutation("all-electors", "a branch is followed by more than half of all electors, in place of those heard", None, _all),
)
"""Rules about who follows whom, which are found by going through the returns."""
