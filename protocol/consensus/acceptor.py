"""The acceptor of a round: its promises and its votes."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.consensus.effects import BeginExchange, ObtainResult, Persist, Reject, Repair, RoundEffect, Send
from protocol.consensus.round_state import PATIENCE_S, RoundState
from protocol.consensus.terms import Ballot, View
from protocol.consensus.validation import flaw_of_motion, flaw_of_plan, is_in, leaves_out
from protocol.state.chain import effective_electorate, record_hash
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Motion, Plan, Promise, Proposal, Refusal, Vote, Voted

MAX_LEAD = 16
"""Attempts that a ballot may be ahead of ours.  Attempts take seconds: further ahead is nobody honest."""


@dataclass(frozen=True)
class _Objection:
    """The reason why a proposal or a motion is not followed, and the effects that answer it."""

    reason: str
    answer: tuple[RoundEffect, ...] = ()


class Acceptor:
    """Promises and votes; restored from the promise on disk, if that is for this round."""

    def __init__(self, state: RoundState, persisted: Promise | None) -> None:
        self._state = state
        self._motion: Motion | None = None
        self._protested: Ballot | None = None
        if persisted is not None and state.is_for_this_round(persisted.round, persisted.base):
            state.promised, state.voted = (persisted.attempt, PeerId(persisted.proposer)), persisted.voted
            state.attempt = persisted.attempt + 1

    # -- promising ----------------------------------------------------------------------------------------------------

    def on_proposal(self, sender: PeerId, proposal: Proposal, view: View, now: float) -> list[RoundEffect]:
        """Promise the ballot and take up its plan; or say why not."""
        ballot, plan = (proposal.attempt, sender), proposal.plan
        objection = self._objection_to_proposal(ballot, proposal, view, now)
        if objection is not None:
            return [*objection.answer, Reject(sender, Proposal.KIND, objection.reason)]
        effects: list[RoundEffect] = []
        if ballot != self._state.promised:
            self._state.promised = ballot
            self._state.move(now)
            self._state.attempt = max(self._state.attempt, proposal.attempt)
            effects.append(Persist(self._state.promise()))
        effects.append(Send((sender,), self._state.promise()))
        self._state.plan = plan
        if is_in(plan, self._state.me, self._state.readys.get(self._state.me)):
            effects.append(BeginExchange(plan))
        return effects

    def _objection_to_proposal(self, ballot: Ballot, proposal: Proposal, view: View, now: float) -> _Objection | None:
        """The first reason not to promise; None when there is none."""
        state, plan, sender = self._state, proposal.plan, ballot[1]
        if state.decided is not None:
            return _Objection("the round is decided")
        flaw = flaw_of_plan(state.settings, state.base, plan)
        if flaw is not None:
            return _Objection(flaw)
        if state.promised is not None and ballot < state.promised:
            return _Objection("a higher ballot is promised", (Send((sender,), state.promise()),))
        objection = self._objection_to_ballot(ballot, view, now) or self._objection_to_evictions(proposal.evicted, view)
        if objection is not None:
            return objection
        if state.differs_from(plan.state_digest):
            return _Objection("its plan stands on another state than ours", (Repair(Hash(plan.state_digest)),))
        if self._protests(ballot, plan):
            return _Objection("its plan leaves us out", (Send((sender,), state.readys[state.me]),))
        if plan != state.plan and state.leaves_out_too_many(plan, view):
            return _Objection("its plan leaves out more than a third of those who are ready")
        return None

    def _objection_to_ballot(self, ballot: Ballot, view: View, now: float) -> _Objection | None:
        """No lower ballot than the one promised is followed, and no higher one while the promised proposer works."""
        state, (attempt, proposer) = self._state, ballot
        if proposer not in state.base.electors and proposer not in state.readys:
            return _Objection("its proposer is neither an elector nor ready")
        if attempt > state.attempt + MAX_LEAD:
            return _Objection(f"attempt {attempt} is too far ahead of attempt {state.attempt}")
        if state.promised is None or ballot == state.promised:
            return None
        if ballot < state.promised:
            return _Objection("a higher ballot is promised")
        if not state.closing.lives(state.promised[1], view):
            return None
        if state.promised[0] < attempt <= state.attempt or state.idle_s(now) > PATIENCE_S:
            return None  # we have lost patience, too, or nothing moves
        if attempt <= state.promised[0] + 1 and state.closing.proposer(view, attempt) == proposer:
            return None
        return _Objection("the proposer that we promised is at work")

    def _objection_to_evictions(self, evicted: list[str], view: View) -> _Objection | None:
        if self._state.closing.may_evict(evicted, view):
            return None
        return _Objection("it evicts an elector that we do not take for gone")

    def _protests(self, ballot: Ballot, plan: Plan) -> bool:
        """Whether to answer with our READY: to the first ballot, and only to that, whose plan has no place for us."""
        if self._protested is None and self._is_left_out(plan):
            self._protested = ballot
        return ballot == self._protested

    def _is_left_out(self, plan: Plan) -> bool:
        return self._state.me in self._state.readys and leaves_out(plan, [self._state.me], self._state.readys) > 0

    # -- voting -------------------------------------------------------------------------------------------------------

    def on_motion(self, sender: PeerId, motion: Motion, view: View, now: float) -> list[RoundEffect]:
        """Obtain the result that is put to the vote, then vote for it; or say why not."""
        objection = self._objection_to_motion(sender, motion, view, now)
        if objection is not None:
            return [*objection.answer, Reject(sender, Motion.KIND, objection.reason)]
        record = motion.record
        self._motion = motion
        self._state.move(now)
        if record.result_root in self._state.obtained:
            return self._vote(motion)
        sources = tuple(PeerId(member.peer) for member in record.members if member.peer != self._state.me)
        provenance = None if self._has_voted_for(motion) else motion.provenance
        return [ObtainResult(record, tuple(motion.index), sources, provenance)]

    def _objection_to_motion(self, sender: PeerId, motion: Motion, view: View, now: float) -> _Objection | None:
        """The first reason not to vote; None when there is none."""
        state, ballot, again = self._state, (motion.attempt, sender), self._has_voted_for(motion)
        if motion.proposer != sender:
            return _Objection("it is another proposer's")
        if state.decided is not None:
            return _Objection("the round is decided")
        objection = self._objection_to_ballot(ballot, view, now)
        if objection is not None:
            return objection
        flaw = flaw_of_motion(state.settings, state.base, motion.record, motion.index, motion.provenance)
        if flaw is not None:
            return _Objection(flaw)
        objection = self._objection_to_evictions(motion.evicted, view)
        if objection is not None:
            return objection
        if state.voted is not None and (state.voted.attempt, state.voted.proposer) == ballot and not again:
            return _Objection("we voted for another record in this ballot")
        if state.doubts.is_false(motion.index) and not again:
            return _Objection("it has an average that is proven wrong")
        if state.differs_from(motion.record.state_digest):
            return _Objection("it stands on another state than ours", (Repair(Hash(motion.record.state_digest)),))
        return None

    def on_result_obtained(self, root: bytes) -> list[RoundEffect]:
        """Vote, if this is the result that is put to the vote."""
        if self._motion is not None and self._motion.record.result_root == root and self._state.decided is None:
            return self._vote(self._motion)
        return []

    def on_audit_failed(self, root: bytes) -> list[RoundEffect]:
        """Refuse our vote, if this is the result that is put to the vote."""
        self._state.doubts.suspect(root)
        motion = self._motion
        if motion is None or motion.record.result_root != root:
            return []
        self._motion = None
        refusal = Refusal(
            round=self._state.base.round,
            base=self._state.base.tip,
            attempt=motion.attempt,
            proposer=motion.proposer,
            record_hash=record_hash(motion.record),
        )
        return [Send((PeerId(motion.proposer),), refusal)]

    def drop_false_motion(self) -> None:
        """Forget the motion if an average of its record is proven wrong, unless we have voted for it."""
        motion = self._motion
        if motion is not None and self._state.doubts.is_false(motion.index) and not self._has_voted_for(motion):
            self._motion = None

    def _has_voted_for(self, motion: Motion) -> bool:
        return self._state.voted is not None and self._state.voted.record == motion.record

    def _vote(self, motion: Motion) -> list[RoundEffect]:
        state, ballot = self._state, (motion.attempt, PeerId(motion.proposer))
        if state.me not in effective_electorate(state.base.previous, motion.record, motion.evicted):
            return []
        if state.promised is not None and ballot < state.promised:
            return []
        state.promised = ballot
        state.voted = Voted(
            attempt=ballot[0], proposer=ballot[1], record=motion.record, index=motion.index, provenance=motion.provenance
        )
        vote = Vote(
            round=state.base.round,
            attempt=ballot[0],
            proposer=ballot[1],
            evicted=motion.evicted,
            record_hash=record_hash(motion.record),
        )
        return [Persist(state.promise()), Send((ballot[1],), vote)]
