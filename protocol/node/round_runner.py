"""One round as it happens: the trio shell around `protocol.consensus.machine.RoundMachine`.

Everything that concerns the machine passes through one queue and one task, `_drive`, so that effects are performed in
the order they were decided: a promise is on disk before it is sent.  Beside it run the round's work (compute, then
READY), its exchanges, and the fetching of results to hold.  All of it ends with the round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

from kernels.layout import payload_bytes
from protocol.audit.auditor import Auditor
from protocol.audit.evidence import Evidence, Verdict
from protocol.consensus.effects import (
    BeginExchange,
    Committed,
    FinishCompute,
    ObtainResult,
    Persist,
    Reject,
    Repair,
    RoundEffect,
    Send,
)
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
from protocol.consensus.machine import RoundMachine
from protocol.consensus.terms import View
from protocol.events import ComputeProgress, Dropped, Notice, ReadySent, RoundProposed, RoundVoted
from protocol.exchange.assignment import contribution_leaves, plan_hash
from protocol.exchange.runner import ExchangeRunner
from protocol.membership.liveness import Membership
from protocol.membership.pace import Pace
from protocol.network.interface import NetworkError, Unreachable
from protocol.network.session import Session
from protocol.node.holding import Holding, RunningExchange
from protocol.node.view import look_around
from protocol.node.work import Work
from protocol.offload import Offload
from protocol.run.settings import NodeSettings
from protocol.state.base import Base
from protocol.state.replica import Replica
from protocol.sync.catch_up import CatchUp
from protocol.trainer_link import ComputeTask, Contribution, Progress, TrainerDied, TrainerGaveUp, TrainerLink
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash, hash_bytes, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.messages import (
    Body,
    Commit,
    Phase,
    Plan,
    Promise,
    Proposal,
    Ready,
    Vote,
    WhyIdle,
    decode_body,
)

TICK_S = 0.25
QUEUE = 4096
"""Statements waiting to be handled; more are dropped, and their senders send again."""
QUEUE_BYTES = 16 << 20
QUEUE_BYTES_PER_PEER = 4 << 20
"""Of waiting statements as they travelled; in memory they take up to 16 times as much."""
REJECTIONS_LOGGED = 1024
REJECTIONS_LOGGED_PER_PEER = 16
"""In one round; who sends more must not push everything else out of the log."""
DELIVER_TIMEOUT_S = 10.0
DELIVER_RETRY_S = 0.5
HOLD_RETRY_S = 0.5
MAX_EXCHANGES = 6
"""Plans taken up in one round: each costs a result's room on disk, and a hostile proposer could make many."""
PLAN_WAIT_S = 5.0
"""How long a chunk that arrives before its plan is held back."""
Convict = Callable[[Evidence], Awaitable[None]]
SetPhase = Callable[[Phase, WhyIdle, str], None]


@dataclass(frozen=True)
class Behind:
    """The swarm went on without us: catch up."""


@dataclass(frozen=True)
class Wrong:
    """Our state is not the swarm's."""

    digest: Hash


Outcome = Commit | Behind | Wrong


class Pause:
    """Whether the person wants computing to rest.  `wait` returns when it may go on."""

    def __init__(self) -> None:
        self.on = False
        self._over = trio.Event()

    def begin(self) -> None:
        if not self.on:
            self.on, self._over = True, trio.Event()

    def end(self) -> None:
        self.on = False
        self._over.set()

    async def wait(self) -> None:
        if self.on:
            await self._over.wait()


