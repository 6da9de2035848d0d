"""The rounds of a node, one after another; each round begins with the votes on disk and is current while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

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
from protocol.allreduce.lateness import Patience, fair_time
from protocol.allreduce.runner import ExchangeAsk, ExchangeRunner, push_plan
from protocol.audit.auditor import Unaccountable
from protocol.audit.ejection import Ejections
from protocol.audit.evidence import ProvenLie, TwoStatements
from protocol.chain.base import Base
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed, let_go
from protocol.membership.handshake import Handshake
from protocol.membership.liveness import Membership
from protocol.node.contributor import Contributor, Work
from protocol.node.exchanges import AuditedResults, Exchanges, RunningExchange
from protocol.node.round_parts import (
    Delivery,
    EarlyReadyBuffer,
    Inbox,
    PendingDeliveries,
    RoundPeers,
    RoundReport,
    Surroundings,
    VoteLog,
)
from protocol.trainer_link import Contribution
from protocol.transport.handlers import Guard, Statement, answers, hears, is_told, landed, lands
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


@dataclass(frozen=True)
class RoundStart:
    """Conditions under which a round begins.

    kept: the votes that bind us at this tip.  abstains: True if we do not vote, because earlier votes may be lost, or bind
    us to another record.  votes: keeps our votes.  patience: our memory of lateness in earlier rounds.  state_verified: True
    if the state was just rebuilt from certified data, so peers with another state are wrong.  deliveries: deliveries that
    outlive the round.
    """

    base: Base
    kept: VoterState | None
    abstains: bool
    votes: VoteLog
    patience: Patience
    state_verified: bool
    deliveries: PendingDeliveries


class RoundRunner:
    """Runner of one round."""

    def __init__(
        self,
        guard: Guard,
        replica: Replica,
        peers: RoundPeers,
        results: AuditedResults,
        contributor: Contributor,
        start: RoundStart,
    ) -> None:
        self.session, self.base, self._guard = peers.session, start.base, guard
        self._replica, self._results, self._contributor = replica, results, contributor
        self._votes, self._patience, self._state_verified = start.votes, start.patience, start.state_verified
        self._deliveries = start.deliveries
        me, now = self.session.me, trio.current_time()
        self.machine = RoundMachine(me, replica.rounds, self.base, now, start.kept, start.patience, abstains=start.abstains)
        self.work, self.inbox = contributor.work_on(self.base), Inbox(self.session)
        ahead_s = contributor.ahead_s(self.work)
        self.machine.note_training(ahead_s)
        self.exchanges = results.exchanges(lambda: self.inbox.note(ExchangeMoved()))
        self._obtainer = results.obtainer(self.work, self.exchanges)
        self._surroundings = Surroundings(me, peers.membership, self.base)
        self._delivery = Delivery(self.session, peers.membership, self.inbox, start.deliveries)
        self._report = RoundReport(self.session, peers.membership, peers.activity, abstains=start.abstains)
        self._over = trio.Event()
        self._outcome: Outcome | None = None
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
                nursery.cancel_scope.cancel()
        finally:
            self._remember_stalls()
            self.exchanges.discard()
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

    def hand_over(self, nursery: trio.Nursery) -> None:
        """Start to deliver, in this nursery, the statements that would be lost when we leave."""
        for effect in self.machine.farewell():
            if isinstance(effect, Send):
                self._delivery.send(effect, nursery)
            else:
                self._delivery.forward(effect, nursery)

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
        if isinstance(event, Arrived):
            with self._guard.watch(event.sender, type(event.body).KIND):
                return self._handle(event)
            return []
        with self._guard.watch(self.session.me, type(event).__name__):
            return self._handle(event)
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
            self._delivery.send(effect, nursery)
        elif isinstance(effect, Forward):
            self._delivery.forward(effect, nursery)
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
        limits = self._patience.limits(self.session.me, members, self.base, stall_s, fair_s)
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
        """Remember the members that stalled: our exchange waited for them, or another member averaged a chunk for them."""
        if not isinstance(self._outcome, Commit):
            return
        members = {PeerId(member.peer) for member in self._outcome.record.members}
        observed = self.exchanges.observed()
        observed = replace(observed, stalled={*observed.stalled, *self.machine.followed_owners()})
        self._patience.judge_exchange(
            self.session.me, members, self.base, observed, self._replica.rounds.stall_s, self._fair(members)
        )
        self._patience.judge_missed(self.machine.missed(), self.base)

    async def _exchange(self, running: RunningExchange, nursery: trio.Nursery) -> None:
        nursery.start_soon(running.exchange.run)
        self.inbox.tell(await running.outcome())

    async def _obtain(self, effect: ObtainResult) -> None:
        with self._guard.watch(effect.proposer, "record", passing=(StoreFailed,)):
            await self._obtain_or_refuse(effect)
            return
        self.inbox.tell(AuditFailed(effect.record.result_root))

    async def _obtain_or_refuse(self, effect: ObtainResult) -> None:
        for lie in await self._obtainer.contradictions(effect):
            await self._results.convict(lie)
        try:
            obtained = await self._obtainer.obtain(effect)
        except Unaccountable as problem:
            if problem.evidence is not None:
                await self._results.convict(problem.evidence)
            self.inbox.tell(AuditFailed(effect.record.result_root))
            self._report.unaccountable(effect.record.round, problem)
        else:
            if obtained is not None:
                self.inbox.tell(obtained)

    # -- contribution -------------------------------------------------------------------------------------------------

    async def _contribute(self) -> None:
        state = await self._contributor.name_state()
        self.inbox.note(StateHashed(state))
        contribution = await self._contributor.compute(self.base, self.work, self._surroundings.steps_ahead)
        if contribution is not None:
            await self._say_ready(contribution, state)

    async def _say_ready(self, contribution: Contribution, state: bytes) -> None:
        ready, envelope = await self._contributor.commit(self.base, self.work, contribution, state)
        self._contributor.train_ahead(self.base, self.work, self._deliveries.nursery)
        self._report.ready(ready, contribution, self._replica.manifest.fragments)
        self.inbox.receive(self.session.me, ready, envelope)
        await self.session.network.publish(envelope.raw)
        self._show_waiting()


# ------------------------------------------------------------------------------------------------------------------------
# The running round, for the components of a peer that outlive rounds, and the handlers of messages about rounds.


class CurrentRound:
    """The current round, opened by `Rounds`.  Between rounds it ignores statements and events.

    readys: READYs received, also before their round begins here.
    """

    def __init__(self, readys: EarlyReadyBuffer) -> None:
        self.readys = readys
        self._runner: RoundRunner | None = None

    @contextmanager
    def open(self, runner: RoundRunner) -> Iterator[None]:
        """Make this the current round inside the context."""
        self._runner = runner
        try:
            yield
        finally:
            self._runner = None

    @property
    def runner(self) -> RoundRunner | None:
        """Runner of the current round; None between rounds."""
        return self._runner

    @property
    def work(self) -> Work | None:
        """Our work in the current round; None between rounds."""
        return self._runner.work if self._runner is not None else None

    @property
    def exchanges(self) -> Exchanges | None:
        """Exchanges of the current round, for arriving chunks and questions; None between rounds."""
        return self._runner.exchanges if self._runner is not None else None

    # -- implements `protocol.membership.heartbeats.RoundProgress` ----------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of inner steps done."""
        return self._runner.work.steps if self._runner is not None else 0

    @property
    def loss(self) -> float:
        """Mean loss so far (nats a token)."""
        return self._runner.work.loss if self._runner is not None else 0.0

    @property
    def ready_raw(self) -> bytes:
        """Our READY as sent; empty before we have sent it."""
        return self._runner.work.ready_raw if self._runner is not None else b""

    # -- events -------------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: Body, envelope: Envelope, *, by: PeerId | None = None) -> None:
        """Queue a received statement for the current round.  by: the peer that brought it; None if that is the sender."""
        if self._runner is not None:
            self._runner.inbox.receive(sender, body, envelope, by=by)

    def peer_dead(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer has left."""
        if self._runner is not None:
            self._runner.exchanges.peer_dead(peer)

    def peer_suspected(self, peer: PeerId) -> None:
        """Tell the exchanges that a peer is silent, or that its connection broke."""
        if self._runner is not None:
            self._runner.exchanges.peer_suspected(peer)

    def peer_alive(self, peer: PeerId, *, restarted: bool) -> None:
        """Tell the exchanges that a peer is alive again.  restarted: True if that is another process of it."""
        if self._runner is not None:
            self._runner.exchanges.peer_alive(peer, restarted=restarted)

    def on_verdict(self, verdict: ProvenLie) -> None:
        """Tell the round that a peer is proven to have lied."""
        if self._runner is not None:
            self._runner.on_verdict(verdict)


# ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanHeader:
    """Header of a push of an exchange.  raw: the header as received."""

    plan: Hash
    raw: bytes


def read_plan(header: bytes) -> PlanHeader | None:
    """Return the header of a push if it carries a chunk of an exchange."""
    plan = push_plan(header)
    return PlanHeader(plan, header) if plan is not None else None


class RoundHandlers:
    """Handlers that deliver messages about rounds to the current round, and READYs also to the next one."""

    def __init__(self, handshake: Handshake, membership: Membership, ejections: Ejections, current: CurrentRound) -> None:
        self._handshake, self._membership, self._ejections, self._round = handshake, membership, ejections, current

    @hears(Ready)
    def hear_ready(self, said: Statement[Ready]) -> Acceptance:
        """Receive a READY of a peer that a record may name."""
        if not self._handshake.may_be_named(said.sender, said.body):
            return Acceptance.IGNORE
        is_live = self._membership.is_live(said.sender)
        news = self._round.readys.add(said.sender, said.body, said.envelope, is_live=is_live)
        if isinstance(news, TwoStatements):
            self._ejections.accuse(said.sender, news.first, news.second)
            return Acceptance.IGNORE
        if news:
            self._round.receive(said.sender, said.body, said.envelope)
        return Acceptance.of_news(news)

    @is_told("round", Body)
    async def told(self, said: Statement[Body]) -> None:
        """Receive a statement about the round that was sent to us alone.  Raises `Offence`."""
        if said.sender != said.by and not isinstance(said.body, (Commit, *RELAYED)):
            raise Offence("a statement that another peer signed")
        self._ejections.compare(said)
        self._round.receive(said.sender, said.body, said.envelope, by=said.by)

    @answers("part", PartRequest)
    async def answer_part(self, peer: PeerId, question: PartRequest) -> bytes:
        """Return a slice of our contribution to a member or voter of a plan that we have taken up, for its audit."""
        runner = self._round.runner
        part = runner.part(peer, Hash(question.root), question.chunk) if runner is not None else None
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
    async def open_push(self, peer: PeerId, header: PlanHeader, size: int) -> Landing | None:
        """Return the landing for a chunk of an exchange; None if the chunk is not wanted."""
        exchange = await self._exchange(header.plan)
        return await exchange.open_push(peer, header.raw, size) if exchange is not None else None

    @landed(read_plan)
    async def finish_push(self, peer: PeerId, header: PlanHeader, landing: Landing | None) -> None:
        """Finish a push of an exchange, which is complete or was interrupted."""
        if self._round.exchanges is not None:
            await self._round.exchanges.finish_push(header.plan, peer, header.raw, landing)

    async def _exchange(self, plan: Hash) -> ExchangeRunner | None:
        exchanges = self._round.exchanges
        return await exchanges.find(plan) if exchanges is not None else None


# ------------------------------------------------------------------------------------------------------------------------


class Rounds:
    """The rounds of one node, which share its memory of late members."""

    def __init__(
        self,
        guard: Guard,
        replica: Replica,
        peers: RoundPeers,
        votes: VoteLog,
        results: AuditedResults,
        contributor: Contributor,
        current: CurrentRound,
    ) -> None:
        self._guard, self._replica, self._peers, self._votes = guard, replica, peers, votes
        self._results, self._contributor, self._current = results, contributor, current
        self._patience = Patience()

    async def run_next(
        self, beside: Callable[[trio.Event], Awaitable[None]], *, state_verified: bool, deliveries: PendingDeliveries
    ) -> Outcome:
        """Run the round on our tip and return its outcome.  Raises `StoreFull`.

        beside: runs at the same time as the round; its argument is set once our trainer has been told to train.
        state_verified: True if the state was just rebuilt from certified data.  deliveries: deliveries that outlive the
        round.
        """
        base = self._replica.base
        kept, abstains = await self._votes.load(base)
        if kept is not None and kept.lock is not None:
            self._peers.activity.note_present()  # we have to stay on this tip, and the others have to know
        start = RoundStart(base, kept, abstains, self._votes, self._patience, state_verified, deliveries)
        runner = RoundRunner(self._guard, self._replica, self._peers, self._results, self._contributor, start)
        with self._current.open(runner):
            for peer, ready, envelope in self._current.readys.begin(base.round, base.tip):
                runner.inbox.receive(peer, ready, envelope)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(beside, runner.work.training)
                outcome = await runner.run()
                nursery.cancel_scope.cancel()
        if isinstance(outcome, Commit):
            await self._votes.note_commit(base.electors, base.round + 1)
        return outcome

    async def hand_over(self, deliveries: PendingDeliveries) -> None:
        """Send statements that perhaps only we know, before a goodbye, and wait until all our deliveries are over."""
        if self._current.runner is not None:
            self._current.runner.hand_over(deliveries.nursery)
        await deliveries.delivered()
