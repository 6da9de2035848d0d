"""The rollouts of a reinforcement learning run at one peer: the shell around `protocol.rollouts.pool`.

The shell receives and makes statements, fetches and removes batches, gives the trainer process the versions of the weights,
and has the process generate and verify.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Protocol

import trio

from protocol.blobs.swarm import Swarm
from protocol.chain.progress import TasksInForce
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed
from protocol.events.events import BatchJudged, Event, Notice, RolloutsGenerated
from protocol.events.rollout_tally import ACCEPTED, REJECTED, STALE, RolloutTally
from protocol.events.status import RolloutStatus, WhyIdle
from protocol.membership.activity import WorkPermit
from protocol.membership.liveness import Liveness, Membership
from protocol.offload import Offload
from protocol.rollouts.batch import beacon_of
from protocol.rollouts.betting import Wealth, WealthFile
from protocol.rollouts.events import (
    BatchHeard,
    CompareScores,
    ContradictoryBatches,
    DealHeard,
    DiscardBytes,
    Ejected,
    EmitEvent,
    FetchBatch,
    ForwardBatch,
    GossipDeal,
    GossipVerdicts,
    JudgementHeard,
    PoolEvent,
    PoolTick,
    TipChanged,
    TrainerIdle,
    VerifyBatch,
)
from protocol.rollouts.pool import Pool
from protocol.rollouts.reference import KEEPERS, Reference
from protocol.rollouts.selection import Selection
from protocol.rollouts.trainer import SharedTrainer, WorkStatus
from protocol.rollouts.trust import PLACES
from protocol.rollouts.worker import RETRY_S, BatchFetcher, BatchVerifier, RolloutMaker, StatementRepeater
from protocol.tasks.library import BlobKind, Library
from protocol.trainer_link import RolloutLink, TrainerDied, TrainerGaveUp
from protocol.transport.handlers import Guard, Statement, hears
from protocol.transport.interface import Acceptance, Session
from protocol.transport.task_group import TaskGroup
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.presence import Phase, Role
from protocol.wire.rollouts import ROLLOUT_CHUNK_BYTES, Judgement, RolloutBatch
from protocol.wire.rollouts import Deal as DealBody

# ------------------------------------------------------------------------------------------------------------------------
# A peer's statistics about rollouts, for its status and its heartbeat.  They are counted from its events when it emits them.


RATE_S = 60.0
MOST_JUDGED = 4096
"""Most judged batches that are remembered, for the rate over `RATE_S`."""
LAST_BATCHES = 8
"""Number of newest batches from which the rate of generation is computed."""


class RolloutCounter:
    """Counter of one peer's events about rollouts.  emit: called with every event after it was counted."""

    def __init__(self, me: PeerId, emit: Callable[[Event], None]) -> None:
        self._me, self._emit, self._tally, self._began = me, emit, RolloutTally(me), trio.current_time()
        self._judged: deque[tuple[float, int]] = deque(maxlen=MOST_JUDGED)
        self._made: deque[tuple[int, float]] = deque(maxlen=LAST_BATCHES)

    def __call__(self, event: Event) -> None:
        """Count an event, then emit it."""
        self._tally.apply(event, 0.0)
        match event:
            case BatchJudged(validator=self._me, accepted=good, rejected=bad, inconclusive=unsure):
                self._judged.append((trio.current_time(), good + bad + unsure))
            case RolloutsGenerated(tokens=tokens, seconds=seconds):
                self._made.append((tokens, seconds))
        self._emit(event)

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated per second, over the last batches."""
        return sum(tokens for tokens, _ in self._made) / max(1e-3, sum(seconds for _, seconds in self._made))

    @property
    def verified_per_s(self) -> float:
        """Rollouts verified by this peer per second, over the last minute."""
        now = trio.current_time()
        recent = sum(rollouts for at, rollouts in self._judged if now - at <= RATE_S)
        return recent / max(1.0, min(RATE_S, now - self._began))

    def status(self, version: int, waiting: int) -> RolloutStatus:
        """Return the statistics for `peer status`.  waiting: number of batches that concern us and have no verdict."""
        tally = self._tally
        learnt = tally.learnt
        return RolloutStatus(
            version=version,
            reward=tally.rewards[-1][1] if tally.rewards else None,
            generated=tally.generated,
            accepted=tally.counts[ACCEPTED],
            rejected=tally.counts[REJECTED],
            stale=tally.counts[STALE],
            waiting=waiting,
            used=tally.used,
            accepted_tokens=tally.accepted_tokens,
            generated_tokens_per_s=self.tokens_per_s,
            verified_per_s=self.verified_per_s,
            set_aside=len({(aside.peer, aside.role) for aside in tally.aside}),
            fruitless_rounds=tally.fruitless,
            entropy=learnt.entropy if learnt is not None else None,
            behaviour_kl=learnt.behaviour_kl if learnt is not None else None,
            truncated=learnt.truncated if learnt is not None else None,
            effective=learnt.effective if learnt is not None else None,
            left_out=tally.left_out,
        )


# ------------------------------------------------------------------------------------------------------------------------


BATCHES = BlobKind("rollouts", ROLLOUT_CHUNK_BYTES, at_once=2 * PLACES)
LOOK_S = 0.25
SAVE_S = 30.0
"""Seconds between two writes of the evidence on rollout peers; a restart loses no more."""
MOST_PENDING = 16
"""Number of our batches without a verdict at which we stop making more."""
REMIND_S = 30.0
"""Seconds between repetitions of our batches that no peer has answered, `MOST_PENDING` at a time.  A trainer that has not
received a batch takes no later ones."""


class Liars(Container[object], Protocol):
    """Peers that are proven to have lied (`protocol.audit.ejection`)."""

    def reason(self, peer: PeerId) -> str:
        """Return a phrase for the proven lie of a peer."""
        ...

    def accuse(self, peer: PeerId, first: bytes, second: bytes) -> None:
        """Accuse a peer of two contradictory statements that it signed."""
        ...


class RolloutPeers:
    """Peers of a run by their role in rollouts.  liars: peers that are proven to have lied."""

    def __init__(self, membership: Membership, liars: Liars) -> None:
        self.membership, self.liars = membership, liars

    def validators(self) -> frozenset[PeerId]:
        """Return the other live validators, except resting ones, for which no peer waits."""
        live = {*self.membership.live_peers()}
        return frozenset(
            peer
            for peer, known in self.membership
            if peer in live
            and known.heartbeat.role is Role.VALIDATOR
            and known.heartbeat.phase is not Phase.PAUSED
            and peer not in self.liars
        )

    def keepers(self) -> frozenset[PeerId]:
        """Return the peers that keep the reference weights of the KL term."""
        return frozenset(peer for peer, known in self.membership if known.heartbeat.role in KEEPERS)

    def makers(self) -> frozenset[PeerId]:
        """Return the rollout peers that were connected to us since we started."""
        known = [(peer, each) for peer, each in self.membership if each.liveness is not Liveness.UNPROVEN]
        return frozenset(peer for peer, each in known if each.heartbeat.role is Role.ROLLOUT)


class Rollouts:
    """Rollouts at one node, in a run with rollouts; call `run`.

    selection: chooses the batches from which a trainer learns.
    """

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        offload: Offload,
        swarm: Swarm,
        peers: RolloutPeers,
        trainer: SharedTrainer,
    ) -> None:
        rl = replica.manifest.rl
        assert rl is not None, "no run with rollouts"
        self._session, self._guard, self._replica, self._offload, self._rl = session, guard, replica, offload, rl
        self._peers, self._trainer, self._files = peers, trainer, replica.store.rollouts
        self._pool = pool = Pool(session.me, trainer.role, rl, self._draw)
        self._library = Library(session, self._files, swarm, offload, BATCHES, pool.needs)
        self._repeating = StatementRepeater(session)
        self._fetching = BatchFetcher(session, guard, self._library, pool, rl.judge_s, self._handle)
        self._tip: Hash | None = None
        self._length = 0
        self._reminded_at, self._reminded = trio.current_time(), 0
        self._evidence = WealthFile(self._files.disk, self._files.folder / "wealth")
        self._saved_at, self._saved = trio.current_time(), dict[PeerId, Wealth]()
        self._tasks = TaskGroup()
        self._checking = BatchVerifier(session, rl, self._files, trainer.lock, trainer.tasks)
        self._reference: Reference | None = None
        if replica.manifest.reference_bytes and trainer.role in KEEPERS:
            self._reference = Reference(session, replica, trainer.keeping, swarm, offload, peers.keepers)
        compares, wanted = rl.compares_behaviour, rl.batches_per_round
        self.selection = Selection(session, pool, self._files, trainer, wanted, self._reference, compares=compares)
        self._worker = RolloutMaker(session, rl, self._files, swarm, offload, trainer) if trainer.link is not None else None
        self._permit = permit = WorkPermit()
        """The permit of the peer, which the end of the run suspends for this work."""
        permit.watch(lambda: trainer.rest(not permit.is_granted))
        trainer.permit.watch(self._follow_the_peer)

    @property
    def status(self) -> WorkStatus | None:
        """Work status of a rollout peer or a validator; None at other peers."""
        return self._trainer.status

    @property
    def waiting(self) -> int:
        """Number of batches that concern us and have no verdict.

        At a rollout peer these are our batches that no peer has judged, at a validator the batches that it must verify, and
        at a trainer the batches on which it must decide.
        """
        role, me = self._trainer.role, self._session.me
        if role is Role.ROLLOUT:
            return sum(batch.author == me and not batch.judgements for batch in self._pool)
        if role is Role.VALIDATOR:
            return sum(batch.wanted for batch in self._pool)
        return sum(batch.led and batch.decision is None for batch in self._pool)

    def _draw(self, root: Hash) -> float:
        signature = self._session.identity.sign(b"manyhands rollout check 1\n" + self._session.run + root)
        return int.from_bytes(hash_bytes("check", signature)[:8], "big") / 2.0**64

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        await self._begin()
        async with self._tasks.open() as nursery:
            nursery.start_soon(self._again, self._look)
            if self._reference is not None:
                nursery.start_soon(self._again, self._reference.run)
            if self._trainer.link is not None:
                nursery.start_soon(self._again, self._follow)
                if self._trainer.role in (Role.TRAINER, Role.VALIDATOR):
                    nursery.start_soon(self._again, self._check, self._trainer.link)
                if self._trainer.role is Role.ROLLOUT:
                    nursery.start_soon(self._again, self._work)
            await trio.sleep_forever()

    async def _begin(self) -> None:
        """State again the batches that we made before a restart, and remove the batches of other peers."""
        await self._offload(self._files.load)
        try:
            self._pool.trust.recall(await self._offload(self._evidence.load))
        except (ValueError, StoreFailed) as error:
            self._session.emit(Notice("warning", f"the evidence on rollout peers cannot be read, and begins anew: {error}"))
        self._move()
        own: set[Hash] = set()
        for body, envelope in await self._worker.recall() if self._worker is not None else []:
            if self._handle(BatchHeard(self._session.me, body, envelope.raw)):
                own.add(Hash(body.root))
                self._repeating.say(envelope.raw)
        for root in {*self._files.sizes(), *self._files.parts()} - own:
            await self._library.remove(root)

    async def _again(self, function: object, *arguments: object) -> None:
        """Run a coroutine function for ever; start it again after a failure."""
        assert callable(function)
        while True:
            with self._guard.watch(self._session.me, "rollouts"):
                await function(*arguments)
            await trio.sleep(RETRY_S)

    async def _look(self) -> None:
        while True:
            self._move()
            self._trainer.lock.look()
            for peer in {batch.author for batch in self._pool}:
                if peer in self._peers.liars and not self._pool.trust.aside(peer):
                    self._handle(Ejected(peer, self._peers.liars.reason(peer)))
            self._handle(PoolTick(self._validators(), self._trainer.ready_tips()))
            self._fetching.end_useless()
            self._remind(trio.current_time())
            await self._repeating.turn()
            await self._fetching.remove_unwanted()
            await self._save_evidence(trio.current_time())
            await trio.sleep(LOOK_S)

    async def _save_evidence(self, now: float) -> None:
        """Save the wealth of the betting tests for a restart, if it has changed."""
        if now - self._saved_at < SAVE_S or (wealth := self._pool.trust.wealth) == self._saved:
            return
        self._saved_at, self._saved = now, wealth
        try:
            await self._offload(self._evidence.save, wealth)
        except StoreFailed as error:
            self._session.emit(Notice("warning", f"the evidence on rollout peers was not saved: {error}"))

    def _remind(self, now: float) -> None:
        """Repeat the statements of some unanswered batches, and of the next batches the next time."""
        if now - self._reminded_at < REMIND_S:
            return
        unanswered = self._pool.unanswered()
        start = self._reminded if self._reminded < len(unanswered) else 0
        some = unanswered[start : start + MOST_PENDING]
        self._reminded_at, self._reminded = now, start + len(some)
        for batch in some:
            self._repeating.say(batch.raw, times=1)

    def _validators(self) -> frozenset[PeerId]:
        """Return the live validators, including us if we are one and do not rest."""
        works = self._trainer.role is Role.VALIDATOR and self._permit.is_granted
        return self._peers.validators() | ({self._session.me} if works else frozenset())

    def _move(self) -> None:
        history = self._replica.history
        if history.tip == self._tip:
            return
        before = next(iter(history.tips(self._length, 1)), None) if self._tip is not None else None
        self._tip, self._length = history.tip, history.length
        length = self._length
        oldest = max(0, length - self._rl.max_async)
        tips = {oldest + at: tip for at, tip in enumerate(history.tips(oldest, length + 1 - oldest))}
        self._trainer.lock.moved(tips)
        trainers = {version: history.roster_at(version).contributors for version in tips}
        self._handle(TipChanged(length, tips, trainers, history.roster.electorate.electors, self._peers.makers(), before))

    def amendment(self) -> bytes | None:
        """Return the organiser's newest amendment for our plans; None before we have its sets of tasks."""
        return self._trainer.tasks.amendment(self._trainer.can_use)

    def against(self, tasks: TasksInForce) -> int | None:
        """Return the sets of tasks that fall out by our counts or are lost, as a READY encodes them."""
        return self._trainer.tasks.against(tasks)

    def _follow_the_peer(self) -> None:
        """Rest while the peer rests; batches that we have made are still served."""
        self._stop(WhyIdle.PAUSED, not self._trainer.permit.is_granted)

    def end(self, on: bool) -> None:
        """Stop computing because the run has ended, or continue."""
        self._stop(WhyIdle.RUN_ENDED, on)

    def _stop(self, why: WhyIdle, on: bool) -> None:
        if on:
            self._permit.suspend(why, "")
        else:
            self._permit.restore(why)

    # -- hearing ------------------------------------------------------------------------------------------------------

    @hears(RolloutBatch)
    def hear_batch(self, said: Statement[RolloutBatch]) -> Acceptance:
        """Receive the statement of a batch."""
        return self._hear(said.sender, BatchHeard(said.sender, said.body, said.raw))

    @hears(DealBody)
    def hear_deal(self, said: Statement[DealBody]) -> Acceptance:
        """Receive a deal, which draws the validators of a batch."""
        beacon = beacon_of(said.envelope.signature)
        return self._hear(said.sender, DealHeard(said.sender, PeerId(said.body.author), Hash(said.body.root), beacon))

    @hears(Judgement)
    def hear_judgement(self, said: Statement[Judgement]) -> Acceptance:
        """Receive verdicts on a batch."""
        return self._hear(said.sender, JudgementHeard(said.sender, said.body))

    def _hear(self, sender: PeerId, event: PoolEvent) -> Acceptance:
        heard = self._handle(event) if self._tasks.is_open else False
        if isinstance(heard, ContradictoryBatches):
            self._peers.liars.accuse(sender, heard.first, heard.second)
            return Acceptance.IGNORE
        return Acceptance.of_news(heard)

    def _handle(self, event: PoolEvent) -> bool | ContradictoryBatches:
        """Pass an event to the pool, and perform or start its effects.

        Return True if the event is new, or shows two contradictory statements of a peer.
        """
        answer: bool | ContradictoryBatches = False
        for effect in self._pool.handle(event, trio.current_time()):
            match effect:
                case ForwardBatch():
                    answer = True
                case ContradictoryBatches():
                    answer = effect
                case EmitEvent():
                    self._session.emit(effect.event)
                case GossipVerdicts():
                    self._repeating.say(self._session.seal(effect.body).raw)
                case CompareScores():
                    self._trainer.tasks.note_scores(self._checking.problems(effect.batch), effect.ours, effect.theirs)
                case DiscardBytes():
                    self._fetching.discard(effect.root)
                case GossipDeal():
                    author, root = effect.batch.author, effect.batch.root
                    envelope = self._session.seal(DealBody(author=author, root=root))
                    self._repeating.say(envelope.raw)
                    self._handle(DealHeard(self._session.me, author, root, beacon_of(envelope.signature)))
                case FetchBatch():
                    self._tasks.start(self._fetching.fetch, effect.batch)
                case VerifyBatch():
                    raise AssertionError("a check that nobody asked for")
        return answer

    # -- the trainer process ------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._trainer.follow()
            except TrainerGaveUp:
                await trio.sleep_forever()  # the code that starts the trainer ends this peer, with the reason
            except TrainerDied:
                await trio.sleep(RETRY_S)
            await trio.sleep(LOOK_S)

    async def _check(self, link: RolloutLink) -> None:
        while True:
            await self._permit.granted()
            found = self._pool.handle(TrainerIdle(), trio.current_time())
            checks = [effect.batch for effect in found if isinstance(effect, VerifyBatch)]
            for batch in checks:
                self._show_work()
                result = await self._checking.check(link, batch, self._trainer.ready_tips)
                self._handle(result)
                if result.codes is None:  # perhaps the chain went back; the pool learns that soon
                    await trio.sleep(LOOK_S)
            if not checks:
                self._show_idle(WhyIdle.NOTHING_TO_CHECK, "there is no batch here for this peer to check")
                await trio.sleep(LOOK_S)

    def _show_work(self) -> None:
        if self.status is not None:
            self.status.works()

    def _show_idle(self, why: WhyIdle, detail: str) -> None:
        """Show that we are idle; a reason why the trainer process cannot work takes precedence over the given reason."""
        trainer, missing = self._trainer, self._trainer.missing(self._replica.history.length)
        if trainer.link is not None and trainer.link.pid is None:
            why, detail = WhyIdle.TRAINER_RESTARTING, "the trainer process is not ready"
        elif trainer.versions is not None and not trainer.versions.tips:
            why, detail = WhyIdle.WAITING_FOR_WEIGHTS, "the trainer has no weights yet"
        elif missing:
            why, detail = WhyIdle.FETCHING_TASKS, missing[:200]
        if self.status is not None:
            self.status.idles(why, detail, trio.current_time())

    async def _work(self) -> None:
        assert self._worker is not None
        forgotten = 0
        while True:
            await self._permit.granted()
            made = None
            if self._pool.pending(trio.current_time()) >= MOST_PENDING:
                self._show_idle(WhyIdle.WAITING_FOR_VERDICTS, f"{MOST_PENDING} batches wait for a verdict")
            elif obstacle := self._worker.obstacle():
                self._show_idle(WhyIdle.WAITING_FOR_WEIGHTS, obstacle)
            else:
                self._show_work()
                made = await self._make(self._worker)
            if made is None:
                await trio.sleep(LOOK_S)
                continue
            body, envelope = made
            if self._handle(BatchHeard(self._session.me, body, envelope.raw)):
                self._repeating.say(envelope.raw)
            else:
                self._fetching.discard(Hash(body.root))  # the batch is too old now
            if body.version > forgotten:
                forgotten = body.version
                await self._worker.forget_before(forgotten - self._rl.max_async)

    async def _make(self, worker: RolloutMaker) -> tuple[RolloutBatch, Envelope] | None:
        try:
            return await worker.make(lambda done, total: None)
        except TrainerGaveUp:
            await trio.sleep_forever()
        except (TrainerDied, StoreFailed) as error:
            self._session.emit(Notice("warning", f"no batch of rollouts: {error}"))
            await trio.sleep(RETRY_S)
        return None
