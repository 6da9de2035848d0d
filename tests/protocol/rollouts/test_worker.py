"""Rollout peers make batches and state each once; batches are fetched, and checked with the tasks of their version."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.blobs.blob import Blob
from protocol.blobs.reliability import Reliability
from protocol.blobs.store import BlobStore, leaves_of
from protocol.chain.progress import TasksInForce
from protocol.disk import Disk, StoreFailed, StoreFull
from protocol.events.events import Event, Notice
from protocol.formats.rl import Precision
from protocol.rollouts import worker as worker_module
from protocol.rollouts.batch import PooledBatch, problems_of
from protocol.rollouts.events import BatchVerified, DealHeard, Ejected, FetchBatch, FetchEnded, TrainerIdle, VerifyBatch
from protocol.rollouts.rollouts import BATCHES
from protocol.rollouts.trainer import TrainerLock
from protocol.rollouts.worker import RETRY_S, BatchFetcher, BatchVerifier, RolloutMaker, is_sure
from protocol.tasks.library import Library
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import Generated, RolloutTask, RolloutVerdict, TrainerDied
from protocol.wire.hashes import Hash, hash_bytes, tree_root
from protocol.wire.presence import Role
from protocol.wire.questions import LeavesReply
from protocol.wire.rollouts import ROLLOUT_CHUNK_BYTES, AdmittedSet, Reason, RolloutBatch, Verdict
from tests.protocol.rollouts.test_pool import GOOD, ME, ONE_PLACE, RL, ROOT, WORKER, Table
from tests.simulation.determinism import inline

pytestmark = pytest.mark.usefixtures("virtual_time")

# -- making ---------------------------------------------------------------------------------------------------------------

T: Hash = Hash(b"t" * 32)
U: Hash = Hash(b"u" * 32)
V: Hash = Hash(b"v" * 32)


class MakerStage:
    """A rollout peer, and its trainer process, whose batches are all different."""

    def __init__(self, folder: Path) -> None:
        self.newest, self.made, self.tasks = (0, T), 0, list[tuple[int, ...]]()
        self.fatal: set[tuple[int, ...]] = set()
        """Problems over which the process ends."""
        self.files = BlobStore(Disk(durable=False), folder / "rollouts")
        self.files.load()
        others: Any = SimpleNamespace(
            me=ME,
            run=Hash(b"r" * 32),
            seal=lambda body: SimpleNamespace(raw=body.encode()),
            generate=self.generate,
            missing=lambda version: "",
            at=lambda version: TasksInForce(),
            originate=lambda root, count: None,
            emit=lambda event: None,
        )
        trainer: Any = SimpleNamespace(
            link=others, lock=TrainerLock(), versions=self, tasks=others, missing=lambda version: "", incarnation=1
        )
        self.worker = RolloutMaker(others, RL, self.files, others, inline, trainer)

    async def generate(self, task: RolloutTask, path: Path, on_progress: object) -> Generated:
        await trio.lowlevel.checkpoint()
        self.made += 1
        self.tasks.append(task.problems)
        if task.problems in self.fatal:
            raise TrainerDied("out of memory")
        path.write_bytes(b"%d" % self.made)
        return Generated(rollouts=RL.rollouts_per_batch, tokens=9)

    async def makes(self, version: int, tip: Hash, batches: int = 1) -> list[RolloutBatch]:
        """What it states with the weights at this tip."""
        self.newest, found = (version, tip), []
        for _ in range(batches):
            made = await self.worker.make(lambda done, total: None)
            assert made is not None
            found.append(made[0])
        return found


async def test_no_batch_is_stated_twice_when_the_chain_goes_back(tmp_path: Path) -> None:
    """Two statements of one life about one batch are proof of a lie."""
    stage = MakerStage(tmp_path)
    said = await stage.makes(3, T, 2)
    said += await stage.makes(4, V)
    said += await stage.makes(3, T)  # the last record was given up
    said += await stage.makes(3, U)  # and the one before: it is another branch
    said += await stage.makes(4, V)
    places = [(body.version, body.number) for body in said]
    assert places == [(3, 0), (3, 1), (4, 0), (3, 2), (3, 0), (4, 1)], "each tip has its own"


async def test_the_numbers_of_versions_that_never_come_back_are_forgotten(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(worker_module, "VERSIONS_REMEMBERED", 4)
    stage = MakerStage(tmp_path)
    for version in range(9):
        await stage.makes(version, hash_bytes("tip", bytes([version])))
    assert len(stage.worker._next) == 4
    assert [body.number for body in await stage.makes(8, hash_bytes("tip", bytes([8])))] == [1]


async def test_a_batch_over_which_the_process_ends_again_is_passed_over(tmp_path: Path) -> None:
    stage = MakerStage(tmp_path)
    await stage.makes(3, T)
    fatal = problems_of(Hash(b"r" * 32), T, ME, 1, RL.prompts_per_batch, RL.problems, TasksInForce())
    stage.fatal = {fatal}
    for _ in range(2):
        with pytest.raises(TrainerDied):
            await stage.makes(3, T)
    [body] = await stage.makes(3, T)
    assert body.number == 2 and stage.tasks.count(fatal) == 2


async def test_a_statement_that_the_disk_does_not_take_gives_no_number_and_its_batch_takes_no_room(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Trainers take numbers in order: they would wait for it."""

    def full(number: int, raw: bytes) -> None:
        raise StoreFailed("no space left")

    stage = MakerStage(tmp_path)
    await stage.makes(3, T)
    with monkeypatch.context() as patched, pytest.raises(StoreFailed):
        patched.setattr(stage.files, "keep", full)
        await stage.makes(3, T)
    assert len(stage.files.sizes()) == 1
    assert [body.number for body in await stage.makes(3, T)] == [1]


