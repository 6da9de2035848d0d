"""How the members agree on one round: single-decree Paxos with signatures, as a pure state machine.

A `RoundMachine` lives from one tip to the next.  It is told what arrived, what became of the exchange and what time it
is, and answers with effects; `protocol.node.node` performs them.  It does no I/O, reads no clock and holds no key.

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
* Promise and vote are kept (fsync) before they are sent: the effect `Keep` precedes the `Send`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.consensus.policy import FINISH_S, RESEND_S, Closing
from protocol.consensus.terms import (
    Ballot,
    BeginExchange,
    Committed,
    Effect,
    FinishCompute,
    HoldResult,
    Keep,
    Repair,
    Send,
    View,
)
from protocol.consensus.validation import is_in, leaves_out, motion_fits, plan_fits
from protocol.exchange.assignment import plan_hash
from protocol.state.base import Base, RoundSettings
from protocol.state.chain import effective_electorate, index_root, quorum_size, record_hash, verify_commit
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Commit,
    Finish,
    Motion,
    Plan,
    Promise,
    Proposal,
    Provenance,
    Ready,
    Record,
    Refusal,
    Signature,
    Vote,
    Voted,
)

MAX_LEAD = 16
"""Attempts that a ballot may be ahead of ours.  Attempts take seconds: further ahead is nobody honest."""
PATIENCE_S = 3.0
"""Seconds beyond grace and finish time that a live proposer gets before the next attempt begins; grows by attempt.  A
proposer under which nothing moved for so long may be overtaken by another."""


@dataclass
class _Attempt:
    """Our own proposal, while we are the proposer."""

    ballot: Ballot
    plan: Plan
    evicted: tuple[PeerId, ...]
    promises: dict[PeerId, Promise] = field(default_factory=dict)
    motion: Motion | None = None
    votes: dict[PeerId, Envelope] = field(default_factory=dict)
    refusals: dict[PeerId, None] = field(default_factory=dict)
    sent: float = 0.0


class RoundMachine:
    """One round as one peer lives it.  `now` is always trio time."""

    def __init__(self, me: PeerId, settings: RoundSettings, base: Base, now: float, kept: Promise | None = None) -> None:
        self.me, self.settings, self.base = me, settings, base
        self.attempt = 0
        self.plan: Plan | None = None
        self.state_digest: Hash | None = None
        self.closing = Closing(me, settings, base)
        self.decided: Commit | None = None
        self._promised: Ballot | None = None
        self._voted: Voted | None = None
        if kept is not None and kept.round == base.round and kept.base == base.tip:
            self._promised, self._voted = (kept.attempt, PeerId(kept.proposer)), kept.voted
            self.attempt = kept.attempt + 1
        self._mine: _Attempt | None = None
        self._motion: Motion | None = None
        self._commit: Commit | None = None
        self._held: set[bytes] = set()
        self._results: dict[Hash, tuple[tuple[ChunkEntry, ...], Provenance]] = {}
        self._false: dict[tuple[int, bytes], None] = {}
        self._refused: dict[bytes, None] = {}
        self._progress = now
        self._protested: Ballot | None = None

    # -- what arrives -------------------------------------------------------------------------------------------------

    def on_ready(self, peer: PeerId, ready: Ready) -> bool:
        """A READY, ours or another's.  False when it is not for this round or contradicts an earlier one."""
        return self.closing.add(peer, ready)

    def on_finish(self, sender: PeerId, finish: Finish, view: View) -> list[Effect]:
        """Somebody who is ready asks us to finish: we do when we see for ourselves that others wait."""
        fits = finish.round == self.base.round and finish.base == self.base.tip
        waits = sender in self.readys and self.me not in self.readys and self.closing.may_ask_to_finish(view)
        return [FinishCompute()] if fits and waits else []

    def on_proposal(self, sender: PeerId, proposal: Proposal, view: View, now: float) -> list[Effect]:
        ballot = (proposal.attempt, sender)
        if self.decided or not plan_fits(self.settings, self.base, proposal.plan):
            return []
        if self._promised is not None and ballot < self._promised:
            return [Send((sender,), self._promise_body())]
        if not self._may_follow(ballot, view, now) or not self.closing.may_evict(proposal.evicted, view):
            return []
        if self.state_digest is not None and proposal.plan.state_digest != self.state_digest:
            return [Repair(Hash(proposal.plan.state_digest))]
        if self._protested is None and self._is_left_out(proposal.plan):
            self._protested = ballot
        if ballot == self._protested:
            return [Send((sender,), self.readys[self.me])]
        if proposal.plan != self.plan and self._leaves_out_too_many(proposal.plan, view):
            return []
        effects: list[Effect] = []
        if ballot != self._promised:
            self._promised = ballot
            self._progress = now
            self.attempt = max(self.attempt, proposal.attempt)
            effects.append(Keep(self._promise_body()))
        effects.append(Send((sender,), self._promise_body()))
        self.plan = proposal.plan
        if is_in(proposal.plan, self.me, self.readys.get(self.me)):
            effects.append(BeginExchange(proposal.plan))
        return effects

    def on_promise(self, sender: PeerId, promise: Promise, now: float) -> list[Effect]:
        if self._mine is None or promise.round != self.base.round or promise.base != self.base.tip:
            return []
        ballot = (promise.attempt, PeerId(promise.proposer))
        if ballot > self._mine.ballot:
            self.attempt = max(self.attempt, min(promise.attempt, self.attempt + 1))
            self._mine, self._progress = None, now
            return []
        if ballot != self._mine.ballot or not self._vote_fits(promise.voted):
            return []
        if sender not in self._mine.promises:
            self._mine.promises[sender], self._progress = promise, now
        return self._put_to_vote(now)

    def on_exchange_done(self, plan: Hash, entries: Sequence[ChunkEntry], provenance: Provenance,
                         now: float) -> list[Effect]:
        """Our exchange of `plan` is complete: these are the chunks we hold."""
        if self._is_false(entries):
            return []
        self._results[plan] = (tuple(entries), provenance)
        self._progress = now
        return self._put_to_vote(now)

    def on_progress(self, now: float) -> None:
        """The exchange moved: the proposer keeps our patience."""
        self._progress = now

    def on_motion(self, sender: PeerId, motion: Motion, view: View, now: float) -> list[Effect]:
        ballot = (motion.attempt, sender)
        if motion.proposer != sender or self.decided or not self._may_follow(ballot, view, now):
            return []
        if not motion_fits(self.settings, self.base, motion.record, motion.index, motion.provenance):
            return []
        if not self.closing.may_evict(motion.evicted, view):
            return []
        again = self._voted is not None and self._voted.record == motion.record
        if self._voted is not None and (self._voted.attempt, self._voted.proposer) == ballot and not again:
            return []
        if self._is_false(motion.index) and not again:
            return []
        if self.state_digest is not None and motion.record.state_digest != self.state_digest:
            return [Repair(Hash(motion.record.state_digest))]
        self._motion, self._progress = motion, now
        if motion.record.result_root in self._held:
            return self._vote()
        sources = tuple(PeerId(member.peer) for member in motion.record.members if member.peer != self.me)
        return [HoldResult(motion.record, tuple(motion.index), sources, None if again else motion.provenance)]

    def on_vote(self, sender: PeerId, vote: Vote, envelope: Envelope) -> list[Effect]:
        mine = self._mine
        if mine is None or mine.motion is None or self.decided:
            return []
        record = mine.motion.record
        if (vote.attempt, vote.proposer) != mine.ballot or vote.record_hash != record_hash(record):
            return []
        if vote.evicted != list(mine.evicted):
            return []
        voters = effective_electorate(self.base.previous, record, mine.evicted)
        if sender not in voters:
            return []
        if sender not in mine.votes:
            mine.votes[sender], self._progress = envelope, max(self._progress, mine.sent)
        if len(mine.votes) < quorum_size(len(voters)):
            return []
        signatures = [Signature(peer=peer, signature=mine.votes[peer].signature) for peer in sorted(mine.votes)]
        certificate = Certificate(attempt=mine.ballot[0], proposer=self.me, evicted=list(mine.evicted),
                                  votes=signatures)
        commit = Commit(record=record, index=mine.motion.index, certificate=certificate)
        others = tuple(peer for peer in self._audience(mine) if peer != self.me)
        return [Send(others, commit), *self._decide(commit, others)]

    def on_commit(self, commit: Commit, sources: Sequence[PeerId]) -> list[Effect]:
        """A certified record for this round, from anywhere.  Raises `Malformed` when the certificate does not hold."""
        if self.decided or commit.record.round != self.base.round:
            return []
        verify_commit(self.settings, commit, self.base)
        return self._decide(commit, tuple(sources))

    def on_result_held(self, root: bytes) -> list[Effect]:
        """The result with this root lies on disk: vote for it, or apply it, if that is what it waited for."""
        self._held.add(root)
        if self._commit is not None and self._commit.record.result_root == root:
            commit, self._commit = self._commit, None
            self.decided = commit
            return [Committed(commit)]
        if self._motion is not None and self._motion.record.result_root == root and self.decided is None:
            return self._vote()
        return []

    def on_refused(self, root: bytes, now: float) -> list[Effect]:
        """We cannot account for the record with this result, so we do not vote for it now."""
        self._refused[root] = None
        motion = self._motion
        if motion is None or motion.record.result_root != root:
            return []
        self._motion = None
        refusal = Refusal(round=self.base.round, base=self.base.tip, attempt=motion.attempt, proposer=motion.proposer,
                          record_hash=record_hash(motion.record))
        return [Send((PeerId(motion.proposer),), refusal)]

    def on_refusal(self, sender: PeerId, refusal: Refusal, now: float) -> list[Effect]:
        """Somebody will not vote for our motion.  When too few are left, the next attempt begins, with another record
        unless this one may have been decided."""
        mine = self._mine
        if mine is None or mine.motion is None or (refusal.attempt, refusal.proposer) != mine.ballot:
            return []
        if refusal.record_hash != record_hash(mine.motion.record):
            return []
        voters = self._voters(mine)
        mine.refusals[sender] = None
        if sum(peer not in mine.refusals for peer in voters) < quorum_size(len(voters)):
            self._refused[mine.motion.record.result_root] = None
            self._mine, self._progress = None, now
            self.attempt += 1
        return []

    def on_false_chunk(self, liar: PeerId, chunk: int, hash: bytes, now: float) -> list[Effect]:
        """A result is proven wrong: what rests on it is made anew without the liar."""
        self._false[chunk, hash] = None
        self._results = {plan: result for plan, result in self._results.items() if not self._is_false(result[0])}
        again = self._voted is not None and self._motion is not None and self._voted.record == self._motion.record
        if self._motion is not None and self._is_false(self._motion.index) and not again:
            self._motion = None
        if self.plan is not None and any(member.peer == liar for member in self.plan.members):
            self.plan = None
            if self._mine is None or self._mine.motion is None or self._is_false(self._mine.motion.index):
                self._mine = None
            self.attempt, self._progress = self.attempt + 1, now
        return []

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, view: View, now: float) -> list[Effect]:
        """Close the round, send again, or lose patience."""
        if self.decided or self._commit is not None:
            return []
        if self._mine is not None and not self._impatient(now, self._mine.ballot[0]):
            return self._resend(now)
        if self._mine is not None:
            if self._mine.motion is None and not self._has_quorum(self._mine):
                self.plan = None  # nearly nobody took it up: the next one has everybody who is ready by then
            self._mine, self._progress = None, now
            self.attempt += 1
        if self._promised is not None and self._promised[1] != self.me:
            return self._watch_proposer(view, now)
        if self.me not in self.readys:
            return []
        effects, closable = self.closing.gather(view, now)
        if not closable:
            return effects
        return [*effects, *self._lead_or_wait(view, now)]

    @property
    def readys(self) -> dict[PeerId, Ready]:
        """The READY of everybody who said it for this round."""
        return self.closing.readys

    @property
    def voted(self) -> Voted | None:
        return self._voted

    # -- closing a round ----------------------------------------------------------------------------------------------

    def _lead_or_wait(self, view: View, now: float) -> list[Effect]:
        agreed = self.closing.agreed(view)
        if self.state_digest is not None and agreed and self.readys[agreed[0]].state_digest != self.state_digest:
            return [Repair(Hash(self.readys[agreed[0]].state_digest))]
        if self.closing.proposer(view, self.attempt) == self.me:
            return self._propose(view, now)
        if now - self._progress > self.settings.grace_s + FINISH_S + PATIENCE_S * (1 + self.attempt):
            self.attempt += 1
            self._progress = now
        return []

    def _watch_proposer(self, view: View, now: float) -> list[Effect]:
        """We promised somebody: when it is gone or nothing moves, the next attempt begins."""
        assert self._promised is not None
        attempt, proposer = self._promised
        stalled = self._impatient(now, attempt)
        if self.closing.lives(proposer, view) and not stalled and self.attempt <= attempt:
            return []
        if self.attempt <= attempt:
            self.attempt, self._progress = attempt + 1, now
        elif stalled:
            self.attempt, self._progress = self.attempt + 1, now
        if self.me in self.readys and self.closing.proposer(view, self.attempt) == self.me:
            return self._propose(view, now)
        return []

    def _impatient(self, now: float, attempt: int) -> bool:
        return now - self._progress > self.settings.stall_s + PATIENCE_S * (1 + attempt)

    def _propose(self, view: View, now: float) -> list[Effect]:
        plan = self.plan
        if plan is None or self._leaves_out_too_many(plan, view):
            plan = self.closing.make_plan(view)
        if plan is None:
            return []
        if plan.state_digest != self.state_digest:
            return [Repair(Hash(plan.state_digest))] if self.state_digest is not None else []
        ballot = (self.attempt, self.me)
        if self._promised is not None and ballot <= self._promised:
            self.attempt = self._promised[0] + 1
            ballot = (self.attempt, self.me)
        evicted = self.closing.evictable(view)
        self._mine = _Attempt(ballot, plan, evicted, sent=now)
        proposal = Proposal(attempt=ballot[0], plan=plan, evicted=list(evicted))
        return [Send(self._audience(self._mine), proposal)]

    def _resend(self, now: float) -> list[Effect]:
        mine = self._mine
        assert mine is not None
        if now - mine.sent < RESEND_S:
            return []
        mine.sent = now
        if mine.motion is not None:
            waiting = tuple(peer for peer in self._audience(mine) if peer not in mine.votes)
            return [Send(waiting, mine.motion)]
        waiting = tuple(peer for peer in self._audience(mine) if peer not in mine.promises)
        if waiting:
            return [Send(waiting, Proposal(attempt=mine.ballot[0], plan=mine.plan, evicted=list(mine.evicted)))]
        return []

    def _audience(self, mine: _Attempt) -> tuple[PeerId, ...]:
        peers = [PeerId(member.peer) for member in mine.plan.members] + list(self.base.electors)
        return tuple(peer for peer in dict.fromkeys(peers) if peer not in mine.evicted)

    # -- voting -------------------------------------------------------------------------------------------------------

    def _voters(self, mine: _Attempt) -> tuple[PeerId, ...]:
        stay = tuple(peer for peer in self.base.electors if peer not in mine.evicted)
        return stay or tuple(PeerId(member.peer) for member in mine.plan.members)

    def _has_quorum(self, mine: _Attempt) -> bool:
        voters = self._voters(mine)
        return sum(peer in mine.promises for peer in voters) >= quorum_size(len(voters))

    def _put_to_vote(self, now: float) -> list[Effect]:
        """Make the motion once a quorum has promised: the record already voted for, or that of our exchange."""
        mine = self._mine
        if mine is None or mine.motion is not None:
            return []
        if not self._has_quorum(mine):
            return []
        voters = self._voters(mine)
        carried = self._carried(mine, voters)
        if any(self._doubts(voted) for voted in carried) and not all(peer in mine.promises for peer in voters):
            return []  # the others' promises may show that it was not decided
        if carried:
            latest = max(carried, key=lambda voted: (voted.attempt, voted.proposer))
            record, index, provenance = latest.record, list(latest.index), latest.provenance
        else:
            result = self._results.get(plan_hash(mine.plan))
            if result is None:
                return []
            record, index, provenance = self._make_record(mine, result[0]), list(result[0]), result[1]
        mine.motion = Motion(attempt=mine.ballot[0], proposer=self.me, evicted=list(mine.evicted), record=record,
                             index=index, provenance=provenance)
        mine.sent = now
        return [Send(self._audience(mine), mine.motion)]

    def _carried(self, mine: _Attempt, voters: Sequence[PeerId]) -> list[Voted]:
        """What has been voted for and may be decided.  Votes for a record that we doubt count only if so many have, or
        may have, given them that it may be: those who promised us without such a vote keep it from being decided."""
        promises = {peer: promise.voted for peer, promise in mine.promises.items() if peer in voters}
        true = [peer for peer, voted in promises.items() if voted is None or not self._doubts(voted)]
        settled = len(voters) - len(true) < quorum_size(len(voters))
        return [voted for peer, voted in promises.items() if voted is not None and (peer in true or not settled)]

    def _make_record(self, mine: _Attempt, entries: Sequence[ChunkEntry]) -> Record:
        return Record(round=self.base.round, fragment=0, attempt=mine.ballot[0], proposer=self.me,
                      previous=self.base.tip, members=mine.plan.members,
                      codec=self.settings.codec, result_root=index_root(entries),
                      state_digest=mine.plan.state_digest, loss=mine.plan.loss)

    def _vote(self) -> list[Effect]:
        motion = self._motion
        assert motion is not None
        if self.me not in effective_electorate(self.base.previous, motion.record, motion.evicted):
            return []
        ballot = (motion.attempt, PeerId(motion.proposer))
        if self._promised is not None and ballot < self._promised:
            return []
        self._promised = ballot
        self._voted = Voted(attempt=ballot[0], proposer=ballot[1], record=motion.record, index=motion.index,
                            provenance=motion.provenance)
        vote = Vote(round=self.base.round, attempt=ballot[0], proposer=ballot[1], evicted=motion.evicted,
                    record_hash=record_hash(motion.record))
        return [Keep(self._promise_body()), Send((ballot[1],), vote)]

    def _decide(self, commit: Commit, sources: tuple[PeerId, ...]) -> list[Effect]:
        if commit.record.result_root in self._held:
            self.decided = commit
            return [Committed(commit)]
        self._commit = commit
        return [HoldResult(commit.record, tuple(commit.index), sources, None)]

    def _promise_body(self) -> Promise:
        assert self._promised is not None
        return Promise(round=self.base.round, base=self.base.tip, attempt=self._promised[0],
                       proposer=self._promised[1], voted=self._voted)

    # -- whom to believe ----------------------------------------------------------------------------------------------

    def _may_follow(self, ballot: Ballot, view: View, now: float) -> bool:
        """Whether to take part in this ballot: no lower one than promised, and no higher one while its proposer works."""
        attempt, proposer = ballot
        if proposer not in self.base.electors and proposer not in self.readys:
            return False
        if attempt > self.attempt + MAX_LEAD or (self._promised is not None and ballot < self._promised):
            return False
        if self._promised is None or ballot == self._promised or not self.closing.lives(self._promised[1], view):
            return True
        if self._promised[0] < attempt <= self.attempt or now - self._progress > PATIENCE_S:
            return True  # we have lost patience, too, or nothing moves
        return attempt <= self._promised[0] + 1 and self.closing.proposer(view, attempt) == proposer

    def _is_left_out(self, plan: Plan) -> bool:
        return self.me in self.readys and leaves_out(plan, [self.me], self.readys) > 0

    def _leaves_out_too_many(self, plan: Plan, view: View) -> bool:
        """More than a third of those who are ready as we see it, or their present contributions."""
        ready = self.closing.agreed(view)[: self.settings.max_members]
        return leaves_out(plan, ready, self.readys) > len(ready) // 3

    def _is_false(self, index: Sequence[ChunkEntry]) -> bool:
        return bool(self._false) and any((chunk, entry.hash) in self._false for chunk, entry in enumerate(index))

    def _doubts(self, voted: Voted) -> bool:
        return voted.record.result_root in self._refused or self._is_false(voted.index)

    def _vote_fits(self, voted: Voted | None) -> bool:
        return voted is None or motion_fits(self.settings, self.base, voted.record, voted.index, voted.provenance)
