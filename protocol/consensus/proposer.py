"""The proposer of a round: our own attempts to have a record certified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.consensus.effects import Repair, RoundEffect, Send
from protocol.consensus.policy import RESEND_S
from protocol.consensus.round_state import RoundState
from protocol.consensus.terms import Ballot, View
from protocol.consensus.validation import flaw_of_motion
from protocol.exchange.assignment import plan_hash
from protocol.state.chain import effective_electorate, index_root, quorum_size, record_hash
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Commit,
    Motion,
    Plan,
    Promise,
    Proposal,
    Provenance,
    Record,
    Refusal,
    Signature,
    Vote,
    Voted,
)


@dataclass
class OwnAttempt:
    """One ballot of ours.  electors: of the round, with the evicted ones.  votes: signatures by voter.

    sent: when the proposal or the motion was sent last, in trio time.
    """

    ballot: Ballot
    plan: Plan
    electors: tuple[PeerId, ...]
    evicted: tuple[PeerId, ...]
    sent: float
    promises: dict[PeerId, Promise] = field(default_factory=dict)
    motion: Motion | None = None
    votes: dict[PeerId, bytes] = field(default_factory=dict)
    refusals: dict[PeerId, None] = field(default_factory=dict)

    def audience(self) -> tuple[PeerId, ...]:
        """Everybody that the proposal and the motion are sent to."""
        peers = [PeerId(member.peer) for member in self.plan.members] + list(self.electors)
        return tuple(peer for peer in dict.fromkeys(peers) if peer not in self.evicted)

    def voters(self) -> tuple[PeerId, ...]:
        """The acceptors of this ballot: the electors that stay, or the members when none does."""
        stay = tuple(peer for peer in self.electors if peer not in self.evicted)
        return stay or tuple(PeerId(member.peer) for member in self.plan.members)

    def has_promises(self) -> bool:
        """Whether a quorum has promised."""
        voters = self.voters()
        return sum(peer in self.promises for peer in voters) >= quorum_size(len(voters))

    def can_win(self) -> bool:
        """Whether enough voters are left that did not refuse the motion."""
        voters = self.voters()
        return sum(peer not in self.refusals for peer in voters) >= quorum_size(len(voters))

    def proposal(self) -> Proposal:
        """The statement that opens it."""
        return Proposal(attempt=self.ballot[0], plan=self.plan, evicted=list(self.evicted))


class Proposer:
    """Proposes a plan, gathers promises, puts a record to the vote and counts the votes."""

    def __init__(self, state: RoundState) -> None:
        self._state = state
        self._mine: OwnAttempt | None = None
        self._results: dict[Hash, tuple[tuple[ChunkEntry, ...], Provenance]] = {}

    @property
    def is_proposing(self) -> bool:
        """Whether an attempt of ours is under way."""
        return self._mine is not None

    # -- an attempt begins and ends -----------------------------------------------------------------------------------

    def propose(self, view: View, now: float) -> list[RoundEffect]:
        """Begin an attempt with the plan that was taken up, or a new one if that leaves out too many."""
        state, plan = self._state, self._state.plan
        if plan is None or state.leaves_out_too_many(plan, view):
            plan = state.closing.make_plan(view)
        if plan is None:
            return []
        if plan.state_digest != state.state_digest:
            return [Repair(Hash(plan.state_digest))] if state.state_digest is not None else []
        if state.promised is not None and (state.attempt, state.me) <= state.promised:
            state.attempt = state.promised[0] + 1
        self._mine = OwnAttempt((state.attempt, state.me), plan, state.base.electors, state.closing.evictable(view), now)
        return [Send(self._mine.audience(), self._mine.proposal())]

    def tick(self, now: float) -> list[RoundEffect] | None:
        """Send again what is not answered.  None when no attempt of ours is under way, or it has just been given up."""
        mine, state = self._mine, self._state
        if mine is None:
            return None
        if not state.is_stalled(now, mine.ballot[0]):
            return self._resend(mine, now)
        if mine.motion is None and not mine.has_promises():
            state.plan = None  # nearly nobody took it up: the next one has everybody who is ready by then
        self._give_up(now)
        return None

    def _resend(self, mine: OwnAttempt, now: float) -> list[RoundEffect]:
        if now - mine.sent < RESEND_S:
            return []
        mine.sent = now
        if mine.motion is not None:
            return [Send(tuple(peer for peer in mine.audience() if peer not in mine.votes), mine.motion)]
        waiting = tuple(peer for peer in mine.audience() if peer not in mine.promises)
        return [Send(waiting, mine.proposal())] if waiting else []

    def _give_up(self, now: float) -> None:
        self._mine = None
        self._state.next_attempt(now)

    # -- promises -----------------------------------------------------------------------------------------------------

    def on_promise(self, sender: PeerId, promise: Promise, now: float) -> list[RoundEffect]:
        """Count a promise; one of a higher ballot ends our attempt."""
        mine, state = self._mine, self._state
        if mine is None or not state.is_for_this_round(promise.round, promise.base):
            return []
        ballot = (promise.attempt, PeerId(promise.proposer))
        if ballot > mine.ballot:
            state.attempt = max(state.attempt, min(promise.attempt, state.attempt + 1))
            state.move(now)
            self._mine = None
            return []
        if ballot != mine.ballot or not self._could_be_voted_for(promise.voted):
            return []
        if sender not in mine.promises:
            mine.promises[sender] = promise
            state.move(now)
        return self._put_to_vote(now)

    def on_exchange_done(
        self, plan: Hash, entries: tuple[ChunkEntry, ...], provenance: Provenance, now: float
    ) -> list[RoundEffect]:
        """Our exchange of the plan with this hash is complete: its result may be put to the vote."""
        if self._state.doubts.is_false(entries):
            return []
        self._results[plan] = (entries, provenance)
        self._state.move(now)
        return self._put_to_vote(now)

    def _could_be_voted_for(self, voted: Voted | None) -> bool:
        return (
            voted is None
            or flaw_of_motion(self._state.settings, self._state.base, voted.record, voted.index, voted.provenance) is None
        )

    # -- the vote -----------------------------------------------------------------------------------------------------

    def _put_to_vote(self, now: float) -> list[RoundEffect]:
        """Make the motion once a quorum has promised: the record already voted for, or that of our exchange."""
        mine, doubts = self._mine, self._state.doubts
        if mine is None or mine.motion is not None or not mine.has_promises():
            return []
        voters = mine.voters()
        carried = self._carried(mine, voters)
        if any(doubts.apply_to(voted) for voted in carried) and not all(peer in mine.promises for peer in voters):
            return []  # the others' promises may show that it was not decided
        if carried:
            latest = max(carried, key=lambda voted: (voted.attempt, voted.proposer))
            record, index, provenance = latest.record, list(latest.index), latest.provenance
        else:
            result = self._results.get(plan_hash(mine.plan))
            if result is None:
                return []
            record, index, provenance = self._make_record(mine, result[0]), list(result[0]), result[1]
        mine.motion = Motion(
            attempt=mine.ballot[0],
            proposer=self._state.me,
            evicted=list(mine.evicted),
            record=record,
            index=index,
            provenance=provenance,
        )
        mine.sent = now
        return [Send(mine.audience(), mine.motion)]

    def _carried(self, mine: OwnAttempt, voters: Sequence[PeerId]) -> list[Voted]:
        """Votes for records that may be decided.  Votes for a record that we doubt count only if so many have, or
        may have, given them that it may be: those who promised us without such a vote keep it from being decided."""
        promises = {peer: promise.voted for peer, promise in mine.promises.items() if peer in voters}
        true = [peer for peer, voted in promises.items() if voted is None or not self._state.doubts.apply_to(voted)]
        settled = len(voters) - len(true) < quorum_size(len(voters))
        return [voted for peer, voted in promises.items() if voted is not None and (peer in true or not settled)]

    def _make_record(self, mine: OwnAttempt, entries: Sequence[ChunkEntry]) -> Record:
        base = self._state.base
        return Record(
            round=base.round,
            fragment=base.fragment,
            attempt=mine.ballot[0],
            proposer=self._state.me,
            previous=base.tip,
            members=mine.plan.members,
            codec=self._state.settings.codec,
            result_root=index_root(entries),
            state_digest=mine.plan.state_digest,
            loss=mine.plan.loss,
        )

    def on_vote(self, sender: PeerId, vote: Vote, signature: bytes) -> tuple[Commit, tuple[PeerId, ...]] | None:
        """Count a vote.  With a quorum: the certified record, and the other peers to send it to."""
        mine, state = self._mine, self._state
        if mine is None or mine.motion is None or state.decided is not None:
            return None
        record = mine.motion.record
        if (vote.attempt, vote.proposer) != mine.ballot or vote.record_hash != record_hash(record):
            return None
        voters = effective_electorate(state.base.previous, record, mine.evicted)
        if vote.evicted != list(mine.evicted) or sender not in voters:
            return None
        if sender not in mine.votes:
            mine.votes[sender] = signature
            state.move(mine.sent)
        if len(mine.votes) < quorum_size(len(voters)):
            return None
        signatures = [Signature(peer=peer, signature=mine.votes[peer]) for peer in sorted(mine.votes)]
        certificate = Certificate(attempt=mine.ballot[0], proposer=state.me, evicted=list(mine.evicted), votes=signatures)
        commit = Commit(record=record, index=mine.motion.index, certificate=certificate)
        return commit, tuple(peer for peer in mine.audience() if peer != state.me)

    def on_refusal(self, sender: PeerId, refusal: Refusal, now: float) -> None:
        """A voter will not vote for our motion.  When too few are left, the next attempt begins, with another record
        unless this one may have been decided."""
        mine = self._mine
        if mine is None or mine.motion is None or (refusal.attempt, refusal.proposer) != mine.ballot:
            return
        if refusal.record_hash != record_hash(mine.motion.record):
            return
        mine.refusals[sender] = None
        if not mine.can_win():
            self._state.doubts.suspect(mine.motion.record.result_root)
            self._give_up(now)

    def drop_false_results(self) -> None:
        """Forget the results of our exchanges that have an average proven wrong."""
        self._results = {
            plan: result for plan, result in self._results.items() if not self._state.doubts.is_false(result[0])
        }

    def drop_attempt(self) -> None:
        """End our attempt, unless its motion may still be voted for: the plan has a member that lied."""
        if self._mine is None or self._mine.motion is None or self._state.doubts.is_false(self._mine.motion.index):
            self._mine = None
