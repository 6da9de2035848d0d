"""This peer's contribution to each round: training, then READY, which commits to the result.

A peer does fewer steps if it begins a round late because it had to fetch results first.  Otherwise it would be ready too
late, miss the exchange, have to fetch the next results as well, and stay behind the other peers for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import isfinite
from pathlib import Path

import trio

from kernels.layout import Layout
from protocol.allreduce.assignment import contribution_leaves
from protocol.chain.base import Base, fragment_of
from protocol.chain.credit import learned_by
from protocol.chain.leases import Ranges, Stretches, count_rows, first_rows, rows_among, stretches_from
from protocol.chain.records import most_tokens
from protocol.chain.replica import Replica
from protocol.events.events import ComputeProgress, Notice
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.membership.heartbeats import Pace, RoundProgress
from protocol.node.commands import Extensions
from protocol.node.corpora import LeasedBlocks
from protocol.node.initial_weights import InitialWeights
from protocol.node.round_limits import LOOKED_BACK, RoundLimits, limits_from
from protocol.node.state import show_start, shown_while_it_starts
from protocol.offload import Offload
from protocol.rollouts.rollouts import Rollouts
from protocol.rollouts.selection import Selection
from protocol.run.settings import NodeSettings
from protocol.trainer_link import (
    ComputeTask,
    Contribution,
    LimitsExceeded,
    Progress,
    TrainerDied,
    TrainerGaveUp,
    TrainerLink,
)
from protocol.transport.interface import Session
from protocol.wire.envelope import MAX_NUMBER, Envelope
from protocol.wire.hashes import Hash, tree_proof, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.messages import Learned, Ready, SourceMean, digest_in, losses_from, weights_in
from protocol.wire.presence import Phase

TRAINING = (WhyIdle.BUSY, "")
"""Reason shown for a peer that trains, and does not wait."""

# ------------------------------------------------------------------------------------------------------------------------
# This peer's work in the running round: the progress of its compute, and the resulting contribution.


@dataclass(kw_only=True)
class Work(RoundProgress):
    """Our work in one round, for heartbeats, status and auditors.  leaves: the hashes of the contribution's chunks.

    wanted: number of inner steps to do in this round.
    """

    layout: Layout
    wanted: int = 0
    tokens: int = 0
    ready: Ready | None = None
    contribution: Contribution | None = None
    leaves: list[Hash] = field(default_factory=list)
    rollouts: Learned | None = None
    """The batches from which the contribution was learned, in a run with rollouts."""
    against: int | None = None
    """The sets of tasks against which our READY votes, if the contribution was learned from no batches."""
    training: trio.Event = field(default_factory=trio.Event)
    """Set once the trainer has been told to train."""
    stretches: Stretches = ()
    """The stretches of our column that the trainer reads."""

    def begin(self, wanted: int, stretches: Stretches = ()) -> None:
        """Begin to train for `wanted` steps.  stretches: of our column, to read for them."""
        self.wanted, self.stretches = wanted, stretches

    def note(self, progress: Progress) -> None:
        """Note an inner step."""
        self.steps, self.tokens, self.loss = progress.steps, progress.tokens, progress.loss

    def learn(self, rollouts: Learned | None) -> None:
        """Note the batches from which the contribution was learned."""
        self.rollouts = rollouts

    def learn_nothing(self, against: int | None) -> None:
        """Note a contribution learned from no batches, with the sets of tasks against which our READY votes."""
        self.against = against

    def commit(self, contribution: Contribution, leaves: list[Hash], ready: Ready, raw: bytes) -> None:
        """Store our contribution, and the READY that commits us to it.  raw: the READY as sent."""
        self.leaves, self.contribution, self.ready, self.ready_raw = leaves, contribution, ready, raw

    @property
    def data(self) -> memoryview | None:
        """The contribution's codec bytes; None before READY."""
        return self.contribution.data if self.contribution is not None else None

    def part(self, root: Hash, chunk: int) -> tuple[list[bytes], memoryview] | None:
        """Return (tree proof, bytes) of a chunk of the contribution; None if `root` is not the contribution's root."""
        if self.ready is None or self.data is None or self.ready.root != root or chunk >= len(self.layout):
            return None
        span = self.layout[chunk]
        return [*tree_proof(self.leaves, chunk)], self.data[span.encoded]


