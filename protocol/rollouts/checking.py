"""Verification of batches by the trainer process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from protocol.blobs.store import BlobStore
from protocol.chain.tasks_in_force import TasksInForce
from protocol.events.events import Notice
from protocol.rollouts.batch import PooledBatch
from protocol.rollouts.dealing import problems_of
from protocol.rollouts.happenings import BatchVerified
from protocol.rollouts.work import TrainerLock
from protocol.run.rl_section import RlSection
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import RolloutLink, RolloutVerdict, TrainerDied, TrainerGaveUp, VerifyTask
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.rollouts import CODES, UNSCORED, Reason, Verdict

RETRY_S = 1.0
"""Seconds to wait after the trainer process has died."""


OVERSTATED = CODES.index((Verdict.REJECT, Reason.MALFORMED))


class Checking:
    """Verification of batches at one peer.  files: the batches.  tasks: the sets of tasks that rollouts are about."""

    def __init__(self, session: Session, rl: RlSection, files: BlobStore, turn: TrainerLock, tasks: TaskSets) -> None:
        self._session, self._rl, self._files, self._turn, self._tasks = session, rl, files, turn, tasks

    def problems(self, batch: PooledBatch) -> list[int]:
        """Return the problem of each rollout of a batch, in order."""
        drawn = self._drawn(batch, self._tasks.at(batch.body.version))
        return [problem for problem in drawn for _ in range(self._rl.group_size)]

    def _drawn(self, batch: PooledBatch, tasks: TasksInForce) -> tuple[int, ...]:
        body, rl = batch.body, self._rl
        run, tip = self._session.run, Hash(body.tip)
        return problems_of(run, tip, batch.author, body.number, rl.prompts_per_batch, rl.problems, tasks)

    async def check(self, link: RolloutLink, batch: PooledBatch, held: Callable[[], Mapping[int, Hash]]) -> BatchVerified:
        """Have the trainer process verify a batch; `codes` is None in the result if it found nothing.

        The result has scores if the batch's version has sets of tasks in force.  held: returns the tips of the versions that
        the trainer process has.
        """
        body = batch.body
        verdicts: tuple[RolloutVerdict, ...] | None = None
        sets: TasksInForce | None = None
        try:
            with self._files.using(batch.root):
                async with self._turn.lent() as lent:
                    lent.about(body.version, Hash(body.tip))
                    sets = self._tasks.on(body.version, Hash(body.tip))
                    if sets is None or held().get(body.version) != body.tip:
                        return BatchVerified(batch.author, batch.root, None)
                    drawn = self._drawn(batch, sets)
                    task = VerifyTask(self._session.run, body.version, batch.author, drawn, self._rl.group_size)
                    verdicts = await link.verify(task, self._files.path(batch.root))
        except TrainerGaveUp:
            await trio.sleep_forever()
        except TrainerDied as death:
            self._session.emit(Notice("warning", f"the trainer stopped while it verified rollouts: {death}"))
            await trio.sleep(RETRY_S)
            return BatchVerified(batch.author, batch.root, None, died=True)
        if verdicts is None or sets is None:
            return BatchVerified(batch.author, batch.root, None)  # the check was given up
        scores = bytes(map(score_of, verdicts)) if sets.live else None
        codes = bytes(map(code_of, verdicts))
        if not any(codes) and sum(each.tokens for each in verdicts) != body.tokens:
            codes = bytes([OVERSTATED]) * len(verdicts)  # tokens are credited, so their number has to be right
        exact = frozenset(place for place, each in enumerate(verdicts) if each.exact)
        return BatchVerified(batch.author, batch.root, codes, scores, exact, is_sure(verdicts))


def code_of(verdict: RolloutVerdict) -> int:
    """Return a verdict of the trainer process as one byte."""
    if verdict.verdict is Verdict.REJECT:
        return CODES.index((verdict.verdict, verdict.reason))
    return [each for each, _ in CODES].index(verdict.verdict)


def is_sure(verdicts: Sequence[RolloutVerdict]) -> bool:
    """Return True if every honest computer comes to the same opinion of the batch: one rollout that all reject is enough."""
    rejected = [each.sure for each in verdicts if each.verdict is Verdict.REJECT]
    return any(rejected) if rejected else all(each.sure for each in verdicts)


def score_of(verdict: RolloutVerdict) -> int:
    """Return the trainer process's score of a rollout as one byte."""
    return UNSCORED if verdict.reward is None else round(verdict.reward * (UNSCORED - 1))
