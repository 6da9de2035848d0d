"""The work of a rollout peer: one batch after another with the newest weights, each on disk before it is announced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import trio

from protocol.blobs.store import BlobStore, leaves_of
from protocol.blobs.swarm import Swarm
from protocol.bounds import BoundedDict
from protocol.chain.progress import TasksInForce
from protocol.disk import StoreFailed, map_file
from protocol.events.events import Notice, RolloutsGenerated
from protocol.formats.bets import total_growth
from protocol.offload import Offload
from protocol.rollouts.batch import PooledBatch, problems_of
from protocol.rollouts.events import BatchVerified, FetchEnded
from protocol.rollouts.pool import Pool
from protocol.rollouts.trainer import SharedTrainer, TrainerLock
from protocol.run.sections import RlSection
from protocol.tasks.library import Library
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import (
    Generated,
    RolloutLink,
    RolloutTask,
    RolloutVerdict,
    TrainerDied,
    TrainerGaveUp,
)
from protocol.transport.handlers import Guard
from protocol.transport.interface import NetworkError, Session
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Envelope
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.messages import unpack
from protocol.wire.rollouts import (
    CODES,
    MAX_BATCH_BYTES,
    MAX_BATCHES,
    ROLLOUT_CHUNK_BYTES,
    UNSCORED,
    Reason,
    RolloutBatch,
    Verdict,
)

# ------------------------------------------------------------------------------------------------------------------------
# Verification of batches by the trainer process.


RETRY_S = 1.0
"""Seconds to wait after the trainer process has died."""


OVERSTATED = CODES.index((Verdict.REJECT, Reason.MALFORMED))


class BatchVerifier:
    """Verification of batches at one peer.  files: the batches' bytes.  tasks: the sets of tasks as sources of problems."""

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
        """Have the trainer process verify a batch; `codes` is None in the result if there are no verdicts.

        The result has scores if sets of tasks are in force at the batch's version.  held: returns the tips of the versions
        that the trainer process has.
        """
        body = batch.body
        verdicts: tuple[RolloutVerdict, ...] | None = None
        sets: TasksInForce | None = None
        try:
            with self._files.using(batch.root):
                async with self._turn.lent():
                    self._turn.about(body.version, Hash(body.tip))
                    sets = self._tasks.on(body.version, Hash(body.tip))
                    if sets is None or held().get(body.version) != body.tip:
                        return BatchVerified(batch.author, batch.root, None)
                    drawn = self._drawn(batch, sets)
                    what = (drawn, self._rl.group_size, body.number, body.precision)
                    task = RolloutTask(self._session.run, body.version, batch.author, *what)
                    verdicts = await link.verify(task, self._files.path(batch.root))
        except TrainerGaveUp:
            await trio.sleep_forever()
        except TrainerDied as death:
            self._session.emit(Notice("warning", f"the trainer stopped while it verified rollouts: {death}"))
            await trio.sleep(RETRY_S)
            return BatchVerified(batch.author, batch.root, None, died=True)
        if verdicts is None or sets is None:
            return BatchVerified(batch.author, batch.root, None)  # the check was cancelled
        scores = None
        if sets.live:
            rewards = [each.reward for each in verdicts]
            scores = bytes(UNSCORED if reward is None else round(reward * (UNSCORED - 1)) for reward in rewards)
        codes = bytes(map(code_of, verdicts))
        if not any(codes) and sum(each.tokens for each in verdicts) != body.tokens:
            codes = bytes([OVERSTATED]) * len(verdicts)  # the maker gets credit for tokens, so their number has to be right
        exact = frozenset(place for place, each in enumerate(verdicts) if each.exact)
        growth = total_growth(each.growth for each in verdicts)
        return BatchVerified(batch.author, batch.root, codes, scores, exact, is_sure(verdicts), growth=growth)


def code_of(verdict: RolloutVerdict) -> int:
    """Return a verdict of the trainer process as one byte."""
    if verdict.verdict is Verdict.REJECT:
        return CODES.index((verdict.verdict, verdict.reason))
    return [each for each, _ in CODES].index(verdict.verdict)


def is_sure(verdicts: Sequence[RolloutVerdict]) -> bool:
    """Return True if every honest computer comes to the same opinion of the batch: one rollout rejected by all is enough."""
    rejected = [each.sure for each in verdicts if each.verdict is Verdict.REJECT]
    return any(rejected) if rejected else all(each.sure for each in verdicts)


