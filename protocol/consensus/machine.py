"""How the members agree on one round: single-decree Paxos with signatures, as a pure state machine.

A `RoundMachine` lives from one tip to the next.  It is told what arrived, what became of the exchange and what time it
is, and answers with effects; `protocol.node.round_runner` performs them.  It does no I/O, reads no clock and holds no key.

    ready     everybody gossips READY when its compute is done: the contribution is committed by its root
    proposal  the proposer closes the round: attempt, plan (members, chunk owners), evicted electors   [Paxos 1a]
    promise   a member takes part in no lower attempt, and tells what it voted for, if anything         [1b]
    (exchange: everyone in the plan averages; it starts with the promise and survives a change of proposer)
    motion    the proposer puts one record to the vote: a carried one, or that of its own exchange      [2a]
    vote      an elector holds that result on disk and signs                                            [2b]
    commit    a quorum of equal votes is the certificate

Policy
* A ballot is (attempt, proposer); ballots are ordered, so two proposers of one attempt never share a ballot.
* Acceptors are the electors: the members of the previous record less the evicted ones.  At genesis, or when all of
  them are evicted, the members of the plan vote.
* Who proposes, and when, is `protocol.consensus.policy`'s matter.  Proposing is no privilege: safety rests on the acceptors.
* The record put to the vote fixes the one version of every chunk: a member that assembled another one fetches the
  difference before it votes.  (So a quorum never splits over two versions.)
* Who is ready and finds itself left out answers the first such proposal with its READY instead of a promise.  Nobody
  takes up a new plan that leaves out more than a third of those it sees ready.
* A promise is not given to a higher ballot while the proposer of the last one is alive and at work: otherwise anybody
  could keep a round from ending by proposing again and again.
* A record with an average that was proven wrong, or that cannot be accounted for, is voted for only by who has voted for
  it before; who doubts it carries it on only where it may have been decided already.
* A later attempt takes over the plan of the attempt it has promised: what was exchanged is not exchanged again; except
  a plan that found no quorum of promises, which its proposer makes anew.
* Promise and vote are on disk (fsync) before they are sent: the effect `Persist` precedes the `Send`.
"""

from __future__ import annotations

from protocol.consensus.acceptor import Acceptor
from protocol.consensus.effects import Committed, FinishCompute, ObtainResult, Reject, Repair, RoundEffect, Send
from protocol.consensus.events import (
    Arrived,
    AuditFailed,
    AverageDisproved,
    ExchangeDone,
    ExchangeMoved,
    ResultObtained,
    RoundEvent,
    StateHashed,
    Tick,
)
from protocol.consensus.policy import FINISH_S
from protocol.consensus.proposer import Proposer
from protocol.consensus.round_state import PATIENCE_S, RoundState
from protocol.consensus.terms import View
from protocol.state.base import Base, RoundSettings
from protocol.state.chain import verify_commit
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Finish, Motion, Plan, Promise, Proposal, Ready, Refusal, Vote, Voted