class RoundRunner:
    """Lives one round.

    warmed_pid: the trainer process that has computed before; another one warms up its learning rate.
    state_verified: the state was just made anew from certified data: whoever stands on another one is wrong.
    outlasting: where the commit is delivered from, for it ends the round here before it has arrived there.
    """

    def __init__(self, session: Session, replica: Replica, settings: NodeSettings, membership: Membership,
                 trainer: TrainerLink | None, offload: Offload, serials: Iterator[int], pace: Pace, catch_up: CatchUp,
                 base: Base, kept: Promise | None, pause: Pause, set_phase: SetPhase, convict: Convict,
                 warmed_pid: int | None, state_verified: bool, outlasting: trio.Nursery) -> None:
        self.session, self.replica, self.base = session, replica, base
        self._settings, self._membership, self._trainer = settings, membership, trainer
        self._offload, self._serials, self._pace = offload, serials, pace
        self._outlasting = outlasting
        self._state_verified = state_verified
        self.machine = RoundMachine(session.me, replica.rounds, base, trio.current_time(), kept)
        self.work = Work(replica.layout)
        self.warmed_pid = warmed_pid
        self._catch_up, self._pause, self._set_phase = catch_up, pause, set_phase
        self._put, self._take = trio.open_memory_channel[tuple[RoundEvent, PeerId, int]](QUEUE)
        self._noted: dict[type[RoundEvent], tuple[RoundEvent, float]] = {}
        self._waiting_bytes: Counter[PeerId] = Counter()
        self._rejected: Counter[PeerId] = Counter()
        self._exchanges: dict[Hash, RunningExchange] = {}
        auditor = Auditor(session, replica, offload, self._lives, self.work, convict)
        self._holding = Holding(session, replica, offload, catch_up, auditor, self._exchanges, self._on_held,
                                self._on_refused)
        self._exchange_begun = trio.Event()
        self._proposed = -1
        self._over = trio.Event()
        self._outcome: Outcome | None = None
        self._nursery: trio.Nursery | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Until the round is committed, or cannot be by us."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._drive)
                nursery.start_soon(self._tick)
                nursery.start_soon(self._work)
                await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            for running in self._exchanges.values():
                running.file.discard()
        assert self._outcome is not None
        return self._outcome

    def end(self, outcome: Outcome) -> None:
        """Stop with this outcome; the first one counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._over.set()

    @property
    def engaged(self) -> bool:
        """We exchange: the proposer will tell us what came of it."""
        return bool(self._exchanges)

    @property
    def deciding(self) -> bool:
        """A certified record is about to be committed: not the moment to catch up."""
        return self.machine.decided is not None

    def view(self) -> View:
        """Everybody as they look now."""
        return look_around(self.session.me, self._membership, self.session.network.bandwidth().least, self.base,
                           self._computing())

    def _computing(self) -> bool:
        return self._trainer is not None and not self._pause.on

    # -- what arrives -------------------------------------------------------------------------------------------------

    def receive(self, sender: PeerId, body: Body, envelope: Envelope, *, by: PeerId | None = None) -> None:
        """Queue a statement for the machine.  by: who brought it, if not its sender."""
        bringer, size = by or sender, max(len(envelope.raw), QUEUE_BYTES // QUEUE)
        held = self._waiting_bytes
        if held.total() + size > QUEUE_BYTES or held[bringer] + size > QUEUE_BYTES_PER_PEER:
            self.session.emit(Dropped(bringer, "statement", "too many bytes are waiting"))
            return

        if self._post(Arrived(sender, body, envelope.signature), bringer, size):
            held[bringer] += size

    def _post(self, event: RoundEvent, bringer: PeerId, size: int = 0) -> bool:
        """Queue an event for the machine.  size: bytes of a statement, charged to its bringer until it is handled."""
        try:
            self._put.send_nowait((event, bringer, size))
            return True
        except trio.BrokenResourceError:
            return False  # the round is over
        except trio.WouldBlock:
            self.session.emit(Dropped(self.session.me, "statement", "too many are waiting"))
            return False

    def _tell(self, event: RoundEvent) -> None:
        """Queue an event of our own."""
        self._post(event, self.session.me)

    def _note(self, event: StateHashed | ExchangeMoved) -> None:
        """Tell the machine before the next queued event.

        Of what asks for nothing only the newest of a kind counts: chunks arrive by hundreds, and must not fill the queue.
        """
        self._noted[type(event)] = (event, trio.current_time())

    def _handle(self, event: RoundEvent) -> list[RoundEffect]:
        view, now = self.view(), trio.current_time()
        for noted, at in self._noted.values():
            self.machine.handle(noted, view, at)
        self._noted.clear()
        return self.machine.handle(event, view, now)

    async def _drive(self) -> None:
        async with self._take:
            async for event, bringer, size in self._take:
                self._waiting_bytes[bringer] -= size
                for effect in self._handle(event):
                    await self._perform(effect)

    async def _tick(self) -> None:
        while True:
            self._tell(Tick())
            self._show_waiting()
            await trio.sleep(TICK_S)

    def _show_waiting(self) -> None:
        if self.work.ready is None or self._exchanges or self._pause.on:
            return
        waiting = self.machine.waiting_for(self.view())
        ready = len(self.machine.readys)
        least = self.replica.rounds.min_members
        if ready < least and not waiting:
            self._set_phase(Phase.READY, WhyIdle.WAITING_FOR_PEERS,
                            f"waiting for {least - ready} more peers ({ready} of {least})")
        else:
            names = ", ".join(self._name(peer) for peer in waiting[:4]) or "the proposer"
            self._set_phase(Phase.READY, WhyIdle.WAITING_FOR_MEMBERS,
                            f"round {self.base.round}: {ready} ready, waiting for {names}")

    def _name(self, peer: PeerId) -> str:
        known = self._membership.get(peer)
        return known.heartbeat.name if known and known.heartbeat.name else peer[-6:]

    # -- effects ------------------------------------------------------------------------------------------------------

    async def _perform(self, effect: RoundEffect) -> None:
        assert self._nursery is not None
        if isinstance(effect, Persist):
            await self._offload(self.replica.store.save_promise, effect.promise.encode())
        elif isinstance(effect, Send):
            self._send(effect)
        elif isinstance(effect, BeginExchange):
            await self._begin_exchange(effect.plan)
        elif isinstance(effect, FinishCompute):
            if self._trainer is not None:
                self._trainer.finish()
        elif isinstance(effect, ObtainResult):
            self._nursery.start_soon(self._holding.hold, effect)
        elif isinstance(effect, Committed):
            self.end(effect.commit)
        elif isinstance(effect, Reject):
            self._log_rejection(effect)
        elif isinstance(effect, Repair) and not self._state_verified:
            self.end(Wrong(effect.digest))

    def _log_rejection(self, effect: Reject) -> None:
        if self._rejected.total() < REJECTIONS_LOGGED and self._rejected[effect.sender] < REJECTIONS_LOGGED_PER_PEER:
            self._rejected[effect.sender] += 1
            self.session.emit(Dropped(effect.sender, effect.what, effect.reason))

    def _send(self, effect: Send) -> None:
        assert self._nursery is not None
        envelope = self.session.seal(effect.body)
        if isinstance(effect.body, Vote):
            self._set_phase(Phase.VOTING, WhyIdle.COMMITTING, f"round {self.base.round}: voted, waiting for the quorum")
            self.session.emit(RoundVoted(effect.body.round, effect.body.attempt, effect.body.record_hash.hex()))
        elif isinstance(effect.body, Proposal) and effect.body.attempt != self._proposed:
            plan, self._proposed = effect.body.plan, effect.body.attempt
            self.session.emit(RoundProposed(plan.round, effect.body.attempt, self.session.me,
                                          [member.peer for member in plan.members], list(effect.body.evicted)))
        nursery = self._outlasting if isinstance(effect.body, Commit) else self._nursery
        for peer in effect.to:
            if peer == self.session.me:
                self.receive(peer, effect.body, envelope)
            else:
                nursery.start_soon(self._deliver, peer, envelope)

    async def _deliver(self, peer: PeerId, envelope: Envelope) -> None:
        """Best effort: whatever matters is sent again by the machine."""
        for attempt in range(2):
            try:
                await self.session.network.request(peer, "round", envelope.raw, timeout_s=DELIVER_TIMEOUT_S)
                return
            except Unreachable:
                await trio.sleep(DELIVER_RETRY_S * (attempt + 1))
            except NetworkError as error:
                self.session.emit(Notice("debug", f"{self._name(peer)} refused our {envelope.kind}: {error}"))
                return

    # -- work ---------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Train, and say READY; again from the start when the trainer dies."""
        state_digest = await self._offload(self.replica.state.digest)
        self._note(StateHashed(state_digest))
        if self._trainer is None:
            self._set_phase(Phase.SEEDING, WhyIdle.NOT_A_TRAINER, "this peer keeps and serves the state, it does not train")
            return
        while True:
            await self._pause.wait()
            try:
                contribution = await self._compute()
            except TrainerGaveUp as end:
                self._set_phase(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"no trainer any more: {end}"[:200])
                return
            except TrainerDied as death:
                self._set_phase(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"the trainer stopped: {death}"[:200])
                continue
            await self._say_ready(contribution, state_digest)
            return

    async def _compute(self) -> Contribution:
        inner_steps = self.replica.manifest.rounds.inner_steps
        assert self._trainer is not None
        fresh = self._trainer.pid != self.warmed_pid and self.base.round > 0
        self.warmed_pid = self._trainer.pid
        task = ComputeTask(self.base.round, self._lane(), inner_steps, self.base.round * inner_steps,
                           self.replica.manifest.inner.joiner_warmup_steps if fresh else 0)
        self._set_phase(Phase.COMPUTING, WhyIdle.BUSY, "")
        self.work.training.set()
        return await self._trainer.compute(task, self.replica.state.theta, self._on_progress)

    def _lane(self) -> int:
        """Which samples are ours: electors by their place in the last record, others by a hash above those."""
        lanes = self.replica.manifest.rounds.max_members
        electors = sorted(self.base.electors)
        if self.session.me in electors:
            return electors.index(self.session.me)
        draw = hash_bytes("lane", self.base.tip + self.session.me.encode())
        return lanes + int.from_bytes(draw[:8], "big") % lanes

    def _on_progress(self, progress: Progress) -> None:
        work = self.work
        work.steps, work.tokens, work.loss = progress.steps, progress.tokens, progress.loss
        pace, total = self._pace, self.replica.manifest.rounds.inner_steps
        pace.observe(progress)
        self.session.emit(ComputeProgress(progress.round, progress.steps, total, progress.loss, pace.tokens_per_s,
                                        pace.left_s(total - progress.steps) or 0.0))

    async def _say_ready(self, contribution: Contribution, state_digest: Hash) -> None:
        work = self.work
        leaves = await self._offload(contribution_leaves, contribution.data, self.replica.layout)
        ready = Ready(round=self.base.round, fragment=self.base.fragment, base=self.base.tip,
                      incarnation=self._settings.incarnation,
                      serial=next(self._serials), tokens=contribution.tokens, steps=contribution.steps,
                      loss=contribution.loss, norm=contribution.norm, root=tree_root(leaves),
                      state_digest=state_digest)
        envelope = self.session.seal(ready)
        work.leaves = leaves
        work.contribution, work.ready, work.ready_raw = contribution, ready, envelope.raw
        self.session.emit(ReadySent(ready.round, ready.tokens, ready.steps, ready.loss))
        self._show_waiting()
        self.receive(self.session.me, ready, envelope)
        await self.session.network.publish(envelope.raw)

    # -- exchange -----------------------------------------------------------------------------------------------------

    async def _begin_exchange(self, plan: Plan) -> None:
        name = plan_hash(plan)
        if name in self._exchanges or len(self._exchanges) >= MAX_EXCHANGES:
            return
        assert self._nursery is not None and self.work.contribution is not None
        replica = self.replica
        file = await self._offload(replica.store.result_writer, plan.round, plan.fragment, payload_bytes(replica.layout))
        exchange = ExchangeRunner(session=self.session, plan=plan, layout=replica.layout,
                                  contribution=self.work.contribution.data, leaves=self.work.leaves, result=file.view,
                                  offload=self._offload, stall_s=replica.rounds.stall_s, rule=replica.manifest.aggregation)
        running = self._exchanges[name] = RunningExchange(exchange, file)
        for peer, seen in self.view().items():
            if not seen.live:
                exchange.peer_dead(peer)
        self._exchange_begun.set()
        self._exchange_begun = trio.Event()
        self._set_phase(Phase.EXCHANGING, WhyIdle.EXCHANGING,
                        f"round {plan.round}: exchanging with {len(plan.members)} members")
        self._nursery.start_soon(self._run_exchange, name, running)

    async def _run_exchange(self, name: Hash, running: RunningExchange) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(running.exchange.run)
        await running.exchange.done.wait()
        entries, provenance = running.exchange.entries(), running.exchange.provenance()
        self._tell(ExchangeDone(name, entries, provenance))

    async def exchange_for(self, plan: Hash) -> ExchangeRunner | None:
        """The exchange of this plan; waits a little for a plan that is on its way."""
        with trio.move_on_after(PLAN_WAIT_S):
            while plan not in self._exchanges:
                await self._exchange_begun.wait()
        running = self._exchanges.get(plan)
        return running.exchange if running else None

    def exchange_moved(self) -> None:
        self._note(ExchangeMoved())

    def peer_dead(self, peer: PeerId) -> None:
        for running in self._exchanges.values():
            running.exchange.peer_dead(peer)

    def on_verdict(self, verdict: Verdict) -> None:
        """Somebody is proven to have lied."""
        self.peer_dead(verdict.peer)
        if verdict.false_chunk is not None:
            chunk, hash = verdict.false_chunk
            self._tell(AverageDisproved(verdict.peer, chunk, hash))

    def _lives(self, peer: PeerId) -> bool:
        return self._membership.is_live(peer)

    def _on_held(self, root: Hash) -> None:
        self._tell(ResultObtained(root))

    def _on_refused(self, root: Hash) -> None:
        self._tell(AuditFailed(root))

    def peer_alive(self, peer: PeerId) -> None:
        for running in self._exchanges.values():
            running.exchange.peer_alive(peer)


def kept_promise(raw: bytes | None) -> Promise | None:
    """The promise on disk, if there is a readable one."""
    if raw is None:
        return None
    try:
        return decode_body(Promise, raw)
    except Malformed:
        return None