# ------------------------------------------------------------------------------------------------------------------------
# Repetition of statements by gossip, because gossip may lose them.


FIRST_S = 2.0
TIMES = 5
"""Number of times that a statement is sent, with pauses that double, starting at `FIRST_S`."""
MOST = 4096
"""Most statements that are repeated; beyond that, the oldest is dropped."""


class StatementRepeater:
    """Repetition of this peer's statements about rollouts."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._due = BoundedDict[bytes, tuple[float, int]](MOST)
        """(Time at which to send each statement next, number of times it was sent)."""

    def say(self, raw: bytes, times: int = TIMES) -> None:
        """Send a statement at the next call of `turn`, and `times` times in all."""
        self._due[raw] = (trio.current_time(), TIMES - times)

    async def turn(self) -> None:
        """Send the statements that are due."""
        now = trio.current_time()
        for raw, (at, times) in [*self._due.items()]:
            if at > now:
                continue
            if times + 1 < TIMES:
                self._due[raw] = now + FIRST_S * 2**times, times + 1
            else:
                del self._due[raw]
            with suppress(NetworkError):  # the statement is repeated
                await self._session.network.publish(raw)


# ------------------------------------------------------------------------------------------------------------------------
# Fetching and removal of the bytes of other peers' batches.


class BatchFetcher:
    """Fetching of batches at one peer.  within_s: time limit for a batch (s).  told: called with the outcome of a fetch."""

    def __init__(
        self,
        session: Session,
        guard: Guard,
        library: Library,
        pool: Pool,
        within_s: float,
        told: Callable[[FetchEnded], object],
    ) -> None:
        self._session, self._guard, self._library, self._pool = session, guard, library, pool
        self._within_s, self._told = within_s, told
        self._under_way: dict[trio.CancelScope, PooledBatch] = {}
        self._unwanted: deque[Hash] = deque()
        """Roots of bytes to remove as soon as they are not being read."""
        self._trouble = ""

    async def fetch(self, batch: PooledBatch) -> None:
        """Fetch the bytes of a batch within the time limit, and report the outcome."""
        here: bool | None = None
        scope = trio.CancelScope()
        self._under_way[scope] = batch
        with self._guard.watch(batch.author, "batch of rollouts"), scope:
            try:
                body = batch.body
                here = await self._library.obtain(batch.root, body.size, body.version, (batch.author,), self._within_s)
                self._trouble = ""
            except StoreFailed as error:
                trouble = f"rollouts cannot be kept: {error}"
                if trouble != self._trouble:  # a disk that failed for one batch fails for the next
                    self._session.emit(Notice("warning", trouble))
                self._trouble = trouble
        del self._under_way[scope]
        if here is None and not scope.cancelled_caught:
            await trio.sleep(RETRY_S)
        self._told(FetchEnded(batch.author, batch.root, here))
        if here is None:
            self.discard(batch.root)  # removes the partial bytes, unless they are fetched again

    def discard(self, root: Hash) -> None:
        """Remove these bytes as soon as they are not being read."""
        self._unwanted.append(root)

    def end_useless(self) -> None:
        """Cancel the fetches of batches that are now too old or decided, to free their places for other batches."""
        for scope, batch in self._under_way.items():
            if not self._pool.lacks(batch):
                scope.cancel()

    async def remove_unwanted(self) -> None:
        """Remove the unwanted bytes that can be removed now."""
        for _ in range(len(self._unwanted)):
            root = self._unwanted.popleft()
            if not await self._library.remove(root):
                self._unwanted.append(root)


# ------------------------------------------------------------------------------------------------------------------------


MADE = ".made.new"
"""File of a batch that is being made; a leftover of an earlier process is removed with all such files."""

VERSIONS_REMEMBERED = 4096
"""Most versions whose next numbers are remembered.  A chain hardly ever moves back by so many records."""


class RolloutMaker:
    """Work of one rollout peer."""

    def __init__(
        self, session: Session, rl: RlSection, files: BlobStore, swarm: Swarm, offload: Offload, trainer: SharedTrainer
    ) -> None:
        assert trainer.link is not None and trainer.versions is not None, "a peer with a trainer process"
        self._session, self._rl, self._files, self._swarm, self._offload = session, rl, files, swarm, offload
        self._trainer, self._link, self._versions = trainer, trainer.link, trainer.versions
        self._died_over: tuple[Hash, int] | None = None
        """(Tip, number) of the batch over which our trainer process died last.

        After a second death we skip the batch; its trainer takes the later ones after `HOLD_S` (`protocol.rollouts.pool`).
        """
        self._next = BoundedDict[Hash, int](VERSIONS_REMEMBERED)
        """Number of the next batch at each tip.

        The chain may go back.  A peer that then stated another batch with an old number would have signed two contradictory
        statements.
        """

    async def recall(self) -> list[tuple[RolloutBatch, Envelope]]:
        """Return our earlier statements whose bytes we still have; numbers continue after all old statements."""
        found = []
        for raw in await self._offload(self._files.statements):
            try:
                sender, body, envelope = unpack(raw, self._session.run)
            except Malformed:
                continue
            if isinstance(body, RolloutBatch) and sender == self._session.me:
                tip = Hash(body.tip)
                self._next[tip] = max(self._next.get(tip, 0), body.number + 1)
                if self._files.has(Hash(body.root)):
                    found.append((body, envelope))
        return found

    def obstacle(self) -> str:
        """Return the reason why no batch can be made now, as a sentence; empty if a batch can be made."""
        newest, warm = self._versions.newest, self._rl.warm_rounds
        if newest is None:
            return "the trainer does not have the newest weights yet"
        if newest[0] < warm:
            return f"rollouts begin with round {warm}; until then the run reads text"
        if missing := self._trainer.missing(newest[0]):
            return missing
        return "all batches of these weights are made" if self._next.get(newest[1], 0) >= MAX_BATCHES else ""

    async def make(self, on_progress: Callable[[int, int], None]) -> tuple[RolloutBatch, Envelope] | None:
        """Make the next batch; sign its statement and store it, but do not send it yet.

        Returns None if there are no weights, or if the work was cancelled.  Raises `TrainerDied`, `StoreFailed`.
        """
        begun, rl, made = trio.current_time(), self._rl, None
        async with self._trainer.lock.lent():
            newest = self._versions.newest
            if newest is None or self.obstacle():
                return None
            version, tip = newest
            self._trainer.lock.about(version, tip)
            number = self._next.get(tip, 0)
            run, me, sets = self._session.run, self._session.me, self._trainer.tasks.at(version)
            problems = problems_of(run, tip, me, number, rl.prompts_per_batch, rl.problems, sets)
            task = RolloutTask(run, version, me, problems, rl.group_size, number)
            path = self._files.folder / MADE
            try:
                made = await self._link.generate(task, path, on_progress)
            except TrainerDied:
                if self._died_over == (tip, number):
                    self._next[tip] = number + 1  # the process might die of it again and again
                self._died_over = tip, number
                raise
        if made is None:
            return None
        body = await self._offload(self._adopt, version, tip, number, made)
        envelope = self._session.seal(body)
        try:
            await self._offload(self._files.keep, version * MAX_BATCHES + number, envelope.raw)  # the slot is used
        except StoreFailed:
            await self._offload(self._files.remove, Hash(body.root))  # the batch will not be announced, and the disk is full
            raise
        self._next[tip] = number + 1  # a failed write to the disk skips no number, because trainers take them in order
        self._swarm.originate(Hash(body.root), body.chunks)
        seconds = trio.current_time() - begun
        self._session.emit(
            RolloutsGenerated(version, number, body.root.hex(), body.rollouts, body.tokens, body.size, seconds)
        )
        return body, envelope

    def _adopt(self, version: int, tip: Hash, number: int, made: Generated) -> RolloutBatch:
        """Store the generated bytes, and return their statement; raise `TrainerDied` if none have the right size."""
        path = self._files.folder / MADE
        view = map_file(path)
        if view is None or not 0 < len(view) <= MAX_BATCH_BYTES or made.rollouts != self._rl.rollouts_per_batch:
            raise TrainerDied("it made no batch of rollouts of the right size")
        size, leaves = len(view), leaves_of(view, ROLLOUT_CHUNK_BYTES)
        root = tree_root(leaves)
        view.release()
        self._files.adopt(path, root, leaves)
        return RolloutBatch(
            version=version,
            tip=tip,
            number=number,
            incarnation=self._trainer.incarnation,
            rollouts=made.rollouts,
            tokens=made.tokens,
            precision=made.precision,
            size=size,
            root=root,
        )

    async def forget_before(self, version: int) -> None:
        """Forget the statements about older versions."""
        await self._offload(self._files.keep_all, (), version * MAX_BATCHES)
