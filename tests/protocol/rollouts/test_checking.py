"""What a validator holds against whom while the chain goes forth and back."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.chain.progress import TasksInForce
from protocol.rollouts.batch import PooledBatch, problems_of
from protocol.rollouts.events import BatchVerified, DealHeard, FetchEnded, TrainerIdle, VerifyBatch
from protocol.rollouts.trainer import TrainerLock
from protocol.rollouts.worker import BatchVerifier, is_sure
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import RolloutTask, RolloutVerdict
from protocol.wire.hashes import Hash
from protocol.wire.presence import Role
from protocol.wire.rollouts import AdmittedSet, Reason, RolloutBatch, Verdict
from tests.protocol.rollouts.test_pool import GOOD, ME, ONE_PLACE, RL, ROOT, WORKER, Table

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
    size=9,
    root=b"b" * 32,
)


class Stage:
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


def test_a_batch_is_held_against_the_tasks_of_its_own_version() -> None:
    """Though the chain had gone back when its turn was asked for, and has come to that record again when it came."""

    async def main() -> None:
        stage = Stage()
        async with trio.open_nursery() as nursery, stage.turn.taken():
            stage.length = 2
            nursery.start_soon(stage.check)
            await trio.testing.wait_all_tasks_blocked()
            stage.length = 3
        problems = problems_of(RUN, TIPS[3], WORKER, 0, RL.prompts_per_batch, RL.problems, SETS)
        assert [task.problems for task in stage.asked] == [problems]

    trio.run(main)


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


def test_a_batch_of_a_version_that_our_chain_has_not_is_held_against_nothing() -> None:
    async def main() -> None:
        stage = Stage()
        stage.length = 2
        assert (await stage.check()).codes is None
        stage.length = 3
        assert (await stage.check()).codes == bytes(BODY.rollouts) and len(stage.asked) == 1

    trio.run(main)


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