# ------------------------------------------------------------------------------------------------------------------------


SPARE_STEPS = 1
"""Number of steps that a latecomer does less than the other peers still have to do, to be ready before them."""


class OwnTrainer:
    """The trainer of this peer, which computes nothing while the permit is suspended.

    link: None if this peer does not train.  blocks: fetches what the trainer reads; None in a run without corpora.  initial:
    the weights with which preferences are compared; None in other runs.  keep_receipts: keeps the receipts of a contribution
    for auditors, and returns their hash for READY.
    """

    def __init__(
        self,
        link: TrainerLink | None,
        pace: Pace,
        activity: Activity,
        blocks: LeasedBlocks | None = None,
        initial: InitialWeights | None = None,
        keep_receipts: Callable[[memoryview], Hash | None] = lambda receipts: None,
    ) -> None:
        self.keep_receipts = keep_receipts
        self.link, self.pace, self.activity, self._blocks, self._initial = link, pace, activity, blocks, initial
        self.permit = activity.permit
        if link is not None:
            self.permit.watch(lambda: link.resume() if self.permit.is_granted else link.pause())

    async def lease(self, rows: Ranges, following: Ranges) -> None:
        """Have the blocks of these rows fetched for the trainer, and then the blocks of the rows that it reads next."""
        if self._blocks is not None:
            await self._blocks.lease(rows, following)

    async def choose(self, column: Callable[[int], Ranges], wanted: int, *, waits: bool = True) -> Stretches:
        """Return the stretches of our column to read for `wanted` steps; leave out steps whose blocks no peer has.

        column: returns the rows of a slot of the column, by its place.  waits: True to wait until such steps exist.
        """
        if self._blocks is None:
            return ((0, wanted),)
        while not (chosen := await self._blocks.choose(column, wanted)) and waits:
            counted = self._blocks.counted
            sentence = self._blocks.about_lost(column(0))
            self.activity.show(Phase.COMPUTING, WhyIdle.FETCHING_DATA, sentence[:200])
            await self._blocks.lease((), column(0))
            await counted.wait()
        return chosen

    async def compute(
        self, task: ComputeTask, theta: memoryview, note: Callable[[Progress], None], applied: trio.Event | None = None
    ) -> Contribution | None:
        """Train as `TrainerLink.compute` does; return None if a block turned out to be lost before the first step.

        If that happens later, the steps done so far are the contribution.
        """
        assert self.link is not None
        done, contribution = 0, None

        def on_progress(progress: Progress) -> None:
            nonlocal done
            done = progress.steps
            note(progress)

        async def watch(blocks: LeasedBlocks, link: TrainerLink, scope: trio.CancelScope) -> None:
            await blocks.until_lost()
            if done:
                link.finish()
            else:
                scope.cancel()

        death: TrainerDied | None = None
        async with trio.open_nursery() as nursery:
            if self._blocks is not None:
                nursery.start_soon(watch, self._blocks, self.link, nursery.cancel_scope)
            if applied is None:
                nursery.start_soon(show_start, self.link, self.activity, Phase.COMPUTING, TRAINING)
            try:
                contribution = await self.link.compute(task, theta, on_progress, applied)
            except TrainerDied as error:
                death = error
            nursery.cancel_scope.cancel()
        if death is not None:
            raise death
        return contribution

    async def reference(self) -> Path | None:
        """Wait for the weights with which preferences are compared; return their path, or None in other runs."""
        if self._initial is None:
            return None
        return await self._initial.until_here(partial(self.activity.show, Phase.COMPUTING, WhyIdle.FETCHING_REFERENCE))


@dataclass
class _NextRound:
    """Training for a round while the round before it is agreed on.

    round: the round of the contribution.  on: the tip that the round before it stands on.  applied: set once the result of
    that round is in our state.  state: the digest of our state with that result; None before.  begun: time when the training
    began.  stopped: time when it could not continue without that result, or when that round was over; None before.
    contribution: None until `ended`, and also then if the trainer died.
    """

    round: int
    on: Hash
    work: Work
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    applied: trio.Event = field(default_factory=trio.Event)
    state: Hash | None = None
    begun: float = field(default_factory=trio.current_time)
    stopped: float | None = None
    contribution: Contribution | None = None

    def stop(self) -> None:
        """Stop counting the time as training ahead."""
        self.stopped = trio.current_time() if self.stopped is None else self.stopped


