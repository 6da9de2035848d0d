"""Which batches a trainer learns from in a round, and when there are enough of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path

import trio

from protocol.events import RolloutsUsed
from protocol.network.session import Session
from protocol.rollouts.batch import Batch
from protocol.rollouts.given_tasks import GivenTasks
from protocol.rollouts.pool import Pool
from protocol.rollouts.reference import Reference
from protocol.rollouts.turn import Turn
from protocol.state.weight_files import WeightFiles
from protocol.tasks.counting import LEAST_CLEAN
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import Contribution
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.learned import Learned, UsedBatch, learned_from
from protocol.wire.presence import WhyIdle

LOOK_S = 0.25


@dataclass(frozen=True)
class Chosen:
    """Batches to learn from in a round, in the order of their names, and their files.

    reference: the weights that the loss compares with, where the run has a KL term.
    against: where there are none, the sets of tasks that READY is against, some of them lost.
    """

    batches: Sequence[Batch]
    paths: tuple[Path, ...]
    reference: Path | None
    against: int | None = None

    def learned(self, reward: float | None) -> Learned | None:
        """What READY says of them, and so the record.  reward: mean of the rollouts."""
        if not self.batches:
            return None
        return learned_from([UsedBatch(batch.author, batch.root, batch.body.tokens) for batch in self.batches], reward)


class Selection:
    """Of one trainer.  wanted: batches of a round.  given: the sets of tasks that the trainer process has.  reference: the
    weights that the KL term compares with, in a run that has one."""

    given: GivenTasks | None = None
    reference: Reference | None = None

    def __init__(self, session: Session, pool: Pool, files: WeightFiles, turn: Turn, wanted: int, tasks: TaskSets) -> None:
        self._session, self._pool, self._files, self._turn, self.wanted = session, pool, files, turn, wanted
        self._tasks = tasks
        self._hurried, self._begun = False, 0.0

    def remember(self, before: frozenset[tuple[PeerId, Hash]]) -> None:
        """We have learned from these already, by author and root."""
        self._pool.before = before

    def hurry(self) -> None:
        """The others wait for us: begin with what there is, if there is anything."""
        self._hurried = True

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Within, nobody else asks the trainer process for anything that takes it whole: of a round that reads text."""
        return self._turn.taken()

    @asynccontextmanager
    async def chosen(self, round: int, on_wait: Callable[[WhyIdle, str], None]) -> AsyncIterator[Chosen]:
        """Wait for enough accepted batches that we have not learned from, for the weights that the loss compares with, and
        for the trainer process; they are ours within.  The batches are chosen when the process is ours: until then it may
        verify another batch, for which their maker is set aside.  Where a set of tasks is lost there may be none after a
        while, as no more are made until it has fallen out.

        on_wait: told what it waits for, in a sentence.
        """
        self._hurried, self._begun = False, trio.current_time()
        while True:
            while lacking := self._lacking(round, len(self._usable(round))):
                on_wait(*lacking)
                await trio.sleep(LOOK_S)
            async with self._turn.taken():
                usable = self._usable(round)
                if self._lacking(round, len(usable)):
                    continue
                against = None if usable else self._tasks.against(self._tasks.at(round))
                batches = sorted(usable[: self.wanted], key=lambda batch: (batch.root, batch.author))
                roots = [batch.root for batch in batches]
                reference = self.reference.path if self.reference is not None else None
                with self._files.using(*roots):
                    yield Chosen(batches, tuple(self._files.path(root) for root in roots), reference, against)
                return

    def _lacking(self, round: int, usable: int) -> tuple[WhyIdle, str] | None:
        """What a round waits for that has so many batches; None where it need not wait."""
        least = self._least(round)
        if (usable or least) and self.reference is not None and (missing := self.reference.missing()):
            return WhyIdle.FETCHING_REFERENCE, missing
        if usable >= least:
            return None
        if self.given is not None and (missing := self.given.missing(round)):
            return WhyIdle.FETCHING_TASKS, missing
        return WhyIdle.WAITING_FOR_ROLLOUTS, f"{usable} of {self.wanted} accepted batches of rollouts are here"

    def _least(self, round: int) -> int:
        """Batches with which we begin."""
        patience_s = self._tasks.lost.patience_s(self._tasks.at(round))
        if trio.current_time() - self._begun >= patience_s or (self._hurried and patience_s < inf):
            return 0
        return 1 if self._hurried else self.wanted

    def _usable(self, round: int) -> list[Batch]:
        """Those that we have not learned from, and whose tasks the trainer process has."""
        given = self.given
        return [batch for batch in self._pool.usable(round) if given is None or given.holds(batch.body.version)]

    def note_death(self, chosen: Chosen) -> None:
        """The trainer process ended while it learned from these batches."""
        self._pool.note_death(chosen.batches)

    def use(self, round: int, chosen: Chosen, contribution: Contribution) -> Learned | None:
        """A contribution was made of these batches, which are never learned from again, whatever becomes of it; what READY
        says of them."""
        learned = chosen.learned(contribution.reward)
        if learned is None:
            return None
        for batch in chosen.batches:
            batch.used = True
        makers = [
            batch.author if self._pool.standing.clean(batch.author) >= LEAST_CLEAN else None for batch in chosen.batches
        ]
        self._tasks.note_tried(contribution.tried, makers)
        names, rollouts = [batch.root.hex() for batch in chosen.batches], sum(each.body.rollouts for each in chosen.batches)
        told = RolloutsUsed(round, names, rollouts, contribution.reward, learned.root.hex(), contribution.kl)
        self._session.emit(told)
        return learned
