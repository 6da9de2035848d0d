"""The trainer process of a validator or a rollout peer: who has it, what it holds, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from protocol.chain.progress import TasksInForce
from protocol.events.events import Event, PhaseChanged
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.rollouts.trainer import AGAIN_S, LASTS_S, REST_S, KeptVersions, LoadedTasks, TrainerLock, WorkStatus
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import SharedTaskFile
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.presence import Phase, Role
from protocol.wire.rollouts import AdmittedSet, Amendment
from tests.protocol.peers import ANN

pytestmark = pytest.mark.usefixtures("virtual_time")

# -- whose turn it is -----------------------------------------------------------------------------------------------------

OLD, NEW, OTHER = (hash_bytes("tip", bytes([number])) for number in range(3))


async def work(turn: TrainerLock, done: list[str], seconds: float) -> None:
    """A batch of version 3."""
    with_it = "given up"
    async with turn.lent():
        turn.about(3, OLD)
        await trio.sleep(seconds)
        with_it = "done"
    done.append(with_it)


async def looks(turn: TrainerLock) -> None:
    while True:
        turn.look()
        await trio.sleep(0.25)


async def tried(change: Callable[[TrainerLock], None], seconds: float = 500.0) -> tuple[str, float]:
    """What becomes of a batch that takes so long and a change in the midst of it, and when somebody else has the turn."""
    turn, done = TrainerLock(), list[str]()
    turn.moved({3: OLD, 2: OTHER})
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(looks, turn)
            nursery.start_soon(work, turn, done, seconds)
            await trio.sleep(1.0)
            change(turn)
            begun = trio.current_time()
            async with turn.taken():
                waited_s = trio.current_time() - begun
            nursery.cancel_scope.cancel()
    [became] = done
    return became, waited_s


async def test_a_batch_that_nobody_would_take_any_more_gives_the_turn_back() -> None:
    for tips in ({4: NEW, 5: NEW}, {3: OTHER}):
        became, waited_s = await tried(lambda turn, tips=tips: turn.moved(tips))  # type: ignore[misc]
        assert became == "given up" and waited_s <= 0.25
    became, _ = await tried(lambda turn: turn.moved({3: OLD, 5: NEW}))
    assert became == "done", "it is young enough"


async def test_a_short_rest_keeps_what_is_being_made_and_a_long_one_gives_the_turn_back() -> None:
    became, waited_s = await tried(lambda turn: turn.rest(True))
    assert became == "given up" and REST_S <= waited_s <= REST_S + 0.5

    def rests_and_goes_on(turn: TrainerLock) -> None:
        turn.rest(True)
        turn.rest(False)

    assert (await tried(rests_and_goes_on))[0] == "done"
    assert (await tried(lambda turn: turn.rest(True), REST_S / 2))[0] == "done"


class Shown:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.activity = Activity(self.events.append)
        self.status = WorkStatus(self.activity, Role.VALIDATOR)

    @property
    def now(self) -> tuple[Phase, WhyIdle]:
        return self.activity.phase, self.activity.why


def test_a_short_gap_is_no_idleness_and_another_reason_is_shown_at_once() -> None:
    shown = Shown()
    shown.status.show()
    for now in range(100):
        shown.status.works()
        shown.status.idles(WhyIdle.NOTHING_TO_CHECK, "nothing", now)
    assert shown.now == (Phase.VERIFYING, WhyIdle.BUSY)
    assert sum(isinstance(event, PhaseChanged) for event in shown.events) == 2
    shown.status.idles(WhyIdle.NOTHING_TO_CHECK, "nothing", 99 + LASTS_S)
    assert shown.now == (Phase.VERIFYING, WhyIdle.NOTHING_TO_CHECK)
    shown.status.idles(WhyIdle.TRAINER_RESTARTING, "the trainer stopped", 99 + LASTS_S)
    assert shown.now == (Phase.VERIFYING, WhyIdle.TRAINER_RESTARTING)


# -- the versions that it keeps -------------------------------------------------------------------------------------------

TIP: Hash = hash_bytes("tip", b"")


class Link:
    """A process that is started anew while it is being given a version."""

    pid: int | None = None

    async def keep_version(self, version: int, theta: memoryview) -> None:
        self.pid = self.pid or 7


def test_nothing_is_held_while_there_is_no_process() -> None:
    link: Any = Link()
    keeping: Any = SimpleNamespace(changing=trio.Lock(), mark=SimpleNamespace(rounds=0, digest="x"))
    history = SimpleNamespace(length=0, tip_at=lambda rounds: TIP)
    replica: Any = SimpleNamespace(history=history, state=SimpleNamespace(rounds=0, theta=memoryview(b"")))
    kept = KeptVersions(replica, keeping, link, TrainerLock(), 2)
    trio.run(kept.follow)
    link.pid = None  # it ended
    assert kept.tips == {} and kept.newest is None
    trio.run(kept.follow)
    link.pid = 8
    trio.run(kept.follow)
    assert kept.tips == {0: TIP}


# -- the sets of tasks that it has ----------------------------------------------------------------------------------------

A, B = Hash(b"a" * 32), Hash(b"b" * 32)


def in_force(root: Hash, number: int = 1) -> TasksInForce:
    one = AdmittedSet(name="set", count=3, size=9, root=root, slot=5, publisher=ANN.peer_id)
    return TasksInForce(number, 50, (one,), highest=5)


class TaskStage:
    """A trainer process, and the sets that are in force.  pending: an amendment that no record has.  refused: by root."""

    pid: int | None = 7

    def __init__(self) -> None:
        self.tasks, self.pending, self.given = in_force(A), in_force(A), list[list[str]]()
        self.refused, self.looked = dict[str, str](), list[list[Hash]]()
        self.digests = {A: "a", B: "b"}
        files = SimpleNamespace(digests=self.digests, path=lambda root: Path(root.hex()), look_again=self.look_again)
        self.sets: Any = SimpleNamespace(files=files, unusable={}, at=lambda version: self.tasks, _versions=lambda: [3])
        self.sets.usable_files = self.usable_files
        self.sets.note_unusable = partial(TaskSets.note_unusable, cast(Any, self.sets))
        others: Any = self
        self.held = LoadedTasks(others, others.sets, others, TrainerLock())

    def emit(self, event: object) -> None:
        """Told to nobody."""

    def usable_files(self) -> Any:
        self.sets.pending = (Amendment(number=2, percent=50, sets=[*self.pending.sets]), b"")
        return TaskSets.usable_files(self.sets)

    async def look_again(self, roots: Sequence[Hash]) -> None:
        await trio.lowlevel.checkpoint()
        self.looked.append([*roots])

    async def use_tasks(self, files: Sequence[SharedTaskFile]) -> dict[int, str]:
        await trio.lowlevel.checkpoint()
        self.given.append([file.digest for file in files])
        return {file.first: self.refused[file.digest] for file in files if file.digest in self.refused}


async def test_a_slot_that_is_another_sets_on_another_branch_has_not_the_tasks_of_this_one() -> None:
    """Else batches were made and judged with the problems of the wrong set, and honest peers set aside."""
    stage = TaskStage()
    await stage.held.follow()
    assert stage.held.has(stage.sets.at(3).live) and not stage.held.missing(3)
    stage.tasks = stage.pending = in_force(B)
    assert not stage.held.has(stage.sets.at(3).live) and "reads the tasks" in stage.held.missing(3)
    await stage.held.follow()
    assert stage.held.has(stage.sets.at(3).live) and stage.given == [["a"], ["b"]]


async def test_an_amendment_that_can_never_come_takes_no_slot_of_what_is_in_force() -> None:
    stage = TaskStage()
    stage.pending = in_force(B, 2)
    await stage.held.follow()
    assert stage.held.has(stage.sets.at(3).live) and stage.given == [["a"]]


async def test_what_could_not_be_used_is_looked_at_and_tried_again_after_a_while() -> None:
    stage = TaskStage()
    stage.refused = {"a": "there is no file"}
    for _ in range(3):
        await stage.held.follow()
    assert len(stage.given) == 1 and stage.sets.unusable == {(5, A): "there is no file"}
    assert "there is no file" in stage.held.missing(3)
    await trio.sleep(AGAIN_S)
    await stage.held.follow()
    assert stage.looked == [[A]] and len(stage.given) == 2
    stage.refused = {}
    await trio.sleep(AGAIN_S)
    await stage.held.follow()
    assert stage.held.has(stage.sets.at(3).live) and stage.sets.unusable == {}
    await trio.sleep(AGAIN_S)
    await stage.held.follow()
    assert len(stage.given) == 3, "nothing is left to be tried"
