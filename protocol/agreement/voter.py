"""The voter of a round, with its view changes, first votes and second votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.agreement.ballot import (
    Ballot,
    Justification,
    carries_lock,
    cast_first,
    cast_second,
    enter,
    flaw_of_plan,
    flaw_of_record_proposal,
    is_in,
    justify,
    objection_of_lock,
    objection_to_vote,
    plan_of,
    view_change_of,
)
from protocol.agreement.events import BeginExchange, ObtainResult, Persist, Reject, RoundEffect, Send, View
from protocol.agreement.policy import RESEND_S, VIEW_CHANGE_S
from protocol.agreement.round_state import MAX_LEAD, RoundState
from protocol.allreduce.assignment import plan_hash
from protocol.chain.base import RoundSettings
from protocol.chain.records import record_hash, verify_votes
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Member, Plan, PrevoteCertificate, Proposal, RecordProposal, Report, Step, Vote, VoterState


@dataclass
class SentViewChange:
    """Our newest view change.

    sent: the time of sending, in trio time.  to_all: True if we sent the view change to all voters, not only to the
    proposer.  answered: True if the proposer has proposed something.
    """

    ballot: Ballot
    sent: float
    to_all: bool = False
    answered: bool = False


class Voter:
    """Voter of one peer, which sends view changes and votes within the limits of `state.kept`.

    Every statement follows a `Persist` of the voter state that binds us from then on.
    """

    def __init__(self, state: RoundState) -> None:
        self._state = state
        self.newest: SentViewChange | None = None
        """Our newest view change."""
        self._plan: tuple[int, Plan] | None = None
        """The plan accepted last, and its attempt."""
        self._spoilt: Ballot | None = None
        """The last ballot whose proposer made a proposal that no honest peer accepts."""
        self._proposal: RecordProposal | None = None
        self._leader = state.me
        """The peer that sent the record proposal."""
        self.proof: PrevoteCertificate | None = None
        self._reported = -1e9
        """Time when we last reported a result, so that repeated proposals of others cost no more."""

    @property
    def is_voting(self) -> bool:
        """True if a record was proposed in the attempt that is due."""
        return self._proposal is not None and self._proposal.attempt == self._state.attempt

    # -- view changes -------------------------------------------------------------------------------------------------

    def change_view(self, view: View, now: float) -> tuple[list[RoundEffect], Ballot | None]:
        """Send our view change for the attempt that is due, or for the first later one whose proposer can propose.

        Return the effects and the ballot; the ballot is None if we do not vote in it.  The view change goes to the proposer.
        If there is no answer, or no more progress, it goes to all voters: they join an attempt that some honest voter is in,
        and forward statements that did not reach us.
        """
        state, ballot = self._state, self._due(view, now)
        if ballot is None or state.me not in ballot.voters or state.abstains:
            return [], None
        newest, effects = self.newest, list[RoundEffect]()
        if newest is not None and newest.ballot == ballot:
            moves = newest.answered and (self._is_exchanging() or state.idle_s(now) < VIEW_CHANGE_S)
            if moves or now - newest.sent < (RESEND_S if newest.to_all else VIEW_CHANGE_S):
                return [], ballot
            newest.sent, newest.to_all, to = now, True, ballot.voters
        else:
            self.newest, to = SentViewChange(ballot, now), (ballot.proposer,)
        if ballot.attempt > state.entered:
            effects.append(self._keep(enter(state.kept, ballot.attempt)))
        binding, plan = self._carried_lock(ballot, view), self._carried_plan(ballot, view)
        view_change = view_change_of(binding, ballot, state.closing.held(view, state.outer), plan)
        if view_change is None:
            return effects, ballot
        locks = [lock for lock in (binding.lock, binding.reduced) if lock is not None]
        return [*effects, *(Send((ballot.proposer,), lock) for lock in locks), Send(to, view_change)], ballot

    def _is_exchanging(self) -> bool:
        """Return True if, as far as we know, the accepted plan has no result yet."""
        plan = self._state.plan
        return plan is not None and plan_hash(plan) not in self._state.results and not self.is_voting

    # A round carries on a lock and a plan while the peers needed for it are present.  If members vote, only crashes are
    # tolerated, and too many members may be gone for a quorum to carry on a lock or a plan.  It is dropped in that case:
    # otherwise their deaths would end a run that has just begun.  It is also dropped if others here did most of the recent
    # work: they would not follow its record, and its members would make it for ever.

    def _carried_lock(self, ballot: Ballot, view: View) -> VoterState:
        """Return our voter state, but without locks if the lock for this ballot cannot be carried on."""
        kept = self._state.kept
        lock = kept.reduced if ballot.absent else kept.lock
        if lock is None or self._are_here(lock.record.members, ballot, view):
            return kept
        return kept.model_copy(update={"lock": None, "reduced": None})

    def _carried_plan(self, ballot: Ballot, view: View) -> Hash | None:
        """Return the hash of the plan that we accepted, if it is still valid and can be carried on."""
        state = self._state
        is_carried = state.plan is not None and self._are_here(state.plan.members, ballot, view)
        return state.standing_plan() if is_carried else None

    def _are_here(self, members: Sequence[Member], ballot: Ballot, view: View) -> bool:
        """Return True if a quorum of these members is present and others do not outweigh them, or if members do not vote."""
        closing, peers = self._state.closing, [PeerId(member.peer) for member in members]
        here = sum(not closing.is_gone(peer, view) for peer in peers)
        return not ballot.members or (here > len(peers) // 2 and not closing.are_outweighed(peers, view))

    def _due(self, view: View, now: float) -> Ballot | None:
        """Return the ballot that is due, after moving on to the first attempt whose proposer can propose."""
        state, closing = self._state, self._state.closing
        absent = closing.absent(view)
        members = () if set(state.base.electors) - set(absent) else closing.planned(view, state.outer)
        ballot = Ballot(state.base, state.attempt, absent, members)
        if not ballot.voters:
            return None
        for later in range(len(ballot.voters)):
            ballot = Ballot(state.base, state.attempt + later, absent, members)
            if self._can_propose(ballot, view):
                state.go_to_attempt(ballot.attempt, now)
                break
        return Ballot(state.base, state.attempt, absent, members)

    def _can_propose(self, ballot: Ballot, view: View) -> bool:
        """Return True if the ballot's proposer is alive, is ready (if any voter is), and did not stall rounds lately.

        Peers remember earlier rounds differently.  So our memory counts only until each voter has had its turn once, and
        until a timeout passes in this round; after that all peers try the same proposers.  Otherwise voters that distrust
        different proposers would go from attempt to attempt forever, each to a proposer that other voters skip.
        """
        state, proposer = self._state, ballot.proposer
        trusted = state.closing.lateness.proposers.share(proposer, state.base.round) > 0
        remembers = not state.losses and ballot.attempt < len(ballot.voters)
        if proposer != state.me and remembers and not trusted:
            return False
        ready = [peer for peer in ballot.voters if peer in state.closing.readys]
        return state.closing.lives(proposer, view) and (proposer in ready or not ready)

    @property
    def is_spoilt(self) -> bool:
        """True if the attempt that is due cannot succeed, because no honest peer accepts its proposal."""
        ballot = self.newest.ballot if self.newest is not None else None
        return ballot is not None and ballot == self._spoilt and ballot.attempt == self._state.attempt

    def proposer_to_blame(self) -> PeerId | None:
        """Return the proposer of our attempt if it has kept us waiting; None otherwise."""
        newest = self.newest
        if newest is None or newest.ballot.attempt != self._state.attempt:
            return None
        proposer, plan = newest.ballot.proposer, self._state.standing_plan()
        waits_for_it = not newest.answered or self._proposal is not None or plan in self._state.results
        return proposer if waits_for_it and proposer != self._state.me else None

    # -- proposals ----------------------------------------------------------------------------------------------------

    def on_proposal(self, sender: PeerId, proposal: Proposal, view: View, now: float) -> list[RoundEffect]:
        """Accept the plan, or reject it with a reason."""
        state, plan = self._state, proposal.plan
        ballot = state.ballot(proposal.attempt, proposal.absent, plan.members)
        objection = self._objection_to_proposal(sender, ballot, proposal, view)
        if objection is not None:
            return [Reject(sender, Proposal.KIND, objection)]
        flaw = flaw_of_proposal(state.settings, ballot, proposal)
        if flaw is not None:
            if sender == ballot.proposer:
                self._spoilt = ballot
            return [Reject(sender, Proposal.KIND, flaw)]
        if self._plan != (proposal.attempt, plan):
            self._plan = (proposal.attempt, plan)
            state.take_up(plan, proposal.attempt, now)
            state.go_to_attempt(proposal.attempt, now)
        self._answered(proposal.attempt)
        begin = [BeginExchange(plan)] if is_in(plan, state.me, state.closing.ready_of(state.me)) else []
        return [*begin, *self._report(sender, plan_hash(plan), now)]

    def _report(self, proposer: PeerId, plan: Hash, now: float) -> list[Send]:
        """Report the result of our exchange to a proposer that still proposes its plan, and so has no result.

        It may take no part in the exchange, or be stuck in it.
        """
        result = self._state.results.get(plan)
        if result is None or proposer == self._state.me or now - self._reported < VIEW_CHANGE_S:
            return []
        self._reported = now
        index, provenance, base = list(result[0]), result[1], self._state.base
        return [Send((proposer,), Report(round=base.round, base=base.tip, plan=plan, index=index, provenance=provenance))]

    def _objection_to_proposal(self, sender: PeerId, ballot: Ballot, proposal: Proposal, view: View) -> str | None:
        """Return our first reason to reject the proposal, which other peers may not share; None if there is none."""
        state, plan = self._state, proposal.plan
        objection = self._objection_to_ballot(sender, ballot, view)
        if objection is not None:
            return objection
        if self._plan is not None and self._plan[0] == ballot.attempt and self._plan[1] != plan:
            return "it is the second plan for one ballot"
        if state.outer is not None and plan.state != state.outer:
            return "its plan is based on another state than ours"
        return None

    def _objection_to_ballot(self, sender: PeerId, ballot: Ballot, view: View) -> str | None:
        state = self._state
        if state.decided is not None:
            return "the round is decided"
        if not ballot.is_sound or not ballot.may_propose(sender):
            return "it is not its sender's turn to propose"
        if ballot.attempt < max(state.kept.attempt, self._plan[0] if self._plan is not None else 0):
            return f"it is of attempt {ballot.attempt}, and attempt {state.attempt} was entered"
        if not state.closing.may_be_absent(ballot.absent, view):
            return "it leaves out an elector that we do not consider gone"
        if ballot.absent and ballot.attempt > state.attempt + MAX_LEAD:
            return "it is far ahead, and a quorum of only a part of the electors may consist of liars"
        return None

    def _answered(self, attempt: int) -> None:
        if self.newest is not None and self.newest.ballot.attempt == attempt:
            self.newest.answered = True

    # -- first votes --------------------------------------------------------------------------------------------------

    def on_record_proposal(self, sender: PeerId, proposal: RecordProposal, view: View, now: float) -> list[RoundEffect]:
        """Obtain the result of the proposed record, then vote for it; or reject the proposal with a reason."""
        state, record = self._state, proposal.record
        if self._proposal != proposal:
            objection = self._objection_to_record_proposal(sender, proposal, view)
            if objection is not None:
                return [Reject(sender, RecordProposal.KIND, objection)]
            self._proposal, self._leader, self.proof = proposal, sender, None
            state.go_to_attempt(proposal.attempt, now)
            state.move(now)
        self._answered(proposal.attempt)
        if record.result_root in state.obtained:
            return self._cast_first(proposal)
        sources = tuple(PeerId(member.peer) for member in record.members if member.peer != state.me)
        provenance = None if proposal.proof is not None else proposal.provenance  # a carried lock needs no audit
        again = record.result_root in state.suspected
        return [ObtainResult(record, tuple(proposal.index), sources, sender, provenance, again)]

    def _objection_to_record_proposal(self, sender: PeerId, proposal: RecordProposal, view: View) -> str | None:
        """Return the first reason not to vote for the proposed record; None if there is none."""
        state = self._state
        ballot = state.ballot(proposal.attempt, proposal.absent, proposal.record.members)
        objection = self._objection_to_ballot(sender, ballot, view)
        if objection is not None:
            return objection
        name = record_hash(proposal.record)
        objection = objection_to_vote(state.kept, Step.FIRST, proposal.attempt, list(proposal.absent), name)
        objection = objection or objection_of_lock(state.kept, proposal)
        if objection is not None:
            return objection
        flaw = flaw_of_record_proposal(state.settings, state.base, proposal.record, proposal.index, proposal.provenance)
        if flaw is not None:
            return flaw
        try:
            justification = justify(state.settings.run, ballot, proposal.view_changes)
            is_carried = carries_lock(state.settings.run, justification, proposal.record, proposal.proof)
        except Malformed as error:
            return str(error)
        return None if is_carried else self._objection_to_fresh(justification, proposal)

    def _objection_to_fresh(self, justification: Justification, proposal: RecordProposal) -> str | None:
        """Return the first reason not to vote for a record that does not carry on a lock; None if there is none."""
        state, plan = self._state, plan_of(proposal.record, proposal.provenance)
        if state.is_false(proposal.index):
            return "it has an average that is proven wrong"
        if state.outer is not None and proposal.record.state != state.outer:
            return "it is based on another state than ours"
        if plan != state.plan and not justification.allows_plan(plan, state.settings.max_members):
            return "its plan leaves out an elector that was ready"
        return None

    def _cast_first(self, proposal: RecordProposal) -> list[RoundEffect]:
        state = self._state
        ballot = state.ballot(proposal.attempt, proposal.absent, proposal.record.members)
        name = record_hash(proposal.record)
        if state.me not in ballot.voters or state.abstains:
            return []
        if objection_to_vote(state.kept, Step.FIRST, proposal.attempt, list(proposal.absent), name) is not None:
            return []  # a later attempt was entered while the result was fetched
        kept, vote = cast_first(state.kept, proposal)
        return self._say(kept, vote)

    # -- second votes -------------------------------------------------------------------------------------------------

    def on_prevote_certificate(self, sender: PeerId, proof: PrevoteCertificate) -> list[RoundEffect]:
        """Lock on the proposed record and cast a second vote, because a quorum has cast first votes for it."""
        state, proposal = self._state, self._proposal
        if state.decided is not None or proposal is None or record_hash(proposal.record) != proof.record_hash:
            return []
        if (proof.certificate.attempt, proof.certificate.absent) != (proposal.attempt, proposal.absent):
            return []
        if self.proof != proof:
            try:
                verify_votes(state.settings.run, state.base, proposal.record, proof.certificate, Step.FIRST)
            except Malformed as error:
                return [Reject(sender, PrevoteCertificate.KIND, str(error))]
            self.proof = proof
        return self._cast_second(proposal) if proposal.record.result_root in state.obtained else []

    def _cast_second(self, proposal: RecordProposal) -> list[RoundEffect]:
        state, proof = self._state, self.proof
        ballot = state.ballot(proposal.attempt, proposal.absent, proposal.record.members)
        name = record_hash(proposal.record)
        if proof is None or state.me not in ballot.voters or state.abstains:
            return []
        if objection_to_vote(state.kept, Step.SECOND, proposal.attempt, list(proposal.absent), name) is not None:
            return []
        kept, vote = cast_second(state.kept, proposal, proof.certificate)
        return self._say(kept, vote)

    def _say(self, kept: VoterState, vote: Vote) -> list[RoundEffect]:
        """Cast a vote, after writing it to disk unless it was cast before."""
        keep = [] if kept == self._state.kept else [self._keep(kept)]
        return [*keep, Send((self._leader,), vote)]

    def _keep(self, kept: VoterState) -> Persist:
        self._state.kept, self._state.entered = kept, kept.attempt
        return Persist(kept)

    # -- results ------------------------------------------------------------------------------------------------------

    def on_result_obtained(self, root: bytes) -> list[RoundEffect]:
        """Vote if this is the result of the proposed record."""
        proposal = self._proposal
        if proposal is None or proposal.record.result_root != root or self._state.decided is not None:
            return []
        return [*self._cast_first(proposal), *self._cast_second(proposal)]

    def on_audit_failed(self, root: bytes, now: float) -> None:
        """Doubt this result; if it is the result of the proposed record, make the next attempt due."""
        state = self._state
        state.suspected.add(root)
        if self._proposal is not None and self._proposal.record.result_root == root:
            self._proposal = None
            state.go_to_attempt(state.attempt + 1, now)

    def drop_false_record_proposal(self) -> None:
        """Forget the record proposal if an average of its record is proven wrong, unless it carries on a lock."""
        if self._proposal is not None and self._proposal.proof is None and self._state.is_false(self._proposal.index):
            self._proposal = None


def flaw_of_proposal(settings: RoundSettings, ballot: Ballot, proposal: Proposal) -> str | None:
    """Return the first reason for which every honest peer rejects this proposal; None if there is none."""
    plan = proposal.plan
    flaw = flaw_of_plan(settings, ballot.base, plan)
    if flaw is not None:
        return flaw
    try:
        justification = justify(settings.run, ballot, proposal.view_changes)
    except Malformed as error:
        return str(error)
    if justification.highest_locks():
        return "its view changes name a lock, whose record must be put to the vote"
    if not justification.allows_plan(plan, settings.max_members):
        return "its plan leaves out an elector that was ready"
    return None
