"""Selection of the batches from which a trainer learns in a round, once there are enough of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import trio

from protocol.blobs.store import BlobStore
from protocol.events.events import NothingLearned, RolloutsUsed
from protocol.events.status import WhyIdle
from protocol.rollouts.batch import PooledBatch
from protocol.rollouts.pool import Pool
from protocol.rollouts.reference import Reference
from protocol.rollouts.trainer import SharedTrainer
from protocol.tasks.counting import LEAST_CLEAN
from protocol.trainer_link import Contribution
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Learned, UsedBatch, learned_from
from protocol.wire.presence import sample_line

LOOK_S = 0.25
FRUITLESS = 3
"""Rounds in a row that taught nothing after which a person is told."""


@dataclass(frozen=True)
class SelectedBatches:
    """Batches selected for a round, in the order of their roots, and their files.

    reference: the file of the reference weights, if the run has a KL term.
    against: the sets of tasks against which READY votes, if there are no batches; at least one of these sets is lost.
    versions: the version that made each batch, or None if our trainer process does not hold it on the batch's branch.
    """

    batches: Sequence[PooledBatch]
    paths: tuple[Path, ...]
    reference: Path | None
    against: int | None = None
    versions: tuple[int | None, ...] = ()

    def learned(self, reward: float | None) -> Learned | None:
        """Return the batches in the form in which READY and the record name them; None without batches.

        reward: mean reward of the rollouts.
        """
        if not self.batches:
            return None
        return learned_from([UsedBatch(batch.author, batch.root, batch.body.tokens) for batch in self.batches], reward)


class Selection:
    """Selection of batches at one trainer.

    wanted: number of batches for a round.  reference: the reference weights, in a run with a KL term.  compares: True if the
    loss compares the policy with the one that made the tokens.
    """

    def __init__(
        self,
        session: Session,
        pool: Pool,
        files: BlobStore,
        trainer: SharedTrainer,
        wanted: int,
        reference: Reference | None = None,
        *,
        compares: bool = False,
    ) -> None:
        self._compares = compares
        self._session, self._pool, self._files, self._trainer, self.wanted = session, pool, files, trainer, wanted
        self._tasks, self.reference = trainer.tasks, reference
        self._hurried, self._begun = False, 0.0
        self._fruitless = 0
        """Rounds in a row from which we learned nothing, because no problem's answers had different rewards."""

    def remember(self, before: frozenset[tuple[PeerId, Hash]]) -> None:
        """Note the batches (author, root) from which we have already learned."""
        self._pool.remember(before)

    def hurry(self) -> None:
        """Begin with the batches that we have, if there are any, because the other peers wait for us."""
        self._hurried = True

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Hold the trainer process exclusively, for a round that trains on text."""
        return self._trainer.lock.taken()

    @asynccontextmanager
    async def chosen(self, round: int, on_wait: Callable[[WhyIdle, str], None]) -> AsyncIterator[SelectedBatches]:
        """Wait for a round's batches, reference weights and trainer process, and hold them within the context.

        There must be enough accepted, unused batches.  We choose the batches once we hold the process: until then it may
        verify another batch, for which their maker is set aside.  If a set of tasks is lost, the result may have no batches
        after a while, because no more batches are made until the set has fallen out.

        on_wait: called with the reason why the round waits, and a sentence about the reason.
        """
        self._hurried, self._begun = False, trio.current_time()
        while True:
            while lacking := self._lacking(round, len(self._usable(round))):
                on_wait(*lacking)
                await trio.sleep(LOOK_S)
            async with self._trainer.lock.taken():
                usable = self._usable(round)
                if self._lacking(round, len(usable)):
                    continue
                against = None if usable else self._tasks.against(self._tasks.at(round))
                batches = sorted(usable[: self.wanted], key=lambda batch: (batch.root, batch.author))
                roots = [batch.root for batch in batches]
                reference = self.reference.path if self.reference is not None else None
                versions = tuple(self._version(round, batch) for batch in batches)
                with self._files.using(*roots):
                    paths = tuple(self._files.path(root) for root in roots)
                    yield SelectedBatches(batches, paths, reference, against, versions)
                return

    def _version(self, round: int, batch: PooledBatch) -> int | None:
        """Return the version of a batch if the trainer process has its weights: it holds them, or learns from them now."""
        version = batch.body.version
        return version if version == round or self._trainer.holds(version, Hash(batch.body.tip)) else None

    def _lacking(self, round: int, usable: int) -> tuple[WhyIdle, str] | None:
        """Return the reason why a round with `usable` batches must wait; None if it need not wait."""
        least = self._least(round)
        if (usable or least) and self.reference is not None and (missing := self.reference.missing()):
            return WhyIdle.FETCHING_REFERENCE, missing
        if usable >= least:
            return None
        if missing := self._trainer.missing(round):
            return WhyIdle.FETCHING_TASKS, missing
        return WhyIdle.WAITING_FOR_ROLLOUTS, f"{usable} of {self.wanted} accepted batches of rollouts are here"

    def _least(self, round: int) -> int:
        """Return the number of batches that we need to begin the round now."""
        patience_s = self._tasks.lost.patience_s(self._tasks.at(round))
        if trio.current_time() - self._begun >= patience_s or (self._hurried and patience_s < inf):
            return 0
        return 1 if self._hurried else self.wanted

    def _usable(self, round: int) -> list[PooledBatch]:
        """Return the unused batches whose tasks the trainer process has, and whose version if the loss needs it.

        A process that has just started has the newest version alone; it would learn nothing from earlier batches.
        """
        known = [batch for batch in self._pool.usable(round) if self._trainer.has_tasks(batch.body.version)]
        return [batch for batch in known if not self._compares or self._version(round, batch) is not None]

    def note_death(self, chosen: SelectedBatches) -> None:
        """Note that the trainer process died while it learned from these batches."""
        self._pool.note_death(chosen.batches)

    def use(self, round: int, chosen: SelectedBatches, contribution: Contribution) -> Learned | None:
        """Note that a contribution was learned from these batches, and return them in the form in which READY names them.

        We never learn from them again, even if the contribution is lost.
        """
        learned = chosen.learned(contribution.reward)
        if learned is None:
            return None
        self._pool.note_used(chosen.batches)
        makers = [batch.author if self._pool.trust.clean(batch.author) >= LEAST_CLEAN else None for batch in chosen.batches]
        self._tasks.note_tried(contribution.tried, makers)
        names, rollouts = [batch.root.hex() for batch in chosen.batches], sum(each.body.rollouts for each in chosen.batches)
        answers = [
            {"reward": each.reward, "prompt": sample_line(each.prompt), "text": sample_line(each.text)}
            for each in contribution.answers
        ]
        told = RolloutsUsed(round, names, rollouts, contribution.reward, learned.root.hex(), contribution.kl, answers)
        figures = vars(contribution.policy) if contribution.policy is not None else {}
        self._session.emit(replace(told, informative=contribution.informative, **figures))
        self._fruitless = self._fruitless + 1 if contribution.informative == 0 else 0
        times, rest = divmod(self._fruitless, FRUITLESS)
        if not rest and times.bit_count() == 1 and contribution.answers:
            typical = contribution.answers[-1]
            lines = (sample_line(each) for each in (typical.prompt, typical.text, typical.expected))
            self._session.emit(NothingLearned(round, self._fruitless, contribution.reward, *lines))
        return learned
