"""What a rollout peer states about its batches while the chain goes forth and back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from protocol.blobs.store import BlobStore
from protocol.chain.progress import TasksInForce
from protocol.disk import Disk, StoreFailed
from protocol.rollouts import worker as worker_module
from protocol.rollouts.batch import problems_of
from protocol.rollouts.trainer import TrainerLock
from protocol.rollouts.worker import RolloutMaker
from protocol.trainer_link import Generated, RolloutTask, TrainerDied
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.rollouts import RolloutBatch
from tests.protocol.rollouts.test_pool import ME, RL
from tests.simulation.determinism import inline

T: Hash = Hash(b"t" * 32)
U: Hash = Hash(b"u" * 32)
V: Hash = Hash(b"v" * 32)


class Stage:
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


def test_no_batch_is_stated_twice_when_the_chain_goes_back(tmp_path: Path) -> None:
    """Two statements of one life about one batch are proof of a lie."""

    async def main() -> None:
        stage = Stage(tmp_path)
        said = await stage.makes(3, T, 2)
        said += await stage.makes(4, V)
        said += await stage.makes(3, T)  # the last record was given up
        said += await stage.makes(3, U)  # and the one before: it is another branch
        said += await stage.makes(4, V)
        places = [(body.version, body.number) for body in said]
        assert places == [(3, 0), (3, 1), (4, 0), (3, 2), (3, 0), (4, 1)], "each tip has its own"

    trio.run(main)


def test_the_numbers_of_versions_that_never_come_back_are_forgotten(tmp_path: Path, monkeypatch: Any) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        for version in range(9):
            await stage.makes(version, hash_bytes("tip", bytes([version])))
        assert len(stage.worker._next) == 4
        assert [body.number for body in await stage.makes(8, hash_bytes("tip", bytes([8])))] == [1]

    monkeypatch.setattr(worker_module, "VERSIONS_REMEMBERED", 4)
    trio.run(main)


def test_a_batch_over_which_the_process_ends_again_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        stage = Stage(tmp_path)
        await stage.makes(3, T)
        fatal = problems_of(Hash(b"r" * 32), T, ME, 1, RL.prompts_per_batch, RL.problems, TasksInForce())
        stage.fatal = {fatal}
        for _ in range(2):
            with pytest.raises(TrainerDied):
                await stage.makes(3, T)
        [body] = await stage.makes(3, T)
        assert body.number == 2 and stage.tasks.count(fatal) == 2

    trio.run(main)


def test_a_statement_that_the_disk_does_not_take_gives_no_number(tmp_path: Path, monkeypatch: Any) -> None:
    """Trainers take numbers in order: they would wait for it."""

    def full(number: int, raw: bytes) -> None:
        raise StoreFailed("no space left")

    async def main() -> None:
        stage = Stage(tmp_path)
        await stage.makes(3, T)
        with monkeypatch.context() as patched, pytest.raises(StoreFailed):
            patched.setattr(stage.files, "keep", full)
            await stage.makes(3, T)
        assert [body.number for body in await stage.makes(3, T)] == [1]

    trio.run(main)