class RoundMachine:
    """One round as one peer lives it: what it is told goes to its proposer, its acceptor, or ends the round.

    persisted: the promise on disk, of this round or another.  `now` is always trio time.
    """

    def __init__(
        self, me: PeerId, settings: RoundSettings, base: Base, now: float, persisted: Promise | None = None
    ) -> None:
        self.me, self.base = me, base
        self._state = RoundState(me, settings, base, now)
        self._acceptor, self._proposer = Acceptor(self._state, persisted), Proposer(self._state)
        self._certified: Commit | None = None

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """The number of the attempt that we think is due."""
        return self._state.attempt

    @property
    def plan(self) -> Plan | None:
        """The plan taken up last."""
        return self._state.plan

    @property
    def readys(self) -> dict[PeerId, Ready]:
        """The newest READY of each peer that is ready for this round."""
        return self._state.readys

    @property
    def voted(self) -> Voted | None:
        """Our last vote in this round."""
        return self._state.voted

    @property
    def decided(self) -> Commit | None:
        """The certified record once its result is on disk: the round is over."""
        return self._state.decided

    @property
    def is_proposing(self) -> bool:
        """Whether an attempt of ours is under way."""
        return self._proposer.is_proposing

    def waiting_for(self, view: View) -> list[PeerId]:
        """Peers that the round is not closed without yet: those at work on it, else those about to be."""
        return self._state.closing.waiting_for(view) or self._state.closing.coming(view)

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: RoundEvent, view: View, now: float) -> list[RoundEffect]:
        """Take an event; returns the actions that follow from it, to be performed in this order.

        view: how everybody looks now.  Never raises for anything that a peer says.
        """
        match event:
            case Arrived():
                return self._on_statement(event, view, now)
            case StateHashed(digest):
                self._state.state_digest = digest
            case ExchangeMoved():
                self._state.move(now)
            case ExchangeDone(plan, entries, provenance):
                return self._proposer.on_exchange_done(plan, entries, provenance, now)
            case ResultObtained(root):
                return self._on_result_obtained(root)
            case AuditFailed(root):
                return self._acceptor.on_audit_failed(root)
            case AverageDisproved():
                self._on_average_disproved(event, now)
            case Tick():
                return self._tick(view, now)
        return []

    def _on_statement(self, arrived: Arrived, view: View, now: float) -> list[RoundEffect]:
        sender = arrived.sender
        match arrived.body:
            case Ready() as ready:
                self._state.closing.add(sender, ready)
                return self._tick(view, now)
            case Finish() as finish:
                return self._on_finish(sender, finish, view)
            case Proposal() as proposal:
                return self._acceptor.on_proposal(sender, proposal, view, now)
            case Promise() as promise:
                return self._proposer.on_promise(sender, promise, now)
            case Motion() as motion:
                return self._acceptor.on_motion(sender, motion, view, now)
            case Vote() as vote:
                return self._on_vote(sender, vote, arrived.signature)
            case Refusal() as refusal:
                self._proposer.on_refusal(sender, refusal, now)
            case Commit() as commit:
                return self._on_commit(sender, commit)
        return []

    def _on_finish(self, sender: PeerId, finish: Finish, view: View) -> list[RoundEffect]:
        """Somebody who is ready asks us to finish: we do when we see for ourselves that others wait."""
        waits = sender in self.readys and self.me not in self.readys and self._state.closing.may_ask_to_finish(view)
        return [FinishCompute()] if self._state.is_for_this_round(finish.round, finish.base) and waits else []

    def _on_average_disproved(self, event: AverageDisproved, now: float) -> None:
        """What rests on the average is made anew without the liar."""
        state = self._state
        state.doubts.disprove(event.chunk, event.hash)
        self._proposer.drop_false_results()
        self._acceptor.drop_false_motion()
        if state.plan is not None and any(member.peer == event.liar for member in state.plan.members):
            state.plan = None
            self._proposer.drop_attempt()
            state.next_attempt(now)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _on_vote(self, sender: PeerId, vote: Vote, signature: bytes) -> list[RoundEffect]:
        certified = self._proposer.on_vote(sender, vote, signature)
        if certified is None:
            return []
        commit, others = certified
        return [Send(others, commit), *self._decide(commit, others)]

    def _on_commit(self, sender: PeerId, commit: Commit) -> list[RoundEffect]:
        """A certified record, from anywhere; not for this round: somebody is behind, or ahead."""
        if self.decided is not None or commit.record.round != self.base.round:
            return []
        try:
            verify_commit(self._state.settings, commit, self.base)
        except Malformed as error:
            return [Reject(sender, Commit.KIND, str(error))]
        sources = dict.fromkeys([sender, *(PeerId(member.peer) for member in commit.record.members)])
        return self._decide(commit, tuple(peer for peer in sources if peer != self.me))

    def _decide(self, commit: Commit, sources: tuple[PeerId, ...]) -> list[RoundEffect]:
        if commit.record.result_root in self._state.obtained:
            self._state.decided = commit
            return [Committed(commit)]
        self._certified = commit
        return [ObtainResult(commit.record, tuple(commit.index), sources, None)]

    def _on_result_obtained(self, root: bytes) -> list[RoundEffect]:
        """End the round, if its certified record waited for this result; else it may be one to vote for."""
        self._state.obtained.add(root)
        if self._certified is not None and self._certified.record.result_root == root:
            commit, self._certified = self._certified, None
            self._state.decided = commit
            return [Committed(commit)]
        return self._acceptor.on_result_obtained(root)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _tick(self, view: View, now: float) -> list[RoundEffect]:
        """Close the round, send again, or lose patience."""
        state = self._state
        if state.decided is not None or self._certified is not None:
            return []
        effects = self._proposer.tick(now)
        if effects is not None:
            return effects
        if state.promised is not None and state.promised[1] != self.me:
            return self._watch_proposer(view, now)
        if self.me not in self.readys:
            return []
        asks, closable = state.closing.gather(view, now)
        return [*asks, *self._lead_or_wait(view, now)] if closable else asks

    def _lead_or_wait(self, view: View, now: float) -> list[RoundEffect]:
        """The round may be closed: propose if it is our turn; else wait for the proposer, and lose patience with it."""
        state = self._state
        agreed = state.closing.agreed(view)
        if agreed and state.differs_from(self.readys[agreed[0]].state_digest):
            return [Repair(Hash(self.readys[agreed[0]].state_digest))]
        if state.closing.proposer(view, state.attempt) == self.me:
            return self._proposer.propose(view, now)
        if state.idle_s(now) > state.settings.grace_s + FINISH_S + PATIENCE_S * (1 + state.attempt):
            state.next_attempt(now)
        return []

    def _watch_proposer(self, view: View, now: float) -> list[RoundEffect]:
        """We promised another peer: when it is gone or nothing moves, the next attempt begins."""
        state = self._state
        assert state.promised is not None
        attempt, proposer = state.promised
        stalled = state.is_stalled(now, attempt)
        if state.closing.lives(proposer, view) and not stalled and state.attempt <= attempt:
            return []
        if state.attempt <= attempt:
            state.next_attempt(now, after=attempt)
        elif stalled:
            state.next_attempt(now)
        if self.me in self.readys and state.closing.proposer(view, state.attempt) == self.me:
            return self._proposer.propose(view, now)
        return []
