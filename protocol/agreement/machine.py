"""Agreement of the electors on one round: a two-step vote with locks, as a pure state machine.

A `RoundMachine` lives from one tip to the next.  Its events report the statements that arrived, the end of the exchange, and
the passage of time.  The machine answers with effects, which `protocol.node.rounds` performs.  It does no I/O, reads
no clock and holds no key.

    ready     each peer gossips READY when its compute is done; the root in it commits the peer to its contribution
    change    an elector that wants the round closed sends its view change: it joins an attempt, and names its locks
    proposal  the attempt's proposer, with the view changes of a quorum, proposes the plan: members, and owners of chunks
    (exchange: all members of the plan average; it begins with the proposal and survives a change of proposer)
    record    the proposer sends its record proposal: the locked record that it must carry on, or the exchange's record
    first     an elector that has the record's result on disk casts a first vote, if its earlier statements permit it
    proof     the proposer sends the prevote certificate, a quorum of first votes
    second    an elector that has seen the certificate locks itself on the record and casts a second vote
    commit    a quorum of second votes is the certificate

* Each attempt has one proposer: the electors take turns, by the numbers of the round and of the attempt.  A proposal needs
  the signed view changes of a quorum, so no peer can begin an attempt alone, or hide a lock.
* Safety rests on `protocol.agreement.ballot` alone.  Everything else here may be late, wrong or hostile without harm to
  safety.
* The next attempt is due in three cases: the proposer is gone, the timeout of the attempt passes without progress, or so
  many electors have entered the next attempt that one of them must be honest.  A peer whose timeout has passed goes to the
  highest attempt of the other electors, but follows each elector in this way only once in a round.
* A later attempt keeps the accepted plan, so the exchange is not repeated.  The plan is dropped if its result is in doubt,
  or if contributions to it are lost.
* The record put to the vote fixes one version of every chunk.  A voter that assembled another version fetches the chunks
  that differ before it votes.
* If a proposer sends a statement to some peers only, these peers forward it to peers that see no progress.
* A proposal that arrives again shows that its proposer lacks the result: members whose exchange is over report theirs.
* A voter's obligations are on disk (fsync) before they are announced: the effect `Persist` precedes the `Send`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from protocol.agreement.events import (
    AmendmentHeld,
    Arrived,
    AuditFailed,
    AverageDisproved,
    Committed,
    ExchangeDone,
    ExchangeMoved,
    FinishCompute,
    Forward,
    ObtainResult,
    PlanUnknown,
    Reject,
    Repair,
    ResultObtained,
    RoundEffect,
    RoundEvent,
    Send,
    StateHashed,
    Tick,
    View,
)
from protocol.agreement.proposer import Proposer, ViewChangeLog
from protocol.agreement.round_state import RoundState
from protocol.agreement.voter import Voter
from protocol.allreduce.lateness import LatenessMemory
from protocol.chain.base import Base, RoundSettings
from protocol.chain.records import record_hash, verify_commit
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import rebuild
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Commit,
    Finish,
    Lock,
    PrevoteCertificate,
    Proposal,
    Ready,
    RecordProposal,
    Report,
    ViewChange,
    Vote,
    VoterState,
    digest_in,
)

# ------------------------------------------------------------------------------------------------------------------------
# Relay of a proposer's statements to peers to which it did not send them.
#
# A proposer can send a statement to only some of the peers.  The other peers would wait in vain, be given up in the
# exchange, and look as if they had stalled it.  A voter that sees no progress sends its view change to all voters.  A member
# that knows of no plan refuses the parts that are pushed to it.  Every peer then forwards the newest statements that it has,
# each once.  They carry the proposer's signature, so any peer may deliver them.


RELAYED = (Proposal, RecordProposal, PrevoteCertificate)


class Relay:
    """Statements of the newest attempt, and the peers to which we have forwarded them.  run: the ID of the run."""

    def __init__(self, run: Hash) -> None:
        self._run = run
        self._attempt = -1
        self._said: dict[str, bytes] = {}
        """The newest statement of each kind, as received."""
        self._told: set[tuple[PeerId, str]] = set()
        self._asking: dict[PeerId, None] = {}
        """Peers that lacked a statement of this attempt, and so are sent its later ones at once."""

    def keep(self, arrived: Arrived) -> list[Forward]:
        """Keep a proposer's statement that was accepted, unless one of a later attempt was; forward it to asking peers.

        Once a record was proposed, the exchange is over, and nobody needs the plan.
        """
        body = arrived.body
        assert isinstance(body, RELAYED)
        attempt = body.certificate.attempt if isinstance(body, PrevoteCertificate) else body.attempt
        if attempt < self._attempt:
            return []
        if attempt > self._attempt:
            self._attempt = attempt
            self._said.clear()
            self._told.clear()
            self._asking.clear()
        if isinstance(body, RecordProposal):
            self._said.pop(Proposal.KIND, None)
        self._said[body.KIND] = rebuild(self._run, body.KIND, arrived.sender, body.encode(), arrived.signature).raw
        self._told.add((arrived.sender, body.KIND))
        return [effect for peer in self._asking for effect in self.forward(peer)]

    def forward(self, peer: PeerId, attempt: int = 0) -> list[Forward]:
        """Forward the statements that we have not forwarded to this peer yet, unless it has entered a later attempt."""
        if attempt > self._attempt:
            return []
        lacking = [kind for kind in self._said if (peer, kind) not in self._told]
        if lacking:
            self._asking[peer] = None
        self._told |= {(peer, kind) for kind in lacking}
        return [Forward(peer, kind, self._said[kind]) for kind in lacking]

    def farewell(self, peers: Iterable[PeerId]) -> list[Forward]:
        """Forward the statements to these peers if a record was proposed: they may need them when we are gone."""
        return [effect for peer in peers if RecordProposal.KIND in self._said for effect in self.forward(peer)]


# ------------------------------------------------------------------------------------------------------------------------


class RoundMachine:
    """Machine of one peer in one round: each event goes to the peer's proposer or voter, or ends the round.

    kept: our voter state on disk, at this tip or another one.  abstains: True if that state is lost.  lateness: our memory
    of earlier rounds.  `now` is always trio time.
    """

    def __init__(
        self,
        me: PeerId,
        settings: RoundSettings,
        base: Base,
        now: float,
        kept: VoterState | None = None,
        lateness: LatenessMemory | None = None,
        *,
        abstains: bool = False,
    ) -> None:
        self.me, self.base = me, base
        self.state = RoundState(me, settings, base, now, kept, lateness or LatenessMemory(), abstains=abstains)
        self._view_changes, self._voter = ViewChangeLog(self.state), Voter(self.state)
        self._proposer, self._relay = Proposer(self.state, self._view_changes), Relay(settings.run)
        self._closing = self.state.kept.lock is not None
        """True once the round is being closed, because we or other honest voters have seen that it may be closed.

        A view change names the electors whose READY we hold, and a restarted elector holds none.  So it sends a view change
        at once only if it has a lock, which decides the plan; otherwise it waits for view changes of other voters
        (`_was_in`).  If it did not wait, then after a power cut of all electors the READYs of strangers alone would make the
        next plan.
        """
        self._was_in = self.state.entered >= 0
        """True if this peer took part in closing this round before it was restarted."""
        self._certified: Commit | None = None

    def note_training(self, ahead_s: float) -> None:
        """Note for how many seconds members have trained for this round before it began."""
        self.state.closing.note_training(ahead_s)

    def note_aside(self, peers: Collection[PeerId]) -> None:
        """Note the members that we have set aside, before the first event of the round (`protocol.audit.receipts`)."""
        self.state.closing.note_aside(peers)

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def is_settling(self) -> bool:
        """True while a proposed or certified record waits for its result, or for votes."""
        return self._certified is not None or self._voter.is_voting

    @property
    def ready_count(self) -> int:
        """Number of peers that are ready for this round."""
        return len(self.state.closing.readys)

    @property
    def decided(self) -> Commit | None:
        """The certified record, once its result is on disk and the round is over."""
        return self.state.decided

    @property
    def is_proposing(self) -> bool:
        """True if an attempt of ours is under way."""
        return self._proposer.is_proposing

    def waiting_for(self, view: View) -> list[PeerId]:
        """Return the peers that the round waits for before it is closed.

        These are the peers at work on it.  If there are none, they are peers about to start, or otherwise peers without
        which members would fork the run.
        """
        at_work, coming = self.state.closing.awaited(view)
        return at_work or coming or sorted(peer for peer in self.state.closing.decisive(view) if peer != self.me)

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: RoundEvent, view: View, now: float) -> list[RoundEffect]:
        """Process an event and return the resulting effects, in the order in which they must be performed.

        view: the current views of all peers.  Raises nothing, whatever a peer sends.
        """
        match event:
            case Arrived():
                return self._on_statement(event, view, now)
            case StateHashed(state):
                self.state.outer = state
            case ExchangeMoved():
                self.state.move(now)
            case PlanUnknown(peer):
                return [*self._relay.forward(peer)]
            case ExchangeDone(plan, entries, provenance):
                return self._proposer.on_exchange_done(plan, entries, provenance, now)
            case ResultObtained(root):
                return self._on_result_obtained(root)
            case AuditFailed(root):
                self._voter.on_audit_failed(root, now)
            case AverageDisproved():
                self._on_average_disproved(event, now)
            case AmendmentHeld(raw):
                self.state.closing.amendment = raw
            case Tick():
                return self._tick(view, now)
        return []

    def _on_statement(self, arrived: Arrived, view: View, now: float) -> list[RoundEffect]:
        sender = arrived.sender
        match arrived.body:
            case Ready() as ready:
                self.state.closing.add(sender, ready, arrived.signature)
                may_wait = not self._closing and self.state.closing.can_wait(sender)
                return [] if may_wait else self._tick(view, now)
            case Finish() as finish:
                return self._on_finish(sender, finish, view)
            case ViewChange() as view_change:
                objection = self._view_changes.on_view_change(sender, view_change, arrived.signature, view, now)
                if objection is not None:
                    return [Reject(sender, ViewChange.KIND, objection)]
                is_here = sender != self.me and self.state.is_for_this_round(view_change.round, view_change.base)
                lacking = self._relay.forward(sender, view_change.attempt) if is_here else []
                return [*lacking, *self._tick(view, now)]
            case Report() as report:
                return self._proposer.on_report(sender, report, now)
            case Lock() as lock:
                self._view_changes.on_lock(sender, lock)
            case Proposal() as proposal:
                return self._relayed(arrived, self._voter.on_proposal(sender, proposal, view, now))
            case RecordProposal() as record_proposal:
                return self._relayed(arrived, self._voter.on_record_proposal(sender, record_proposal, view, now))
            case PrevoteCertificate() as proof:
                return self._relayed(arrived, self._voter.on_prevote_certificate(sender, proof))
            case Vote() as vote:
                return self._on_vote(sender, vote, arrived.signature, now)
            case Commit() as commit:
                return self._on_commit(sender, commit, view)
        return []

    def _relayed(self, arrived: Arrived, effects: list[RoundEffect]) -> list[RoundEffect]:
        """Keep a statement that was accepted, with these effects, and forward it to peers that need it."""
        body, rejected = arrived.body, any(isinstance(effect, Reject) for effect in effects)
        is_taken_up = body == self._voter.proof if isinstance(body, PrevoteCertificate) else not rejected
        return [*effects, *self._relay.keep(arrived)] if is_taken_up and arrived.sender != self.me else effects

    def _on_finish(self, sender: PeerId, finish: Finish, view: View) -> list[RoundEffect]:
        """Finish on request of a ready peer, if a quorum is ready in our own view as well."""
        waits = sender in self.state.closing.readys and self.me not in self.state.closing.readys
        if not waits or not self.state.is_for_this_round(finish.round, finish.base):
            return []
        return [FinishCompute()] if self.state.closing.has_quorum(view) else []

    def _on_average_disproved(self, event: AverageDisproved, now: float) -> None:
        """Drop everything based on the wrong average, so that the exchange is repeated without the liar."""
        state = self.state
        state.disproved.add((event.chunk, event.hash))
        self._voter.drop_false_record_proposal()
        if state.plan is not None and any(member.peer == event.liar for member in state.plan.members):
            state.plan = None
            self._proposer.drop_attempt()
            state.go_to_attempt(state.attempt + 1, now)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _on_vote(self, sender: PeerId, vote: Vote, signature: bytes, now: float) -> list[RoundEffect]:
        result = self._proposer.on_vote(sender, vote, signature, now)
        if not isinstance(result, Commit):
            return result
        if self.decided is not None or self._certified is not None:
            return []
        others = tuple(peer for peer in self._proposer.audience() if peer != self.me)
        return [Send(others, result), *self._decide(result, others)]

    def _on_commit(self, sender: PeerId, commit: Commit, view: View) -> list[RoundEffect]:
        """Accept a certified record from any peer.  A record of another round is ignored: its sender is behind, or ahead.

        A provisional record counts here only if its absent electors are gone in our own view as well, or were gone when we
        voted for it: an elector that comes back between our vote and the certificate must not cost everybody the round.
        `protocol.chain` decides whether to follow peers that went on without electors that we still hear.
        """
        if self.decided is not None or self._certified is not None or commit.record.round != self.base.round:
            return []
        if not self._voted_for(commit) and not self.state.closing.may_be_absent(commit.certificate.absent, view):
            return [Reject(sender, Commit.KIND, "it leaves out an elector that we do not consider gone")]
        try:
            verify_commit(self.state.settings, commit, self.base)
        except Malformed as error:
            return [Reject(sender, Commit.KIND, str(error))]
        sources = dict.fromkeys([sender, *(PeerId(member.peer) for member in commit.record.members)])
        return self._decide(commit, tuple(peer for peer in sources if peer != self.me))

    def _voted_for(self, commit: Commit) -> bool:
        """Return True if we voted for this record without the electors that its certificate leaves out."""
        kept, absent = self.state.kept, commit.certificate.absent
        if kept.absent == absent and kept.first == record_hash(commit.record):
            return True
        return kept.reduced is not None and kept.reduced.record == commit.record and kept.reduced.proof.absent == absent

    def _decide(self, commit: Commit, sources: tuple[PeerId, ...]) -> list[RoundEffect]:
        if commit.record.result_root in self.state.obtained:
            return self._end(commit)
        self._certified = commit
        return [ObtainResult(commit.record, tuple(commit.index), sources, self.me, None)]

    def _on_result_obtained(self, root: bytes) -> list[RoundEffect]:
        """End the round if its certified record waited for this result; otherwise vote if the proposed record has it."""
        self.state.obtained.add(root)
        if self._certified is not None and self._certified.record.result_root == root:
            commit, self._certified = self._certified, None
            return self._end(commit)
        return self._voter.on_result_obtained(root)

    def _is_result_lost(self, commit: Commit, view: View) -> bool:
        """Return True if every peer that may have the result of a certified record is gone.

        In that case we ignore the record.  If one of these peers comes back, it sends the record again.
        """
        members = (PeerId(member.peer) for member in commit.record.members)
        holders = {*self.base.electors, *members} - {self.me}
        return bool(holders) and all(self.state.closing.is_gone(peer, view) for peer in holders)

    def _end(self, commit: Commit) -> list[RoundEffect]:
        self.state.decided = commit
        return [Committed(commit)]

    def farewell(self) -> list[Send | Forward]:
        """Return the statements that others need when we leave: the certified record, or the statements that lead to one."""
        commit, plan = self.decided or self._certified, self.state.plan
        members = commit.record.members if commit is not None else plan.members if plan is not None else []
        named = dict.fromkeys([*self.base.electors, *(PeerId(member.peer) for member in members)])
        others = tuple(peer for peer in named if peer != self.me)
        return [Send(others, commit)] if commit is not None else [*self._relay.farewell(others)]

    # -- time ---------------------------------------------------------------------------------------------------------

    def _tick(self, view: View, now: float) -> list[RoundEffect]:
        """Close the round, lead our attempt, or give up another peer's attempt after its timeout."""
        state = self.state
        if state.decided is not None or (self._certified is not None and not self._is_result_lost(self._certified, view)):
            return []
        self._certified = None
        effects = self._repair()
        if not self._closing:
            asks, closable = state.closing.gather(view, now)
            effects += asks
            wanted = self._view_changes.is_closing_wanted() and (self._was_in or state.closing.has_quorum(view))
            self._closing = closable or wanted
            if not self._closing:
                return effects
            state.move(now)
        if not state.closing.can_decide(view) or not self._is_accompanied():
            state.move(now)  # no quorum is within reach, so no proposer is to blame
        elif self._voter.is_spoilt or not state.is_in_time(now, voting=self._voter.is_voting):
            self._give_up_attempt(now)
        view_change, ballot = self._voter.change_view(view, now)
        effects += view_change
        if ballot is not None and ballot.proposer == self.me:
            effects += self._proposer.lead(ballot, view, now)
        return effects

    def _is_accompanied(self) -> bool:
        """Return True if, as far as we know, a quorum has entered our attempt.

        An attempt cannot succeed before that, so a peer that is ahead waits for the others, as PBFT's view change timer
        does.  A lock of the attempt shows that a quorum voted in it.
        """
        newest, kept = self._voter.newest, self.state.kept
        if newest is None or newest.ballot.attempt != self.state.attempt or newest.ballot.members:
            return True
        if any(lock is not None and lock.proof.attempt == newest.ballot.attempt for lock in (kept.lock, kept.reduced)):
            return True
        return newest.answered or self._view_changes.present_in(newest.ballot) >= newest.ballot.quorum

    def _repair(self) -> list[RoundEffect]:
        """Recheck our outer state if the electors have another one."""
        digest = self.state.outer
        other = self.state.closing.state_against(digest) if digest is not None else None
        return [Repair(Hash(digest_in(other)))] if other is not None else []

    def _give_up_attempt(self, now: float) -> None:
        """Go to another attempt.  An attempt that its proposer spoilt for all voters does not lengthen our timeouts."""
        state, stalled = self.state, self._voter.proposer_to_blame()
        if stalled is not None:
            state.closing.lateness.proposers.lost_with(stalled, self.base.round)
        if self._voter.is_spoilt:
            state.go_to_attempt(state.attempt + 1, now)
            return
        state.losses += 1
        state.go_to_attempt(max(state.attempt + 1, self._view_changes.pull()), now)
