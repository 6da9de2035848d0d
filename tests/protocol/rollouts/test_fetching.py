"""What fetches of batches leave on the disk, and what a person is told of a disk that fails."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.blobs.blob import Blob
from protocol.blobs.reliability import Reliability
from protocol.blobs.store import BlobStore, leaves_of
from protocol.chain.progress import TasksInForce
from protocol.disk import Disk, StoreFull
from protocol.events.events import Event, Notice
from protocol.rollouts.events import Ejected, FetchBatch, FetchEnded
from protocol.rollouts.rollouts import BATCHES
from protocol.rollouts.trainer import TrainerLock
from protocol.rollouts.worker import RETRY_S, BatchFetcher, RolloutMaker
from protocol.tasks.library import Library
from protocol.trainer_link import Generated
from protocol.wire.hashes import Hash, tree_root
from protocol.wire.presence import Role
from protocol.wire.questions import LeavesReply
from protocol.wire.rollouts import ROLLOUT_CHUNK_BYTES
from tests.protocol.rollouts.test_pool import ME, RL, WORKER, Table
from tests.simulation.determinism import inline

DATA = b"rollouts" * 10
LEAVES = leaves_of(DATA, ROLLOUT_CHUNK_BYTES)
ROOT = tree_root(LEAVES)


class FullDisk(Disk):
    """Has room for the bytes of a batch, and for no index of it any more."""

    def publish(self, path: Path, mapping: Any, target: Path) -> None:
        raise StoreFull("the disk is full: make room there")


class Stage:
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


def play(scenario: Any) -> None:
    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def stated(stage: Stage, root: Hash = ROOT, number: int = 0) -> Any:
    (effect,) = [each for each in stage.table.hear(root=root, number=number, size=len(DATA)) if isinstance(each, FetchBatch)]
    return effect.batch


@pytest.mark.parametrize("slow", [True, False])
async def test_nothing_stays_of_a_batch_whose_maker_is_set_aside_while_it_comes(tmp_path: Path, slow: bool) -> None:
    stage = Stage(tmp_path, Disk(durable=False), slow)
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
    stage = Stage(tmp_path, FullDisk(durable=False))
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


class NoStatements(BlobStore):
    """Has room for a batch, and for no statement about it any more."""

    def keep(self, number: int, raw: bytes) -> None:
        raise StoreFull("the disk is full: make room there")


async def test_a_batch_of_ours_that_cannot_be_stated_for_want_of_room_takes_none(tmp_path: Path) -> None:
    files = NoStatements(Disk(durable=False), tmp_path / "rollouts")
    files.load()

    async def generate(task: object, path: Path, on_progress: object) -> Generated:
        await trio.lowlevel.checkpoint()
        path.write_bytes(DATA)
        return Generated(rollouts=RL.rollouts_per_batch, tokens=9)

    others: Any = SimpleNamespace(
        me=ME,
        run=Hash(b"r" * 32),
        seal=lambda body: SimpleNamespace(raw=b"statement"),
        generate=generate,
        newest=(3, Hash(b"t" * 32)),
        missing=lambda version: "",
        at=lambda version: TasksInForce(),
    )
    others.link = others.versions = others.tasks = others
    others.lock, others.incarnation = TrainerLock(), 1
    worker = RolloutMaker(others, RL, files, others, inline, others)
    for _ in range(3):
        with pytest.raises(StoreFull):
            await worker.make(lambda done, total: None)
    assert not any(path.stat().st_size >= len(DATA) for path in files.folder.iterdir())