# -- fetching -------------------------------------------------------------------------------------------------------------

DATA = b"rollouts" * 10
LEAVES = leaves_of(DATA, ROLLOUT_CHUNK_BYTES)
BATCH_ROOT = tree_root(LEAVES)


class FullDisk(Disk):
    """Has room for the bytes of a batch, and for no index of it any more."""

    def publish(self, path: Path, mapping: Any, target: Path) -> None:
        raise StoreFull("the disk is full: make room there")


class FetchStage:
    """A trainer whose bytes come from a swarm that gives all of them, or, `slow`, none."""

    def __init__(self, folder: Path, disk: Disk, slow: bool = False) -> None:
        self.slow, self.said, self.told = slow, list[Event](), list[FetchEnded]()
        self.table = Table(Role.TRAINER, trainers=())
        self.files = BlobStore(disk, folder / "rollouts")
        self.files.load()
        session: Any = SimpleNamespace(me=ME, network=self, emit=self.said.append)
        swarm: Any = self
        guard: Any = self
        self.reliability = Reliability()
        library = Library(session, self.files, swarm, inline, BATCHES, self.table.pool.needs)
        self.fetching = BatchFetcher(session, guard, library, self.table.pool, RL.judge_s, self._take)

    def _take(self, fetched: FetchEnded) -> None:
        self.told.append(fetched)
        self.table.tell(fetched)

    def watch(self, sender: object, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def connected(self) -> list[object]:
        return [WORKER]

    async def request(self, peer: object, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        await trio.lowlevel.checkpoint()
        return LeavesReply(leaves=list(LEAVES)).encode()

    async def fetch(self, blob: Blob, into: memoryview, sources: object, purpose: object, *, here: int, **_: object) -> bool:
        if self.slow:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        into[:] = DATA
        return True

    def end_origin(self, root: Hash) -> None:
        """As the swarm."""

    @property
    def on_disk(self) -> list[str]:
        return sorted(path.suffix for path in self.files.folder.iterdir())


def stated(stage: FetchStage, root: Hash = BATCH_ROOT, number: int = 0) -> Any:
    (effect,) = [each for each in stage.table.hear(root=root, number=number, size=len(DATA)) if isinstance(each, FetchBatch)]
    return effect.batch


@pytest.mark.parametrize("slow", [True, False])
async def test_nothing_stays_of_a_batch_whose_maker_is_set_aside_while_it_comes(tmp_path: Path, slow: bool) -> None:
    stage = FetchStage(tmp_path, Disk(durable=False), slow)
    batch = stated(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.fetching.fetch, batch)
        await trio.testing.wait_all_tasks_blocked()
        for effect in stage.table.tell(Ejected(WORKER, "two batches of one number")):
            if hasattr(effect, "root"):
                stage.fetching.discard(effect.root)
        stage.fetching.end_useless()
    await stage.fetching.remove_unwanted()
    assert stage.on_disk == [] and not stage.fetching._unwanted
    assert len(stage.told) == 1, "whatever came of it, its place is free"


async def test_a_full_disk_is_not_filled_with_pieces_of_batches_and_told_once(tmp_path: Path) -> None:
    stage = FetchStage(tmp_path, FullDisk(durable=False))
    batch = stated(stage)
    for _ in range(3):
        await stage.fetching.fetch(batch)
    assert [event for event in stage.said if isinstance(event, Notice)] == [
        Notice("warning", "rollouts cannot be kept: the disk is full: make room there")
    ]
    assert [each.here for each in stage.told] == [None] * 3 and trio.current_time() >= 3 * RETRY_S
    stage.table.move(3 + RL.max_async + 1)
    await stage.fetching.remove_unwanted()
    assert stage.on_disk == []


# -- checking -------------------------------------------------------------------------------------------------------------

RUN: Hash = Hash(b"r" * 32)
TIPS = [Hash(bytes([round]) * 32) for round in range(4)]
SETS = TasksInForce(1, 50, (AdmittedSet(name="a", count=9, size=9, root=b"s" * 32, slot=1, publisher=WORKER),), highest=1)
BODY = RolloutBatch(
    version=3,
    tip=TIPS[3],
    number=0,
    incarnation=1,
    rollouts=RL.rollouts_per_batch,
    tokens=RL.rollouts_per_batch,
    precision=Precision.FLOAT32,
    size=9,
    root=b"b" * 32,
)


class CheckStage:
    """A validator whose trainer process holds version 3, of which the last record admitted a set.  length: of its chain."""

    def __init__(self) -> None:
        self.length, self.asked = 3, list[RolloutTask]()
        tasks: Any = SimpleNamespace(_replica=SimpleNamespace(history=self))
        tasks.at = lambda version: self.roster_at(min(version, self.length)).tasks
        tasks.on = lambda version, tip: TaskSets.on(tasks, version, tip)
        others: Any = SimpleNamespace(run=RUN, me=ME, using=lambda root: nullcontext(), path=lambda root: Path("b"))
        self.turn = TrainerLock()
        self.checking = BatchVerifier(others, RL, others, self.turn, tasks)

    def tip_at(self, rounds: int) -> Hash:
        return TIPS[rounds]

    def roster_at(self, rounds: int) -> Any:
        return SimpleNamespace(tasks=SETS if rounds == 3 else TasksInForce())

    async def verify(self, task: RolloutTask, path: Path) -> tuple[RolloutVerdict, ...]:
        await trio.lowlevel.checkpoint()
        self.asked.append(task)
        return (RolloutVerdict(Verdict.ACCEPT, Reason.NONE, "", 1.0, 1),) * BODY.rollouts

    async def check(self) -> BatchVerified:
        link: Any = self
        return await self.checking.check(link, PooledBatch(WORKER, BODY, b""), lambda: {3: TIPS[3]})


async def test_a_batch_is_held_against_the_tasks_of_its_own_version() -> None:
    """Though the chain had gone back when its turn was asked for, and has come to that record again when it came."""
    stage = CheckStage()
    async with trio.open_nursery() as nursery, stage.turn.taken():
        stage.length = 2
        nursery.start_soon(stage.check)
        await trio.testing.wait_all_tasks_blocked()
        stage.length = 3
    problems = problems_of(RUN, TIPS[3], WORKER, 0, RL.prompts_per_batch, RL.problems, SETS)
    assert [task.problems for task in stage.asked] == [problems]


@pytest.mark.parametrize(
    ("found", "sure"),
    [
        ([(True, True), (True, True)], True),
        ([(True, True), (True, False)], False),
        ([(True, False), (False, True)], True),
        ([(True, True), (False, False)], False),
        ([(False, False), (False, True)], True),
    ],
)
def test_a_verdict_is_sure_where_every_honest_device_comes_to_it(found: list[tuple[bool, bool]], sure: bool) -> None:
    """found: whether a rollout is accepted, and whether by all, or rejected by all."""
    accepted = {True: (Verdict.ACCEPT, Reason.NONE), False: (Verdict.REJECT, Reason.BAD_SAMPLING)}
    assert is_sure([RolloutVerdict(*accepted[good], "", None, 1, sure=by_all) for good, by_all in found]) is sure


async def test_a_batch_of_a_version_that_our_chain_has_not_is_held_against_nothing() -> None:
    stage = CheckStage()
    stage.length = 2
    assert (await stage.check()).codes is None
    stage.length = 3
    assert (await stage.check()).codes == bytes(BODY.rollouts) and len(stage.asked) == 1


def test_what_our_chain_went_back_before_waits_until_it_comes_again() -> None:
    """Else it was asked for again and again, without a pause, as nothing came of it."""
    table = Table(Role.VALIDATOR, trainers=(WORKER,))
    table.validators = frozenset({ME})
    table.tick()
    table.hear()
    table.tell(DealHeard(WORKER, WORKER, ROOT, ONE_PLACE))
    table.tell(FetchEnded(WORKER, ROOT, True))
    for _ in range(2):
        assert [type(effect) for effect in table.tell(TrainerIdle())] == [VerifyBatch]
        table.move(2)
        table.tell(BatchVerified(WORKER, ROOT, None))
        assert table.tell(TrainerIdle()) == []
        table.move(3)
    table.check(GOOD)
    batch = table.pool.find(WORKER, ROOT)
    assert batch is not None and batch.own == GOOD
