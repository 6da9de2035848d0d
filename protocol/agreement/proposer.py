"""The proposer of a round, which proposes a plan, proposes a record and counts the votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.agreement.ballot import (
    MAX_ATTEMPT,
    Ballot,
    Justification,
    average_statement,
    check_lock,
    check_view_change,
    demanded,
    flaw_of_record_proposal,
    held_in,
    justify,
    plan_of,
)
from protocol.agreement.events import Reject, RoundEffect, Send, View
from protocol.agreement.policy import RESEND_S, VIEW_CHANGE_S
from protocol.agreement.round_state import MAX_LEAD, RoundState
from protocol.allreduce.assignment import plan_hash
from protocol.chain.records import index_root, record_hash
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ELECTORS, MAX_MEMBERS, is_authentic, rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Commit,
    Lock,
    LockName,
    Plan,
    PrevoteCertificate,
    Proposal,
    Provenance,
    Record,
    RecordProposal,
    Report,
    Signature,
    Step,
    ViewChange,
    Vote,
)

# ------------------------------------------------------------------------------------------------------------------------
# View changes and locks that a peer has received in a round.  They determine the attempt that is due, and its proposal.


LOCKS_KEPT = 2
"""Number of locks kept for each voter: one of the whole electorate, and one of a part."""


class ViewChangeLog:
    """Log of each voter's view change for its highest attempt, and of the locks that each voter proved.

    If electors are heard, only their view changes advance us to another attempt, because keys are free.
    """

    def __init__(self, state: RoundState) -> None:
        self._state = state
        self._view_changes: dict[PeerId, tuple[ViewChange, bytes]] = {}
        """View change of each voter, decoded and in the bytes received."""
        self._locks: dict[PeerId, list[Lock]] = {}
        self._pulled: dict[PeerId, None] = {}
        """Voters that we have followed to a higher attempt."""
        self._members_vote = not state.base.electors

    # -- hearing ------------------------------------------------------------------------------------------------------

    def on_view_change(
        self, sender: PeerId, view_change: ViewChange, signature: bytes, view: View, now: float
    ) -> str | None:
        """Record a view change; return an objection if it is not accepted, otherwise None.

        An attempt that some honest voter has entered becomes due for us as well.  With fewer than four electors every voter
        counts as honest, but advances us by at most `MAX_LEAD` attempts.
        """
        state, electors = self._state, self._state.base.electors
        if not state.is_for_this_round(view_change.round, view_change.base):
            return None
        if sender not in electors and (sender not in state.closing.readys or set(view_change.absent) != set(electors)):
            return "its sender does not vote"
        if view_change.attempt >= MAX_ATTEMPT:
            return "there is no such attempt"
        known = self._view_changes.get(sender)
        if known is not None and known[0].attempt > view_change.attempt:
            return None
        raw = rebuild(state.settings.run, ViewChange.KIND, sender, view_change.encode(), signature).raw
        self._view_changes[sender] = (view_change, raw)
        self._members_vote = state.closing.hears_no_elector(view)
        ahead = sorted(self._entered().values(), reverse=True)
        needed = 1 if self._members_vote else state.ballot(0, ()).some_honest
        if len(ahead) >= needed:
            limit = ahead[0] if needed > 1 else state.attempt + MAX_LEAD
            state.go_to_attempt(min(ahead[needed - 1], limit), now)
        return None

    def on_lock(self, sender: PeerId, lock: Lock) -> None:
        """Keep the proof of a lock for the view change that names the lock.

        Only a lock whose record can be proposed is kept: the proof names only the record, so the index sent with it may be
        wrong.
        """
        state = self._state
        if sender not in state.base.electors and sender not in state.closing.readys:
            return
        if flaw_of_record_proposal(state.settings, state.base, lock.record, lock.index, lock.provenance) is not None:
            return
        kept = [known for known in self._locks.get(sender, []) if bool(known.proof.absent) != bool(lock.proof.absent)]
        self._locks[sender] = [*kept, lock][-LOCKS_KEPT:]

    # -- the attempt that is due --------------------------------------------------------------------------------------

    def _entered(self) -> dict[PeerId, int]:
        """Return the attempt that each voter has entered; of members that vote, only of those with recent work, if any."""
        base = self._state.base
        voters = base.electors if not self._members_vote else base.work.tokens or self._view_changes
        return {peer: view_change.attempt for peer, (view_change, _) in self._view_changes.items() if peer in voters}

    def pull(self) -> int:
        """Return the highest attempt, within `MAX_LEAD`, of a voter that we have not followed before; 0 if none is ahead."""
        ahead = {
            peer: attempt
            for peer, attempt in self._entered().items()
            if 0 < attempt - self._state.attempt <= MAX_LEAD and peer not in self._pulled
        }
        highest = max(ahead.values(), default=0)
        self._pulled |= {peer: None for peer, attempt in ahead.items() if attempt == highest}
        return highest

    def present_in(self, ballot: Ballot) -> int:
        """Return the number of voters of this ballot that have entered its attempt or a later one, including ourselves."""
        others = sum(
            view_change.attempt >= ballot.attempt
            for peer, (view_change, _) in self._view_changes.items()
            if peer in ballot.voters and peer != self._state.me
        )
        return others + (self._state.me in ballot.voters)

    def is_closing_wanted(self) -> bool:
        """Return True if some honest voter other than us wants the round closed; members do not count beside electors."""
        electors = self._state.base.electors
        others = sum(peer != self._state.me for peer in self._view_changes if not electors or peer in electors)
        return others >= self._state.ballot(0, ()).some_honest

    # -- justification of a proposal ----------------------------------------------------------------------------------

    def provable(self, ballot: Ballot) -> dict[PeerId, bytes]:
        """Return the view changes for this ballot whose locks we can prove, sorted by voter."""
        view_changes: dict[PeerId, bytes] = {}
        for peer in sorted(ballot.voters):
            view_change, raw = self._view_changes.get(peer, (None, b""))
            if (
                view_change is not None
                and check_view_change(ballot, view_change) is None
                and self._has_proofs(ballot, view_change)
            ):
                view_changes[peer] = raw
        return view_changes

    def satisfiable(self, ballot: Ballot, view_changes: dict[PeerId, bytes]) -> dict[PeerId, bytes]:
        """Return these view changes if we hold all READYs that they demand, on our state.

        Otherwise return only the view changes for which we hold all READYs that they name.  A voter may hold a READY that we
        have not received yet, or falsely claim to hold one.
        """
        state, ours = self._state, set[PeerId]()
        for peer in state.base.electors:
            ready = state.closing.ready_of(peer)
            if ready is not None and ready.state == state.outer:
                ours.add(peer)
        if demanded(ballot, [self._view_changes[peer][0] for peer in view_changes]) <= ours:
            return view_changes
        return {
            peer: raw
            for peer, raw in view_changes.items()
            if (held_in(state.base.electors, self._view_changes[peer][0].held) or set()) <= ours
        }

    def lock_to_carry(self, justification: Justification) -> Lock | None:
        """Return the lock that the view changes oblige us to carry on; None if they name none."""
        for name in justification.highest_locks():
            lock = self._proven(justification.ballot, name)
            if lock is not None:
                return lock
        return None

    def _has_proofs(self, ballot: Ballot, view_change: ViewChange) -> bool:
        return all(
            name is None or self._proven(ballot, name) is not None for name in (view_change.lock, view_change.reduced)
        )

    def _proven(self, ballot: Ballot, name: LockName) -> Lock | None:
        """Return the lock with this name, and its proof; None if we do not have it."""
        for lock in (lock for locks in self._locks.values() for lock in locks):
            try:
                check_lock(self._state.settings.run, ballot, lock.record, name, lock.proof)
            except Malformed:
                continue
            return lock
        return None


# ------------------------------------------------------------------------------------------------------------------------


@dataclass
class OwnAttempt:
    """One ballot of which we are the proposer.

    first, second: signatures of votes, by voter.  sent: the trio time at which we last sent a statement.  asks: True once
    our proposal asks the members for the result, because our exchange cannot give it, or makes no progress.
    """

    ballot: Ballot
    view_changes: list[bytes]
    sent: float
    plan: Plan | None = None
    record_proposal: RecordProposal | None = None
    first: dict[PeerId, bytes] = field(default_factory=dict)
    second: dict[PeerId, bytes] = field(default_factory=dict)
    proof: PrevoteCertificate | None = None
    asks: bool = False

    def audience(self) -> tuple[PeerId, ...]:
        """Return the members of the plan or the record, and the voters."""
        named = self.record_proposal.record if self.record_proposal is not None else self.plan
        members = named.members if named is not None else []
        return tuple(dict.fromkeys([*(PeerId(member.peer) for member in members), *self.ballot.voters]))

    def certificate(self, votes: dict[PeerId, bytes]) -> Certificate:
        """Return a certificate made of these votes."""
        signatures = [Signature(peer=peer, signature=votes[peer]) for peer in sorted(votes)]
        return Certificate(attempt=self.ballot.attempt, absent=list(self.ballot.absent), votes=signatures)


class Proposer:
    """Leader of our own attempts, which uses the view changes in `view_changes`."""

    def __init__(self, state: RoundState, view_changes: ViewChangeLog) -> None:
        self._state, self._view_changes = state, view_changes
        self._mine: OwnAttempt | None = None
        self._false_reporters: set[PeerId] = set()
        """Members whose report cannot be the result of our plan; each costs us one check in a round."""

    @property
    def is_proposing(self) -> bool:
        """True if an attempt of ours is under way."""
        return self._mine is not None and self._mine.ballot.attempt == self._state.attempt

    # -- an attempt begins --------------------------------------------------------------------------------------------

    def lead(self, ballot: Ballot, view: View, now: float) -> list[RoundEffect]:
        """Begin our attempt once a quorum has entered it: carry on a lock, otherwise a plan; without either, make a plan.

        ballot: the ballot that is due, of which we are the proposer.
        """
        if self._mine is not None and self._mine.ballot.attempt == ballot.attempt:
            return self._resend(self._mine, now)
        view_changes = self._view_changes.provable(ballot)
        if len(view_changes) < ballot.quorum:
            return []
        justification = justify(self._state.settings.run, ballot, [*view_changes.values()])
        lock = self._view_changes.lock_to_carry(justification)
        plan = self._plan_taken_up(justification) if lock is None else None
        if lock is None and plan is None:
            view_changes = self._view_changes.satisfiable(ballot, view_changes)
            plan = self._new_plan(ballot, view_changes, view)
        members = lock.record.members if lock is not None else plan.members if plan is not None else []
        ballot = self._state.ballot(ballot.attempt, ballot.absent, members)
        view_changes = {peer: raw for peer, raw in view_changes.items() if peer in ballot.voters}
        if not members or not ballot.may_propose(self._state.me) or len(view_changes) < ballot.quorum:
            return []
        self._mine = mine = OwnAttempt(ballot, [*view_changes.values()], now, plan)
        if lock is not None:
            return self._put(mine, lock.record, lock.index, lock.provenance, now, lock.proof)
        assert plan is not None
        result = self._state.results.get(plan_hash(plan))
        if result is not None:
            return self._put(mine, self._record(plan, result[0]), *result, now)
        mine.asks = all(member.peer != self._state.me for member in plan.members)
        return [Send(mine.audience(), self._proposal(mine, plan))]

    def _plan_taken_up(self, justification: Justification) -> Plan | None:
        """Return the plan that was accepted before, if it is still valid."""
        state = self._state
        if state.plan is None or not justification.takes_up(plan_hash(state.plan)):
            return None
        return state.plan if state.standing_plan() is not None else None

    def _new_plan(self, ballot: Ballot, view_changes: dict[PeerId, bytes], view: View) -> Plan | None:
        """Return a plan justified by these view changes; None while they are not a quorum, or our state is not known."""
        state = self._state
        if state.outer is None or len(view_changes) < ballot.quorum:
            return None
        justification = justify(state.settings.run, ballot, [*view_changes.values()])
        most = MAX_ELECTORS if ballot.members else MAX_MEMBERS
        return state.closing.make_plan(view, state.outer, justification.held(), most)

    def _proposal(self, mine: OwnAttempt, plan: Plan) -> Proposal:
        return Proposal(
            attempt=mine.ballot.attempt, absent=list(mine.ballot.absent), plan=plan, view_changes=mine.view_changes
        )

    # -- the vote -----------------------------------------------------------------------------------------------------

    def on_exchange_done(
        self, plan: Hash, entries: tuple[ChunkEntry, ...], provenance: Provenance, now: float
    ) -> list[RoundEffect]:
        """Keep the result of our complete exchange, and propose its record if we may.  plan: the hash of its plan."""
        state = self._state
        if state.is_false(entries):
            return []
        state.note_result(plan, entries, provenance, now)
        mine = self._mine
        if mine is None or not self.is_proposing or mine.record_proposal is not None:
            return []
        if mine.plan is None or plan_hash(mine.plan) != plan:
            return []
        return self._put(mine, self._record(mine.plan, entries), entries, provenance, now)

    def on_report(self, sender: PeerId, report: Report, now: float) -> list[RoundEffect]:
        """Propose the record of the result that a member reports, if our proposal asked for it and we have none.

        Only its form and its signatures are checked here; we audit it like any record proposal before we vote for it.  If
        the audit fails, our next attempt uses the report of another member.  It is not kept as the result of our exchange.
        """
        state, mine = self._state, self._mine
        if mine is None or not mine.asks or not self.is_proposing or mine.record_proposal is not None:
            return []
        plan = mine.plan
        if plan is None or report.plan != plan_hash(plan) or all(member.peer != sender for member in plan.members):
            return []
        if sender in self._false_reporters or index_root(report.index) in state.suspected or state.is_false(report.index):
            return []
        if not self._is_sound(report, plan):
            self._false_reporters.add(sender)
            return [Reject(sender, Report.KIND, "its result has another plan, or averages that no member signed")]
        return self._put(mine, self._record(plan, report.index), report.index, report.provenance, now)

    def _is_sound(self, report: Report, plan: Plan) -> bool:
        """Return True if this can be the result of the plan and members signed all averages, at 0.1 ms a signature."""
        run, base, index, provenance = self._state.settings.run, self._state.base, report.index, report.provenance
        record = self._record(plan, index)
        if flaw_of_record_proposal(self._state.settings, base, record, index, provenance) is not None:
            return False
        return plan_of(record, provenance) == plan and all(
            is_authentic(average_statement(run, Hash(report.plan), plan.members, chunk, entry, provenance))
            for chunk, entry in enumerate(index)
        )

    def _put(
        self,
        mine: OwnAttempt,
        record: Record,
        index: Sequence[ChunkEntry],
        provenance: Provenance,
        now: float,
        proof: Certificate | None = None,
    ) -> list[RoundEffect]:
        """Propose a record.  proof: the proof of the lock that it carries on, if it does."""
        mine.record_proposal = RecordProposal(
            attempt=mine.ballot.attempt,
            absent=list(mine.ballot.absent),
            record=record,
            index=list(index),
            provenance=provenance,
            view_changes=mine.view_changes,
            proof=proof,
        )
        mine.sent = now
        return [Send(mine.audience(), mine.record_proposal)]

    def _record(self, plan: Plan, entries: Sequence[ChunkEntry]) -> Record:
        return Record(
            round=plan.round,
            fragment=plan.fragment,
            previous=plan.base,
            members=plan.members,
            codec=self._state.settings.codec,
            result_root=index_root(entries),
            state_digest=plan.state_digest,
            weights=plan.weights,
            amendment=plan.amendment,
        )

    def on_vote(self, sender: PeerId, vote: Vote, signature: bytes, now: float) -> list[RoundEffect] | Commit:
        """Count a vote.  A quorum of first votes is a prevote certificate; a quorum of second votes certifies the record."""
        mine = self._mine
        if mine is None or mine.record_proposal is None or sender not in mine.ballot.voters:
            return []
        proposal = mine.record_proposal
        if (vote.attempt, vote.absent) != (proposal.attempt, proposal.absent) or vote.record_hash != record_hash(
            proposal.record
        ):
            return []
        if not self._state.is_for_this_round(vote.round, vote.base):
            return []
        votes = mine.first if vote.step is Step.FIRST else mine.second
        if sender not in votes:
            votes[sender] = signature
            self._state.move(now)
        if len(mine.second) >= mine.ballot.quorum:
            return Commit(record=proposal.record, index=proposal.index, certificate=mine.certificate(mine.second))
        if mine.proof is None and len(mine.first) >= mine.ballot.quorum:
            mine.proof = PrevoteCertificate(
                round=proposal.record.round,
                base=proposal.record.previous,
                record_hash=record_hash(proposal.record),
                certificate=mine.certificate(mine.first),
            )
            mine.sent = now
            return [Send(mine.ballot.voters, mine.proof)]
        return []

    def audience(self) -> tuple[PeerId, ...]:
        """Return all peers that our attempt concerns."""
        return self._mine.audience() if self._mine is not None else ()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _resend(self, mine: OwnAttempt, now: float) -> list[RoundEffect]:
        """Send unanswered statements again."""
        if now - mine.sent < RESEND_S or (mine.record_proposal is None and self._state.idle_s(now) < VIEW_CHANGE_S):
            return []  # the exchange makes progress: who lacks the plan is sent it by others
        mine.sent = now
        if mine.record_proposal is None:
            mine.asks = True
            return [Send(mine.audience(), self._proposal(mine, mine.plan))] if mine.plan is not None else []
        unmoved = tuple(peer for peer in mine.audience() if peer not in mine.first and peer not in mine.second)
        effects: list[RoundEffect] = [Send(unmoved, mine.record_proposal)] if unmoved else []
        if mine.proof is not None:
            unproven = tuple(peer for peer in mine.ballot.voters if peer not in mine.second)
            effects += [Send(unproven, mine.proof)] if unproven else []
        return effects

    def drop_attempt(self) -> None:
        """End our attempt, because its plan has a member that lied, but keep it if its record proposal is unaffected."""
        if (
            self._mine is None
            or self._mine.record_proposal is None
            or self._state.is_false(self._mine.record_proposal.index)
        ):
            self._mine = None
