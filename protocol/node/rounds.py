"""The rounds of a node, one after another, and the running round: the trio shell of its `RoundMachine`.

All events for the machine pass through the round's inbox and one task, `_drive`, so effects are performed in the order in
which the machine decided them: a vote is on disk before it is sent.  Other tasks run the round's contribution (compute,
then READY), its exchanges, and the fetching of results.  All tasks end with the round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import trio

from protocol.agreement.events import (
    AmendmentHeld,
    Arrived,
    AuditFailed,
    AverageDisproved,
    BeginExchange,
    Committed,
    ExchangeMoved,
    FinishCompute,
    Forward,
    ObtainResult,
    Persist,
    PlanUnknown,
    Reject,
    Repair,
    RoundEffect,
    RoundEvent,
    Send,
    StateHashed,
    Tick,
    View,
)
from protocol.agreement.machine import RELAYED, RoundMachine
from protocol.allreduce.lateness import LatenessMemory, Observed, fair_time
from protocol.allreduce.runner import ExchangeAsk, ExchangeRunner, push_plan
from protocol.audit.auditor import Auditor, Unaccountable
from protocol.audit.evidence import ProvenLie, TwoStatements
from protocol.chain.base import Base
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed, let_go
from protocol.node.contributor import Contributor, Work
from protocol.node.exchanges import Exchanges, ResultObtainer, ResultSources, RunningExchange
from protocol.node.receipts import ReceiptAudits
from protocol.node.round_parts import (
    Deliveries,
    EarlyReadyBuffer,
    Inbox,
    RoundPeers,
    RoundReport,
    Surroundings,
    VoteLog,
)
from protocol.offload import Offload
from protocol.trainer_link import Contribution
from protocol.transport.handlers import Fault, Statement, answers, hears, is_told, landed, lands
from protocol.transport.interface import Acceptance, Landing, Offence, Refused
from protocol.wire.envelope import Body, Envelope
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Plan, Ready, VoterState
from protocol.wire.questions import PartReply, PartRequest

# ------------------------------------------------------------------------------------------------------------------------


TICK_S = 0.25


@dataclass(frozen=True)
class Behind:
    """The outcome of a round that the swarm has left without us: we must catch up."""


@dataclass(frozen=True)
class StateDisagreement:
    """The outcome of a round if our state differs from the swarm's state.  digest: the digest of the swarm's state."""

    digest: Hash


Outcome = Commit | Behind | StateDisagreement


class RunningRound:
    """The round on the tip `base`, while it runs.

    kept: the votes that bind us at this tip.  abstains: True if we do not vote, because earlier votes may be lost, or bind
    us to another record.  state_verified: True if the state was just rebuilt from certified data, so peers with another
    state are wrong.
    """

    def __init__(self, rounds: Rounds, base: Base, kept: VoterState | None, *, abstains: bool, state_verified: bool) -> None:
        peers, self.base, self._state_verified = rounds.peers, base, state_verified
        self.session, self._guard, self._ejections = peers.session, peers.guard, peers.ejections
        self._replica, self._votes, self._contributor = rounds.replica, rounds.votes, rounds.contributor
        self._lateness, self._deliveries = rounds.lateness, rounds.deliveries
        me, now = self.session.me, trio.current_time()
        self.machine = RoundMachine(me, self._replica.rounds, base, now, kept, self._lateness, abstains=abstains)
        self._audits = rounds.audits
        self.machine.note_aside(self._audits.aside(base.round))
        self._audits.begin(base)
        self.work, self.inbox = self._contributor.work_on(base), Inbox(self.session)
        ahead_s = self._contributor.ahead_s(self.work)
        self.machine.note_training(ahead_s)
        self.exchanges = Exchanges(self.session, self._replica, rounds.offload, partial(self.inbox.note, ExchangeMoved()))
        auditor = Auditor(self.session, self._replica, rounds.offload, peers.membership, self.work)
        self._obtainer = ResultObtainer(self._replica, rounds.offload, rounds.sources, auditor, self.exchanges)
        self._surroundings = Surroundings(me, peers.membership, base)
        self._report = RoundReport(self.session, peers.membership, peers.activity, abstains=abstains)
        self._over = trio.Event()
        self._outcome: Outcome | None = None
        self._trained_s = 0.0
        self._begun, self._computed_s = now - ahead_s, 0.0
        """Time when the training for this round began, without waits before the round; and seconds until its exchange."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Run until the round is committed or we cannot commit it; return the outcome.  Raises `StoreFull`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drive, nursery)
                nursery.start_soon(self._tick)
                nursery.start_soon(self._contribute)
                await self._over.wait()
                if isinstance(self._outcome, Commit):
                    await self._audits.close(self._trained_s)
                nursery.cancel_scope.cancel()
        finally:
            self._remember_stalls()
            self.exchanges.close()
        assert self._outcome is not None
        return self._outcome

    def end(self, outcome: Outcome) -> None:
        """Stop with this outcome; only the first outcome counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._over.set()

    @property
    def deciding(self) -> bool:
        """True while we commit a certified record; catching up must wait until then."""
        return self.machine.decided is not None

    def part(self, peer: PeerId, root: Hash, chunk: int) -> tuple[list[bytes], memoryview] | None:
        """Return (tree proof, bytes) of a chunk of our contribution for an auditor; None if `peer` must not have it.

        Nobody gets it before we have taken up a plan with it, and then only members and voters do.  A peer that read
        contributions before it committed to its own could send a copy, or choose one that suits it.
        """
        may_read = self.exchanges.any and (peer in self.base.electors or self.exchanges.names(peer))
        return self.work.part(root, chunk) if may_read else None

    def hand_over(self) -> None:
        """Begin to deliver the statements that would be lost when we leave."""
        for effect in self.machine.farewell():
            self._deliveries.send(effect, self.inbox, None)

    def on_verdict(self, verdict: ProvenLie) -> None:
        """Act on the proof that a peer has lied."""
        self.exchanges.peer_dead(verdict.peer)
        for chunk, hash in verdict.false_chunks:
            self.inbox.tell(AverageDisproved(verdict.peer, chunk, hash))

    # -- the machine --------------------------------------------------------------------------------------------------

    async def _drive(self, nursery: trio.Nursery) -> None:
        async with aclosing(self.inbox):
            while True:
                for effect in self._handle_safely(await self.inbox.next()):
                    await self._perform(effect, nursery)

    def _handle_safely(self, event: RoundEvent) -> list[RoundEffect]:
        """Handle an event.  If the machine raises, drop a statement, or restart the round for an event of our own."""
        sender, what = self.session.me, type(event).__name__
        if isinstance(event, Arrived):
            sender, what = event.sender, type(event.body).KIND
        try:
            with self._guard.report(sender, what):
                return self._handle(event)
        except Fault:
            if not isinstance(event, Arrived):
                self.end(Behind())
            return []

    def _handle(self, event: RoundEvent) -> list[RoundEffect]:
        view, now = self._view(), trio.current_time()
        for noted, at in self.inbox.take_notes():
            self.machine.handle(noted, view, at)
        return self.machine.handle(event, view, now)

    def _view(self) -> View:
        """Return the present view of all peers."""
        return self._surroundings.look_around(self.session.network.bandwidth().least, self._contributor.computes)

    async def _tick(self) -> None:
        while True:
            for peer in self.exchanges.refusing():
                self.inbox.tell(PlanUnknown(peer))
            self.inbox.note(AmendmentHeld(self._contributor.amendment()))
            self.inbox.tell(Tick())
            self._show_waiting()
            await trio.sleep(TICK_S)

    def _show_waiting(self) -> None:
        newest = self.exchanges.newest
        if newest is not None:
            self._report.exchange_waits(newest.exchange)
        elif self.work.ready is not None:
            self._report.waiting(self.machine, self._view(), self._replica.rounds.min_members)

    # -- effects ------------------------------------------------------------------------------------------------------

    async def _perform(self, effect: RoundEffect, nursery: trio.Nursery) -> None:
        if isinstance(effect, Persist):
            await self._votes.save(effect.kept)
        elif isinstance(effect, Send):
            self._report.sent(effect.body)
            self._deliveries.send(effect, self.inbox, nursery)
        elif isinstance(effect, Forward):
            self._deliveries.send(effect, self.inbox, nursery)
        elif isinstance(effect, BeginExchange):
            await self._begin_exchange(effect.plan, nursery)
        elif isinstance(effect, FinishCompute):
            self._contributor.finish(self.base)
        elif isinstance(effect, ObtainResult):
            nursery.start_soon(self._obtain, effect)
        elif isinstance(effect, Committed):
            self.end(effect.commit)
        elif isinstance(effect, Reject):
            self._report.rejected(effect)
        elif isinstance(effect, Repair) and not self._state_verified:
            self.end(StateDisagreement(effect.digest))

    async def _begin_exchange(self, plan: Plan, nursery: trio.Nursery) -> None:
        self._computed_s = self._computed_s or trio.current_time() - self._begun
        members = [PeerId(member.peer) for member in plan.members]
        stall_s, fair_s = self._replica.rounds.stall_s, self._fair(members)
        limits = self._lateness.limits(self.session.me, members, self.base, stall_s, fair_s)
        running = await self.exchanges.begin(plan, self.work, limits)
        if running is not None:
            view = self._view()
            for peer in members:
                if peer in view and view[peer].left:
                    running.exchange.peer_dead(peer)
                elif peer in view and not view[peer].live:
                    running.exchange.peer_suspected(peer)
            self._report.exchanging(plan)
            nursery.start_soon(self._exchange, running, nursery)

    def _fair(self, members: Collection[PeerId]) -> float:
        """Return the time that an exchange of these members may wait for one member (s)."""
        return fair_time(self._computed_s, len(members))

    def _remember_stalls(self) -> None:
        """Remember the members for which our exchanges waited."""
        if isinstance(self._outcome, Commit):
            members = {PeerId(member.peer) for member in self._outcome.record.members}
            stall_s, fair_s = self._replica.rounds.stall_s, self._fair(members)
            seen = Observed.of_round(self.exchanges.observed())
            self._lateness.judge_exchange(self.session.me, members, self.base, seen, stall_s, fair_s)

    async def _exchange(self, running: RunningExchange, nursery: trio.Nursery) -> None:
        nursery.start_soon(running.exchange.run)
        self.inbox.tell(await running.outcome())

    async def _obtain(self, effect: ObtainResult) -> None:
        try:
            with self._guard.report(effect.proposer, "record", passing=(StoreFailed,)):
                await self._obtain_or_refuse(effect)
        except Fault:
            self.inbox.tell(AuditFailed(effect.record.result_root))

    async def _obtain_or_refuse(self, effect: ObtainResult) -> None:
        for lie in await self._obtainer.contradictions(effect):
            await self._ejections.convict(lie)
        try:
            obtained = await self._obtainer.obtain(effect)
        except Unaccountable as problem:
            if problem.evidence is not None:
                await self._ejections.convict(problem.evidence)
            self.inbox.tell(AuditFailed(effect.record.result_root))
            self._report.unaccountable(effect.record.round, problem)
        else:
            if obtained is not None:
                self.inbox.tell(obtained)

    # -- contribution -------------------------------------------------------------------------------------------------

    async def _contribute(self) -> None:
        state = await self._contributor.name_state()
        self.inbox.note(StateHashed(state))
        begun = trio.current_time()
        contribution = await self._contributor.compute(self.base, self.work, self._surroundings.steps_ahead)
        self._trained_s = trio.current_time() - begun
        if contribution is not None:
            await self._say_ready(contribution, state)
            if not self._replica.manifest.is_streamed:  # there the trainer trains on
                with self._guard.watch(self.session.me, "audits"):
                    await self._audits.run()

    async def _say_ready(self, contribution: Contribution, state: bytes) -> None:
        ready, envelope = await self._contributor.commit(self.base, self.work, contribution, state)
        self._contributor.train_ahead(self.base, self.work, self._guard.start)
        self._report.ready(ready, contribution, self._replica.manifest.fragments)
        self.inbox.receive(self.session.me, ready, envelope)
        await self.session.network.publish(envelope.raw)
        self._show_waiting()


# ------------------------------------------------------------------------------------------------------------------------


def read_plan(header: bytes) -> tuple[Hash, bytes] | None:
    """Return the plan of a pushed chunk of an exchange, with the header; None for other pushes."""
    plan = push_plan(header)
    return (plan, header) if plan is not None else None


class Rounds:
    """The rounds of one node, and the handlers of messages about rounds.

    running: the running round; None between rounds, when statements and events are ignored, except READYs for the next one.
    lateness: our memory of lateness in earlier rounds.
    """

    def __init__(
        self,
        peers: RoundPeers,
        replica: Replica,
        offload: Offload,
        votes: VoteLog,
        sources: ResultSources,
        contributor: Contributor,
        audits: ReceiptAudits,
    ) -> None:
        self.peers, self.replica, self.offload = peers, replica, offload
        self.votes, self.sources, self.contributor, self.audits = votes, sources, contributor, audits
        self.lateness, self.deliveries = LatenessMemory(), Deliveries(peers)
        self.running: RunningRound | None = None
        self._readys = EarlyReadyBuffer(replica.history, replica.rounds.max_members)

    async def run_next(self, beside: Callable[[trio.Event], Awaitable[None]], *, state_verified: bool) -> Outcome:
        """Run the round on our tip and return its outcome.  Raises `StoreFull`.

        beside: runs at the same time as the round; its argument is set once our trainer has been told to train.
        state_verified: True if the state was just rebuilt from certified data.
        """
        base = self.replica.base
        kept, abstains = await self.votes.load(base)
        if kept is not None and kept.lock is not None:
            self.peers.activity.note_present()  # we have to stay on this tip, and the others have to know
        self.running = running = RunningRound(self, base, kept, abstains=abstains, state_verified=state_verified)
        try:
            for peer, ready, envelope in self._readys.begin(base.round, base.tip):
                running.inbox.receive(peer, ready, envelope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(beside, running.work.training)
                outcome = await running.run()
                nursery.cancel_scope.cancel()
        finally:
            self.running = None
        if isinstance(outcome, Commit):
            await self.votes.note_commit(base.electors, base.round + 1)
            self.audits.note(base, outcome)
        return outcome

    async def hand_over(self) -> None:
        """Send statements that perhaps only we know, before a goodbye, and wait until all our deliveries are over."""
        if self.running is not None:
            self.running.hand_over()
        await self.deliveries.delivered()

    @property
    def work(self) -> Work | None:
        """Our work in the running round; None between rounds."""
        return self.running.work if self.running is not None else None

    # -- events -------------------------------------------------------------------------------------------------------

    def peer_dead(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer has left."""
        if self.running is not None:
            self.running.exchanges.peer_dead(peer)

    def peer_suspected(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer is silent, or that its connection broke."""
        if self.running is not None:
            self.running.exchanges.peer_suspected(peer)

    def peer_alive(self, peer: PeerId, *, restarted: bool) -> None:
        """Tell the exchanges that a peer is alive again.  restarted: True if that is another process of it."""
        if self.running is not None:
            self.running.exchanges.peer_alive(peer, restarted=restarted)

    def on_verdict(self, verdict: ProvenLie) -> None:
        """Tell the running round that a peer is proven to have lied."""
        if self.running is not None:
            self.running.on_verdict(verdict)

    # -- messages -----------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: Body, envelope: Envelope, *, by: PeerId | None = None) -> None:
        """Queue a statement for the running round.  by: the peer that brought it; None if that is the sender."""
        if self.running is not None:
            self.running.inbox.receive(sender, body, envelope, by=by)

    @hears(Ready)
    def hear_ready(self, said: Statement[Ready]) -> Acceptance:
        """Receive a READY of a peer that a record may name."""
        peers = self.peers
        if not peers.handshake.may_be_named(said.sender, said.body):
            return Acceptance.IGNORE
        news = self._readys.add(said.sender, said.body, said.envelope, is_live=peers.membership.is_live(said.sender))
        if isinstance(news, TwoStatements):
            peers.ejections.accuse(said.sender, news.first, news.second)
            return Acceptance.IGNORE
        if news:
            self.receive(said.sender, said.body, said.envelope)
        return Acceptance.of_news(news)

    @is_told("round", Body)
    async def told(self, said: Statement[Body]) -> None:
        """Receive a statement about the round that was sent to us alone.  Raises `Offence`."""
        if said.sender != said.by and not isinstance(said.body, (Commit, *RELAYED)):
            raise Offence("a statement that another peer signed")
        self.peers.ejections.compare(said)
        self.receive(said.sender, said.body, said.envelope, by=said.by)

    @answers("part", PartRequest)
    async def answer_part(self, peer: PeerId, question: PartRequest) -> bytes:
        """Return a slice of our contribution to a member or voter of a plan that we have taken up, for its audit."""
        running = self.running
        part = running.part(peer, Hash(question.root), question.chunk) if running is not None else None
        if part is None:
            raise Refused("that contribution is not here")
        proof, piece = part
        data = bytes(piece[question.offset : question.offset + question.length])
        let_go(piece)
        return PartReply(proof=proof, data=data).encode()

    @answers("exchange", ExchangeAsk)
    async def answer_exchange(self, peer: PeerId, ask: ExchangeAsk) -> bytes:
        """Note that a member asks for a chunk's average, or for our part of the chunk."""
        exchange = await self._exchange(Hash(ask.plan))
        if exchange is None:
            raise Refused("no such exchange here")
        exchange.asked(peer, ask)
        return b""

    @lands(read_plan)
    async def open_push(self, peer: PeerId, header: tuple[Hash, bytes], size: int) -> Landing | None:
        """Return the landing for a chunk of an exchange; None if the chunk is not wanted."""
        exchange = await self._exchange(header[0])
        return await exchange.open_push(peer, header[1], size) if exchange is not None else None

    @landed(read_plan)
    async def finish_push(self, peer: PeerId, header: tuple[Hash, bytes], landing: Landing | None) -> None:
        """Finish a push of an exchange, which is complete or was interrupted."""
        if self.running is not None:
            await self.running.exchanges.finish_push(header[0], peer, header[1], landing)

    async def _exchange(self, plan: Hash) -> ExchangeRunner | None:
        return await self.running.exchanges.find(plan) if self.running is not None else None