class Contributor:
    """Contributor of this peer, which trains in one round after another.

    In a streamed run it trains for the next round as soon as it has contributed to the present one (`train_ahead`).

    rollouts: chooses the rollouts for training, and shows the work of a peer that generates or verifies; None in a run
    without rollouts.
    """

    def __init__(
        self,
        session: Session,
        replica: Replica,
        settings: NodeSettings,
        offload: Offload,
        trainer: OwnTrainer,
        extensions: Extensions,
        rollouts: Rollouts | None = None,
    ) -> None:
        self._session, self._replica, self._settings, self._offload = session, replica, settings, offload
        self._own, self._trainer, self._activity = trainer, trainer.link, trainer.activity
        self._extensions, self._rollouts = extensions, rollouts
        self._selection = rollouts.selection if rollouts is not None else None
        self._serials = count()
        self._ahead: _NextRound | None = None
        self._exceeded_in: int | None = None
        """The last round in which a try of ours exceeded the limits set by our last rounds."""
        self._unlike_in: int | None = None
        """Round in which two tries last exceeded them; we contribute nothing to it, and only later records set limits."""

    @property
    def computes(self) -> bool:
        """True while other peers can expect a contribution from us."""
        return self._trainer is not None and self._own.permit.is_granted

    def amendment(self) -> bytes | None:
        """Return the signed amendment for our plans; an extension comes first: only it continues a run that has ended."""
        return self._extensions.amendment() or (self._rollouts.amendment() if self._rollouts is not None else None)

    async def name_state(self) -> bytes:
        """Return the name of our state."""
        name: bytes = await self._offload(self._replica.name_state)
        return name

    def finish(self, base: Base) -> None:
        """Stop the compute of the round on `base` at the end of its step, but not the training ahead for the next round."""
        if self._ahead is not None and self._ahead.round != base.round:
            return
        if self._selection is not None:
            self._selection.hurry()
        if self._trainer is not None:
            self._trainer.finish()

    async def compute(self, base: Base, work: Work, ahead: Callable[[], int] = lambda: 0) -> Contribution | None:
        """Train in the round that extends `base`; start again if the trainer dies.  `work` shows the progress.

        ahead: returns the number of steps that the other peers have done.  Returns None without a trainer, if the trainer
        gave up, if its numbers show that training failed, or if two tries exceeded the limits.
        """
        if self._trainer is None:
            if self._rollouts is not None and self._rollouts.status is not None:
                self._rollouts.status.show()
            else:
                text = "this peer keeps and serves the state, it does not train"
                self._activity.show(Phase.SEEDING, WhyIdle.NOT_A_TRAINER, text)
            return None
        if (begun := self._ahead) is not None and begun.work is work:
            contribution = await self._complete(base, begun)
            if contribution is not None:
                return self._sound(contribution, base)
        await self.drop_ahead()
        while base.round != self._unlike_in:
            await self._own.permit.granted()
            try:
                return self._sound(await self._train(self._trainer, base, work, ahead()), base)
            except TrainerGaveUp as end:
                self._activity.show(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"the trainer gave up: {end}"[:200])
                return None
            except TrainerDied as death:
                self._activity.show(Phase.STARTING, WhyIdle.TRAINER_RESTARTING, f"the trainer stopped: {death}"[:200])
                if isinstance(death, LimitsExceeded):
                    self._note_exceeded(base.round)
        return None

    # -- training ahead -----------------------------------------------------------------------------------------------

    def ahead_in(self, round: int) -> Work | None:
        """Return the work of a round that we train for before it begins; None if there is none."""
        return self._ahead.work if self._ahead is not None and self._ahead.round == round else None

    def work_on(self, base: Base) -> Work:
        """Return the work of the round on `base`, which may have begun before the round."""
        ahead, history = self._ahead, self._replica.history
        if ahead is not None and ahead.round == base.round and history.tip_at(base.round - 1) == ahead.on:
            return ahead.work
        return Work(layout=self._replica.layouts.contribution)

    def ahead_s(self, work: Work) -> float:
        """Return the seconds for which we have trained for this work before its round."""
        if (ahead := self._ahead) is None or ahead.work is not work:
            return 0.0
        return (trio.current_time() if ahead.stopped is None else ahead.stopped) - ahead.begun

    def train_ahead(self, base: Base, work: Work, start: Callable[..., object]) -> None:
        """Begin to train for the round after `base`, in a streamed run, because we have contributed to the one on `base`.

        work: our work in the round on `base`; if it contains no training, the next round begins with the state, because the
        trainer's own parameters have not taken part in each round.  start: starts a task that outlives the round.
        """
        manifest = self._replica.manifest
        rows = base.next_lease(manifest, self._session.me) if manifest.is_streamed else ()
        steps = min(manifest.round_steps, count_rows(rows) // manifest.data.sequences_per_step)
        progress = self._extensions.progress(base)
        if self._trainer is None or not steps or not work.training.is_set() or progress.next_share >= 1:
            return
        self._ahead = _NextRound(base.round + 1, base.tip, Work(layout=self._replica.layouts.contribution))
        self._ahead.work.begin(steps)
        if manifest.rounds.delay:
            self._activity.train_on(True)
        else:
            self._ahead.stop()
        share = progress.next_share
        task = self._task(base.round + 1, rows, steps, progress.first, (share, min(1.0, 2 * share - progress.share)))
        start(self._run_ahead, replace(task, continues=True), self._ahead)

    async def _run_ahead(self, task: ComputeTask, ahead: _NextRound) -> None:
        try:
            with ahead.scope:
                await self._own.permit.granted()
                stretches = await self._own.choose(lambda place: task.rows if not place else (), task.steps, waits=False)
                if not stretches:
                    return  # the round begins without training ahead, and reads other rows
                steps, step_rows = (
                    sum(end - start for start, end in stretches),
                    self._replica.manifest.data.sequences_per_step,
                )
                rows = rows_among(task.rows, tuple((start * step_rows, end * step_rows) for start, end in stretches))
                if stretches != ((0, task.steps),):
                    ahead.work.begin(steps, stretches)
                await self._own.lease(rows, ())
                task = replace(task, rows=rows, steps=steps, reference=await self._own.reference())
                task = await self._limited(task)
                ahead.work.training.set()
                theta, note = self._replica.state.theta, partial(self._on_progress_ahead, ahead)
                ahead.contribution = await self._own.compute(task, theta, note, ahead.applied)
        except LimitsExceeded:
            self._note_exceeded(task.round)
        except TrainerDied:
            pass  # the round begins anew once it is due
        finally:
            self._activity.train_on(False)
            ahead.ended.set()

    def _on_progress_ahead(self, ahead: _NextRound, progress: Progress) -> None:
        self._on_progress(ahead.work, progress, ahead=not ahead.applied.is_set())
        most = min(self._replica.manifest.rounds.delay, ahead.work.wanted)
        if not ahead.applied.is_set() and progress.steps >= most:
            self._activity.train_on(False)  # it waits for the result
            ahead.stop()

    async def _complete(self, base: Base, ahead: _NextRound) -> Contribution | None:
        """Complete what has begun before the round, whose base has the result of the last one; None if that failed.

        It fails if the trainer has taken over another state, which was wrong, or which another record has replaced.
        """
        state = await self._offload(self._replica.state.digest)
        if ahead.state not in (None, state):
            return None
        ahead.state = state
        ahead.stop()
        ahead.applied.set()
        self._activity.show(Phase.COMPUTING, WhyIdle.BUSY, "")
        manifest = self._replica.manifest
        await self._own.lease(base.lease(manifest, self._session.me), base.next_lease(manifest, self._session.me))
        await ahead.ended.wait()
        self._ahead = None
        return ahead.contribution

    async def drop_ahead(self) -> None:
        """Abandon the training for a round that has not begun."""
        if (ahead := self._ahead) is not None:
            ahead.scope.cancel()
            await ahead.ended.wait()
            self._ahead = None

    # -- training -----------------------------------------------------------------------------------------------------

    def _sound(self, contribution: Contribution, base: Base) -> Contribution | None:
        """Return the contribution; warn and return None if a READY cannot express its loss or norm."""
        if abs(contribution.loss) <= MAX_NUMBER and isfinite(contribution.norm):
            return contribution
        text = f"round {base.round}: training failed (loss {contribution.loss:g}), so we contribute nothing to this round"
        self._session.emit(Notice("warning", text))
        return None

    def _note_exceeded(self, round: int) -> None:
        """Note that a try of a round exceeded the limits; give the round up if it was the second one."""
        if round == self._exceeded_in:
            self._unlike_in = round
            text = (
                f"round {round}: two tries exceeded the limits set by our last rounds, the second without the moments of "
                "the first, so we contribute nothing to this round; from the next one on, earlier rounds set no limits"
            )
            self._session.emit(Notice("warning", text))
        self._exceeded_in = round

    async def _train(self, trainer: TrainerLink, base: Base, work: Work, ahead: int) -> Contribution:
        manifest = self._replica.manifest
        inner_steps = manifest.steps_of(base.round)
        wanted = max(1, inner_steps - ahead - SPARE_STEPS) if ahead else inner_steps
        learns, step_rows = manifest.learns_from_rollouts(base.round), manifest.data.sequences_per_step
        stretches: Stretches = ()
        lease = base.lease(manifest, self._session.me)
        if not learns:
            wanted = min(wanted, count_rows(lease) // step_rows)
            if not wanted:  # the run's last rows are leased to others
                return self._nothing(base.round)
            stretches = await self._own.choose(partial(base.lease_of_column, manifest, self._session.me), wanted)
            wanted = sum(end - start for start, end in stretches)
        work.begin(wanted, stretches)
        progress = self._extensions.progress(base)
        begun = 0 if learns else progress.first  # the learning rate never decays with rollouts
        rows = lease if learns else base.rows_read(manifest, self._session.me, wanted, stretches)
        task = await self._limited(self._task(base.round, rows, wanted, begun, (progress.share, progress.next_share)))
        if self._selection is not None and learns:
            return await self._learn(trainer, task, work, self._selection)
        await self._own.lease(task.rows, base.next_lease(manifest, self._session.me))
        task = replace(task, reference=await self._own.reference())
        async with self._selection.alone() if self._selection is not None else nullcontext():
            work.training.set()
            note = partial(self._on_progress, work)
            contribution = await self._own.compute(task, self._replica.state.theta, note)
        return contribution if contribution is not None else await self._train(trainer, base, work, ahead)

    def _task(self, round: int, lease: Ranges, steps: int, begun: int, shares: tuple[float, float]) -> ComputeTask:
        """Return the task of a round.  begun: first round of the run's present stage."""
        manifest = self._replica.manifest
        rows = first_rows(lease, steps * manifest.data.sequences_per_step)
        first, fragment = (round - begun) * manifest.steps_of(round), fragment_of(round, manifest.fragments)
        return ComputeTask(round, rows, steps, first, shares=shares, fragment=fragment)

    async def _limited(self, task: ComputeTask) -> ComputeTask:
        """Return the task with what follows from the last rounds: our limits, and the factor on the learning rate."""
        limited: ComputeTask = await self._offload(self._limited_by_records, task)
        return limited

    def _limited_by_records(self, task: ComputeTask) -> ComputeTask:
        """Do the work of `_limited`.  Blocking."""
        limits, history = self._limits(task.round, task.steps), self._replica.history
        task = replace(task, most_loss=limits.loss, most_norm=limits.norm)
        if not history.length:
            return task
        last = history.commit_at(history.length - 1).record
        factor = self._replica.manifest.rate_factor(task.round, [member.tokens for member in last.members])
        return replace(task, rate_factor=factor)

    def _limits(self, round: int, steps: int) -> RoundLimits:
        """Return the limits on a round of `steps`.  Blocking."""
        history, unlike = self._replica.history, self._unlike_in
        since = unlike if unlike is not None and unlike < round else 0
        lately = range(max(since, history.length - LOOKED_BACK), history.length)
        records = (history.commit_at(round).record for round in lately)
        return limits_from(self._replica.manifest, records, self._session.me, steps)

    async def _learn(self, trainer: TrainerLink, task: ComputeTask, work: Work, selection: Selection) -> Contribution:
        """Train as `_train` does, but from accepted rollouts, once there are enough of them."""

        def show(why: WhyIdle, detail: str) -> None:
            self._activity.show(Phase.COMPUTING, why, detail[:200])

        selection.remember(await self._offload(self._learned_before))
        async with selection.chosen(task.round, show) as chosen:
            work.training.set()
            task = replace(task, rollouts=chosen.paths, versions=chosen.versions, reference=chosen.reference)
            if not chosen.batches:  # a trainer process without rollouts would train on text
                self._activity.show(Phase.COMPUTING, *TRAINING)
                work.learn_nothing(chosen.against)
                return self._nothing(task.round)
            try:
                compute = partial(trainer.compute, task, self._replica.state.theta, partial(self._on_progress, work))
                contribution = await shown_while_it_starts(trainer, self._activity, compute, Phase.COMPUTING, TRAINING)
            except TrainerGaveUp:
                raise  # the trainer had not begun to learn from the rollouts
            except TrainerDied:
                selection.note_death(chosen)
                raise
        learned = selection.use(task.round, chosen, contribution)
        work.learn(learned)
        # A batch may hold more tokens than its maker stated; a READY must not claim more than the batches that it names.
        return replace(
            contribution, tokens=min(contribution.tokens, most_tokens(self._replica.manifest, task.round, learned))
        )

    def _learned_before(self) -> frozenset[tuple[PeerId, Hash]]:
        """Return the batches named by our entries in the last records.  Blocking.

        A process of ours may have learned from these batches and died before it had the record.
        """
        history, rl = self._replica.history, self._replica.manifest.rl
        lately = range(max(0, history.length - (rl.max_async if rl is not None else 0) - 1), history.length)
        return learned_by((history.commit_at(round).record for round in lately), self._session.me)

    def _losses(self, contribution: Contribution) -> bytes:
        """Return the losses of the run's sources as a READY states them; empty if there is one source."""
        numbers = {source.name: number for number, source in enumerate(self._replica.manifest.data.sources)}
        means = [
            SourceMean(numbers[each.source], each.tokens, each.loss)
            for each in contribution.losses
            if each.source in numbers and each.tokens > 0 and abs(each.loss) <= MAX_NUMBER
        ]
        return losses_from(means) if len(numbers) > 1 else b""

    def _nothing(self, round: int) -> Contribution:
        """Return a contribution of zeros, which changes no parameter, with the smallest weight (1 token)."""
        zeros = memoryview(self._replica.layouts.contribution.zeros())
        return Contribution(round, tokens=1, steps=1, loss=0.0, norm=0.0, data=zeros)

    def _on_progress(self, work: Work, progress: Progress, *, ahead: bool = False) -> None:
        work.note(progress)
        if self._activity.why is WhyIdle.FETCHING_DATA:
            self._activity.end_stall()
        pace, total = self._own.pace, work.wanted
        pace.observe(progress)
        self._session.emit(
            ComputeProgress(
                progress.round,
                progress.steps,
                total,
                progress.loss,
                pace.tokens_per_s,
                pace.left_s(total - progress.steps) or 0.0,
                ahead,
            )
        )

    async def commit(self, base: Base, work: Work, contribution: Contribution, state: bytes) -> tuple[Ready, Envelope]:
        """Seal and return our READY; `work` then holds it and the contribution.  state: the name of the state on `base`."""
        layout = self._replica.layouts.contribution
        leaves = await self._offload(contribution_leaves, self._session.me, contribution.data, layout)
        ready = Ready(
            round=base.round,
            fragment=base.fragment,
            base=base.tip,
            incarnation=self._settings.incarnation,
            serial=next(self._serials),
            tokens=contribution.tokens,
            steps=contribution.steps,
            loss=contribution.loss,
            norm=contribution.norm,
            root=tree_root(leaves),
            state_digest=digest_in(state),
            weights=weights_in(state),
            admission=self._settings.admission,
            rollouts=work.rollouts,
            against=work.against or (self._rollouts.against(base.tasks) if self._rollouts is not None else None),
            losses=self._losses(contribution),
            stretches=stretches_from(first_rows(work.stretches, contribution.steps)),
            receipts=self._own.keep_receipts(contribution.receipts),
        )
        envelope = self._session.seal(ready)
        work.commit(contribution, leaves, ready, envelope.raw)
        return ready, envelope
