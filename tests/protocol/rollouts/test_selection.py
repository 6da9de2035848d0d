"""What a trainer learns from: enough accepted batches, and the weights that its loss compares with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from protocol.blobs.store import BlobStore
from protocol.chain.progress import TasksInForce
from protocol.disk import Disk
from protocol.events.events import Event, NothingLearned, RolloutsUsed
from protocol.events.status import WhyIdle
from protocol.formats.results import RatedAnswer
from protocol.formats.rl import Precision
from protocol.rollouts.batch import PooledBatch
from protocol.rollouts.selection import SelectedBatches, Selection
from protocol.rollouts.trainer import TrainerLock
from protocol.tasks.task_sets import LOST_S, VOTE_S, LostSets
from protocol.trainer_link import Contribution
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId
from protocol.wire.rollouts import AdmittedSet, RolloutBatch
from tests.protocol.peers import ANN, BOB

pytestmark = pytest.mark.usefixtures("virtual_time")


def lost(*slots: int, voters: Sequence[PeerId] = ()) -> LostSets:
    """Sets that are lost for Ann, on a tip with these voters."""
    session: Any = SimpleNamespace(me=ANN.peer_id)
    electorate = SimpleNamespace(electors=voters)
    replica: Any = SimpleNamespace(history=SimpleNamespace(roster=SimpleNamespace(electorate=electorate)))
    made = LostSets(session, replica)
    made.keys = frozenset((slot, Hash(bytes(32))) for slot in slots)
    return made


HELD = (3, Hash(bytes(32)))
"""Version, with its tip, that the trainer process holds."""
ONE = AdmittedSet(name="s", count=1, size=9, root=bytes(32), slot=7, publisher=ANN.peer_id)
NO_SETS = SimpleNamespace(lost=lost(), at=lambda version: TasksInForce())


def a_selection(
    folder: Path,
    usable: Sequence[PooledBatch] = (),
    *,
    tasks: Any = NO_SETS,
    lock: TrainerLock | None = None,
    batches: int = 2,
    reference: Any = None,
    compares: bool = False,
) -> Selection:
    """Ann's, who has these batches and a trainer process with all tasks."""
    session: Any = SimpleNamespace(me=ANN.peer_id)
    pool: Any = SimpleNamespace(usable=lambda version: usable)
    trainer: Any = SimpleNamespace(
        tasks=tasks,
        lock=lock or TrainerLock(),
        missing=lambda version: "",
        has_tasks=lambda version: True,
        holds=lambda version, tip: (version, tip) == HELD,
    )
    return Selection(session, pool, BlobStore(Disk(), folder), trainer, batches, reference, compares=compares)


def a_batch(number: int) -> PooledBatch:
    root = hash_bytes("batch", bytes([number]))
    body = RolloutBatch(
        version=3,
        tip=bytes(32),
        number=number,
        incarnation=1,
        rollouts=8,
        tokens=64,
        precision=Precision.FLOAT32,
        size=9,
        root=root,
    )
    return PooledBatch(BOB.peer_id, body, b"raw")


async def test_what_is_dropped_while_the_trainer_process_still_verifies_is_not_learned_from(tmp_path: Path) -> None:
    """What that check finds may set the maker of the others aside."""
    first, second, usable = a_batch(0), a_batch(1), list[PooledBatch]()
    learned, turn = list[PooledBatch](), TrainerLock()
    selection = a_selection(tmp_path, usable, lock=turn, batches=1)

    async def learn() -> None:
        async with selection.chosen(4, lambda why, detail: None) as chosen:
            assert {*selection._files.used()} == {batch.root for batch in chosen.batches}
            learned.extend(chosen.batches)

    usable.append(first)
    async with trio.open_nursery() as nursery:
        async with turn.taken():
            nursery.start_soon(learn)
            await trio.testing.wait_all_tasks_blocked()
            usable.clear()
        await trio.testing.wait_all_tasks_blocked()
        assert learned == []
        async with turn.taken():
            usable.append(second)
    assert learned == [second]


async def test_the_trainer_is_told_whose_weights_it_has_and_lacks_those_of_another_branch(tmp_path: Path) -> None:
    held, other, fresh = a_batch(0), a_batch(1), a_batch(2)
    other.body = other.body.model_copy(update={"tip": b"another branch".ljust(32)})
    fresh.body = fresh.body.model_copy(update={"version": 4})
    selection = a_selection(tmp_path, [held, other, fresh], batches=3)
    async with selection.chosen(4, lambda why, detail: None) as chosen:
        found = {batch.body.number: version for batch, version in zip(chosen.batches, chosen.versions, strict=True)}
        assert found == {0: 3, 1: None, 2: 4}, "weights that are trained now are there in any case"
    selection = a_selection(tmp_path, [held, other, fresh], batches=2, compares=True)
    async with selection.chosen(4, lambda why, detail: None) as chosen:
        assert {batch.body.number for batch in chosen.batches} == {0, 2}, "the other one would teach nothing, and be used up"


