"""One round as it happens: the trio shell around `protocol.consensus.machine.RoundMachine`.

Everything that concerns the machine passes through the round's inbox and one task, `_drive`, so that effects are performed
in the order they were decided: a vote is on disk before it is sent.  Beside it run the round's contribution (compute,
then READY), its exchanges, and the fetching of results.  All of it ends with the round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass

import trio

from protocol.audit.auditor import Auditor, Unaccountable
from protocol.audit.ejection import Ejections
from protocol.audit.evidence import Evidence, Verdict
from protocol.consensus.effects import (
    BeginExchange,
    Committed,
    FinishCompute,
    Forward,
    ObtainResult,
    Persist,
    Reject,
    Repair,
    RoundEffect,
    Send,
)
from protocol.consensus.events import (
    AmendmentHeld,
    Arrived,
    AuditFailed,
    AverageDisproved,
    PlanUnknown,
    RoundEvent,
    StateHashed,
    Tick,
)
from protocol.consensus.machine import RoundMachine
from protocol.consensus.patience import STRANGERS, Patience, Seen, judge, share_of
from protocol.consensus.planning import FEWEST
from protocol.consensus.policy import fair_time
from protocol.consensus.terms import View
from protocol.membership.activity import Activity
from protocol.membership.liveness import Membership
from protocol.network.session import Session
from protocol.node.contributor import Contributor
from protocol.node.delivery import Delivery
from protocol.node.exchanges import Exchanges, RunningExchange
from protocol.node.guard import Guard
from protocol.node.inbox import Inbox
from protocol.node.outlasting import Outlasting
from protocol.node.result_obtainer import ResultObtainer
from protocol.node.round_report import RoundReport
from protocol.node.view import Surroundings
from protocol.node.work import Work
from protocol.offload import Offload
from protocol.state.base import Base
from protocol.state.disk import StoreFailed
from protocol.state.electorate import tolerated
from protocol.state.replica import Replica
from protocol.sync.catch_up import CatchUp
from protocol.trainer_link import Contribution
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit, Kept, Plan

TICK_S = 0.25


@dataclass(frozen=True)
class Behind:
    """The swarm went on without us: catch up."""


@dataclass(frozen=True)
class Wrong:
    """Our state is not the swarm's.  digest: of the swarm's."""

    digest: Hash


Outcome = Commit | Behind | Wrong


class RoundRunner:
    """Lives one round.

    kept: what binds us at this tip.  abstains: it is lost.  patience: what we remember of earlier rounds.
    state_verified: the state was just made anew from certified data: peers that stand on another one are wrong.
    outlasting: what does not end with the round.  amendment: of the sets of tasks, that is to go into our plans.
    """

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        base: Base,
        offload: Offload,
        membership: Membership,
        activity: Activity,
        catch_up: CatchUp,
        ejections: Ejections,
        contributor: Contributor,
        *,
        kept: Kept | None,
        abstains: bool,
        patience: Patience,
        state_verified: bool,
        outlasting: Outlasting,
        amendment: Callable[[], bytes | None],
    ) -> None:
        self.session, self.base, self._guard, self._amendment = session, base, guard, amendment
        self._replica, self._offload, self._patience = replica, offload, patience
        self._surroundings = Surroundings(session.me, membership, base)
        self._ejections, self._contributor, self._state_verified = ejections, contributor, state_verified
        self.machine = RoundMachine(session.me, replica.rounds, base, trio.current_time(), kept, patience, abstains=abstains)
        self.work, self.inbox = Work(replica.layout), Inbox(session)
        self.exchanges = Exchanges(session, replica, offload, self.inbox)
        self._delivery = Delivery(session, membership, self.inbox, outlasting)
        auditor = Auditor(session, replica, offload, membership, self.work)
        self._obtainer = ResultObtainer(replica, offload, catch_up, auditor, self.exchanges)
        self._report = RoundReport(session, membership, activity, abstains=abstains)
        self._over = trio.Event()
        self._outcome: Outcome | None = None
        self._nursery: trio.Nursery | None = None
        self._begun, self._computed_s = trio.current_time(), 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Until the round is committed, or cannot be by us.  Raises `StoreFull`."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._drive)
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
        """Stop with this outcome; the first one counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._over.set()

    @property
    def deciding(self) -> bool:
        """A certified record is about to be committed: not the moment to catch up."""
        return self.machine.decided is not None

    def hand_over(self, nursery: trio.Nursery) -> None:
        """We leave: begin to pass on, in this nursery, what would be lost with us."""
        for effect in self.machine.farewell():
            if isinstance(effect, Send):
                self._delivery.send(effect, nursery)
            else:
                self._delivery.forward(effect, nursery)

    def on_verdict(self, verdict: Verdict) -> None:
        """A peer is proven to have lied."""
        self.exchanges.peer_dead(verdict.peer)
        for chunk, hash in verdict.false_chunks:
            self.inbox.tell(AverageDisproved(verdict.peer, chunk, hash))

    # -- the machine --------------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        async with aclosing(self.inbox):
            while True:
                for effect in self._handle_safely(await self.inbox.next()):
                    await self._perform(effect)

    def _handle_safely(self, event: RoundEvent) -> list[RoundEffect]:
        """A statement that makes the machine raise is dropped; an event of our own ends the round, to begin it anew."""
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
        """All peers as they look now."""
        return self._surroundings.look_around(self.session.network.bandwidth().least, self._contributor.computes)

    async def _tick(self) -> None:
        while True:
            for peer in self.exchanges.refusing():
                self.inbox.tell(PlanUnknown(peer))
            self.inbox.note(AmendmentHeld(self._amendment()))
            self.inbox.tell(Tick())
            self._show_waiting()
            await trio.sleep(TICK_S)

    def _show_waiting(self) -> None:
        if self.work.ready is not None and not self.exchanges.any:
            self._report.waiting(self.machine, self._view(), self._replica.rounds.min_members)

    # -- effects ------------------------------------------------------------------------------------------------------

    async def _perform(self, effect: RoundEffect) -> None:
        assert self._nursery is not None
        if isinstance(effect, Persist):
            kept = effect.kept
            await self._offload(self._replica.store.votes.save, kept.round, Hash(kept.base), kept.encode())
        elif isinstance(effect, Send):
            self._report.sent(effect.body)
            self._delivery.send(effect, self._nursery)
        elif isinstance(effect, Forward):
            self._delivery.forward(effect, self._nursery)
        elif isinstance(effect, BeginExchange):
            await self._begin_exchange(effect.plan, self._nursery)
        elif isinstance(effect, FinishCompute):
            self._contributor.finish()
        elif isinstance(effect, ObtainResult):
            self._nursery.start_soon(self._obtain, effect)
        elif isinstance(effect, Committed):
            self.end(effect.commit)
        elif isinstance(effect, Reject):
            self._report.rejected(effect)
        elif isinstance(effect, Repair) and not self._state_verified:
            self.end(Wrong(effect.digest))

    async def _begin_exchange(self, plan: Plan, nursery: trio.Nursery) -> None:
        self._computed_s = self._computed_s or trio.current_time() - self._begun
        running = await self.exchanges.begin(plan, self.work)
        if running is not None:
            view, machine = self._view(), running.exchange.machine
            electors = [peer for peer in machine.members if peer in self.base.electors]
            allowed = self._patience.allow(
                self.session.me, machine.others, self.base, self._replica.rounds.stall_s, self._fair(machine.members)
            )
            machine.wait_s, machine.owner_s = allowed.wait_s, {**allowed.owner_s}
            machine.jury = electors if len(electors) >= FEWEST else machine.members  # keys of strangers cost nothing
            for member in plan.members:
                peer = PeerId(member.peer)
                machine.succession.shares[peer] = share_of(self._patience.members, self.base, peer)
                if peer in view and not view[peer].live:
                    running.exchange.peer_dead(peer)
            self._report.exchanging(plan)
            nursery.start_soon(self._exchange, running, nursery)

    def _fair(self, members: Collection[PeerId]) -> float:
        """How long (s) an exchange of these members may wait for one of them."""
        return fair_time(self._computed_s, len(members))

    def _remember_stalls(self) -> None:
        """Whoever kept our exchange waiting, or was followed as an owner, has stalled; the others did well.

        Whose parts are missing in averages of several electors is on probation, too: else a peer could stall one after the
        other.  One or some liars cannot take a peer's good name by leaving it out of theirs.
        """
        if not isinstance(self._outcome, Commit):
            return
        patience, round = self._patience, self.base.round
        members = {PeerId(member.peer) for member in self._outcome.record.members}
        seen = Seen(
            delays=self.exchanges.delays(),
            lateness=self.exchanges.lateness(),
            waited_s=self.exchanges.waited(),
            left_out=members & {*self.exchanges.left_out()},
            stalled=members & {*self.exchanges.stalled(), *self.machine.followed_owners()},
        )
        late = patience.judge_late(self.session.me, seen, self.base, self._replica.rounds.stall_s, self._fair(members))
        judge(patience.members, self.base, late, members, each=True)
        patience.missed.note(self.machine.missed(), round)
        for peer in patience.missed.by_more_than(tolerated(len(self.base.electors)), round):
            patience.members.suspect(peer if peer in self.base.electors else STRANGERS, round)

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
            await self._convict(lie)
        try:
            obtained = await self._obtainer.obtain(effect)
        except Unaccountable as problem:
            if problem.evidence is not None:
                await self._convict(problem.evidence)
            self.inbox.tell(AuditFailed(effect.record.result_root))
            self._report.unaccountable(effect.record.round, problem)
        else:
            if obtained is not None:
                self.inbox.tell(obtained)

    async def _convict(self, evidence: Evidence) -> None:
        verdict = await self._ejections.convict(evidence)
        if verdict is not None:
            self.on_verdict(verdict)

    # -- contribution -------------------------------------------------------------------------------------------------

    async def _contribute(self) -> None:
        state = await self._offload(self._replica.name_state)
        self.inbox.note(StateHashed(state))
        contribution = await self._contributor.compute(self.base, self.work, self._surroundings.steps_ahead)
        if contribution is not None:
            await self._say_ready(contribution, state)

    async def _say_ready(self, contribution: Contribution, state: bytes) -> None:
        ready, envelope = await self._contributor.commit(self.base, self.work, contribution, state)
        self._report.ready(ready)
        self._show_waiting()
        self.inbox.receive(self.session.me, ready, envelope)
        await self.session.network.publish(envelope.raw)