async def test_a_round_waits_for_the_weights_that_its_loss_compares_with(tmp_path: Path) -> None:
    """Also when the others wait for it, and whatever batches are here."""
    reference: Any = SimpleNamespace(path=None, missing=lambda: "" if reference.path else "they are being fetched")
    told = list[tuple[WhyIdle, str]]()
    selection = a_selection(tmp_path, [a_batch(0)], reference=reference)

    def on_wait(why: WhyIdle, detail: str) -> None:
        told.append((why, detail))
        selection.hurry()
        if len(told) == 3:
            reference.path = tmp_path / "weights"

    async with selection.chosen(4, on_wait) as chosen:
        assert chosen.reference == tmp_path / "weights"
    assert told == [(WhyIdle.FETCHING_REFERENCE, "they are being fetched")] * 3


async def test_where_a_set_is_lost_a_round_begins_with_nothing_and_says_against_which(tmp_path: Path) -> None:
    in_force = [TasksInForce(1, 50, (ONE,), frozenset({7})), TasksInForce(1, 50, (ONE,))]
    tasks: Any = SimpleNamespace(lost=lost(7), at=lambda version: in_force[version % 2], against=lambda at: 1)
    selection = a_selection(tmp_path, tasks=tasks)
    async with selection.chosen(5, lambda have, missing: None) as chosen:
        tasks.lost = lost()  # it came after all, while the trainer process was busy
        assert (chosen.batches, chosen.against, chosen.learned(None)) == ([], 1, None)
    tasks.lost = lost(7)
    with trio.move_on_after(60) as scope:
        async with selection.chosen(6, lambda have, missing: None):
            raise AssertionError("it has fallen out, so batches without it come")
    assert scope.cancelled_caught


@pytest.mark.slow
@pytest.mark.parametrize(
    ("voters", "hurried", "after_s"),
    [((), False, VOTE_S), ((BOB,), False, LOST_S), ((ANN,), True, 1.0)],
)
async def test_rounds_of_nothing_leave_those_that_have_the_set_time_and_come_one_by_one(
    voters: Sequence[Identity], hurried: bool, after_s: float, tmp_path: Path
) -> None:
    """Else a trainer that lacks a sandbox closed rounds without the others, or a lost set had rounds follow at once."""
    gone = lost(7, voters=[voter.peer_id for voter in voters])
    tasks: Any = SimpleNamespace(lost=gone, at=lambda version: TasksInForce(1, 50, (ONE,)), against=lambda at: 1)

    async def hurry(selection: Selection) -> None:
        await trio.sleep(1.0)
        if hurried:
            selection.hurry()

    selection = a_selection(tmp_path, tasks=tasks)
    for round in (4, 5):
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hurry, selection)
            async with selection.chosen(round, lambda have, missing: None) as chosen:
                assert (chosen.batches, chosen.against) == ([], 1)
                assert after_s <= trio.current_time() - begun <= after_s + 1.0
            nursery.cancel_scope.cancel()


def test_three_rounds_without_different_rewards_are_told_with_a_typical_answer_and_what_was_expected(tmp_path: Path) -> None:
    told = list[Event]()
    session: Any = SimpleNamespace(me=ANN.peer_id, emit=told.append)
    pool: Any = SimpleNamespace(note_used=lambda batches: None, trust=SimpleNamespace(clean=lambda author: 0))
    trainer: Any = SimpleNamespace(tasks=SimpleNamespace(note_tried=lambda tried, makers: None))
    selection = Selection(session, pool, BlobStore(Disk(), tmp_path), trainer, 1)
    typical = RatedAnswer(0.0, "3 + 4?\n", "It is 7.", '7 alone, after "Answer:", or in \\boxed{7}')
    for number in range(14):
        informative = 1 if number == 3 else 0
        nothing = Contribution(
            number, 1, 1, 0.0, 0.0, memoryview(b""), 0.0, answers=(typical, typical), informative=informative
        )
        selection.use(number, SelectedBatches([a_batch(number)], (), None), nothing)
    used = [each for each in told if isinstance(each, RolloutsUsed)]
    alarms = [each for each in told if isinstance(each, NothingLearned)]
    assert [each.informative for each in used] == [0, 0, 0, 1, *[0] * 10]
    assert [(each.round, each.rounds) for each in alarms] == [(2, 3), (6, 3), (9, 6)], "again when their number has doubled"
    said = alarms[0].sentence()
    assert "in 3 rounds all answers to each problem had the same reward (mean reward 0.000)" in said
    assert "»It is 7.«; expected: 7 alone" in said and alarms[0].severity == "warning"
    assert used[0].sentence().startswith("round 0: learned nothing from 8 rollouts") and "learned from" in used[3].sentence()
