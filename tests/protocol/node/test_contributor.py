"""What the trainer is asked for, what of its answers becomes a contribution, and what READY says of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from math import inf, log, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import trio
import trio.testing

from protocol.allreduce.assignment import is_committed
from protocol.chain.base import Base
from protocol.chain.leases import LeasePool, Leases, count_rows, stretches_in
from protocol.chain.records import check_claims
from protocol.events.events import ComputeProgress, Event, Notice
from protocol.events.status import WhyIdle
from protocol.formats.results import SourceLoss
from protocol.membership.activity import Activity
from protocol.membership.heartbeats import Pace
from protocol.node.commands import Extensions
from protocol.node.contributor import Contributor, OwnTrainer, Work
from protocol.node.round_limits import limits_from
from protocol.run.manifest import SignedManifest
from protocol.run.sections import RlSection, SourceSection
from protocol.run.settings import NodeSettings
from protocol.trainer_link import ComputeTask, Contribution, LimitsExceeded, Progress, TrainerDied, TrainerGaveUp
from protocol.transport.handlers import Guard
from protocol.wire.hashes import Hash, chunk_hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Learned, SourceMean, UsedBatch, learned_from, losses_in, member_of
from protocol.wire.presence import Phase, Role
from tests.protocol.chains import a_replica, a_run, in_run, next_commit
from tests.protocol.peers import ANN, BOB, ME, TableNetwork, a_session, at_once
from tests.simulation.world import simulated_run

STREAMED = simulated_run(fragments=2, delay=5)
STATE = Hash(b"\x03" * 32)
MEMBERS = tuple(sorted(each.peer_id for each in (ANN, BOB, ME)))
FAR = Base(7, 0, Hash(b"\x09" * 32), MEMBERS, MEMBERS)
"""A round to which we come from the one before it."""


class Trainer:
    """A `TrainerLink` that dies of `deaths`, in turn, then answers with this data, loss and norm.

    lasts_s: time that it takes, after the last round's result is there.  early_steps: steps that it tells of before.
    """

    def __init__(self, data: bytes) -> None:
        self.tasks, self.told = list[ComputeTask](), list[str]()
        self.pid: int | None = 1
        self.ended = ""
        self.deaths, self.data, self.loss, self.norm, self.lasts_s = list[TrainerDied](), data, 2.0, 1.0, 0.0
        self.early_steps = 0

    async def compute(
        self,
        task: ComputeTask,
        theta: memoryview,
        on_progress: Callable[[Progress], None],
        applied: trio.Event | None = None,
    ) -> Contribution:
        self.tasks.append(task)
        if applied is not None:
            if self.early_steps:
                on_progress(Progress(task.round, self.early_steps, self.loss, 16, 20.0))
            await applied.wait()
        await trio.sleep(self.lasts_s)
        if self.deaths:
            raise self.deaths.pop(0)
        on_progress(Progress(task.round, task.steps, self.loss, 80, 20.0))
        return Contribution(task.round, 80, task.steps, self.loss, self.norm, memoryview(self.data))

    def __getattr__(self, command: str) -> Callable[[], None]:
        return lambda: self.told.append(command)


class Table:
    def __init__(self, folder: Path, signed: SignedManifest) -> None:
        self.replica, self.events = a_replica(signed, folder), list[Event]()
        self.manifest, self.work = self.replica.manifest, Work(layout=self.replica.layouts.contribution)
        self.trainer = Trainer(bytes(range(256)) * (self.replica.layouts.contribution.payload_bytes // 256 + 1))
        self.activity = Activity(self.events.append)
        session, settings = a_session(signed.run, TableNetwork(), self.events), NodeSettings("me", Role.TRAINER, "0", 4)
        trainer: Any = self.trainer
        self.own = OwnTrainer(trainer, Pace(8), self.activity)
        extensions = Extensions(session, Guard(session), self.replica, at_once)
        self.contributor = Contributor(session, self.replica, settings, at_once, self.own, extensions)


@asynccontextmanager
async def a_table(folder: Path, signed: SignedManifest) -> AsyncIterator[Table]:
    table = Table(folder, signed)
    yield table
    table.replica.state.close()


@pytest.fixture
def table(tmp_path: Path, signed: SignedManifest, virtual_time: None) -> AbstractAsyncContextManager[Table]:
    return a_table(tmp_path, signed)


async def test_members_of_the_last_record_train_on_the_rows_of_their_slot_and_others_on_rows_behind_those(
    table: Table,
) -> None:
    steps, spares = table.manifest.rounds.inner_steps, table.manifest.rounds.max_members
    rows = steps * table.manifest.data.sequences_per_step
    others = tuple(peer for peer in MEMBERS if peer != ME.peer_id)
    pool = LeasePool(90 * rows, ((0, rows // 2), (rows, 9 * rows)))
    member = replace(FAR, leases=Leases(pool, Hash(b"\x05" * 32)))
    for base in (member, *(Base(7, 0, Hash(bytes([draw]) * 32), others) for draw in range(20))):
        assert await table.contributor.compute(base, table.work) is not None
    first, *strangers = table.trainer.tasks
    assert first.rows == pool.lease(member.slot(table.manifest, ME.peer_id), rows)
    assert member.slot(table.manifest, ME.peer_id) < 3 and (first.steps, first.first_step) == (steps, 7 * steps)
    starts = [start for task in strangers for start, _ in task.rows]
    assert all(start % (3 * rows) == 2 * rows and start < 3 * spares * rows for start in starts)
    assert len(set(starts)) > 10, "each tip draws another one"


def limits_told(table: Table) -> list[tuple[int, float, float]]:
    """The rounds that the trainer was asked for, with their limits."""
    return [(task.round, task.most_loss, task.most_norm) for task in table.trainer.tasks]


def after_our_record(table: Table, loss: float, norm: float) -> Base:
    """Append a record with an entry of ours, of 10 steps; return the base of the round after it."""
    commit, _ = next_commit(table.replica, [ME], voters=[ANN])
    ours = commit.record.members[0].model_copy(update={"loss": loss, "norm": norm, "steps": 10})
    record = commit.record.model_copy(update={"members": [ours]})
    table.replica.history.append(commit.model_copy(update={"record": record}))
    return replace(FAR, round=table.replica.history.length)


async def test_a_round_of_which_two_tries_exceed_the_limits_is_not_contributed_and_the_next_one_has_none(
    table: Table,
) -> None:
    base = after_our_record(table, 9.0, 1e6)
    table.trainer.deaths += [LimitsExceeded("its norm is 9"), LimitsExceeded("its norm is 8")]
    assert await table.contributor.compute(base, table.work) is None
    assert await table.contributor.compute(base, table.work) is None, "nor is it tried again"
    assert limits_told(table) == [(1, 18.0, 32e6)] * 2
    [told] = [event for event in table.events if isinstance(event, Notice)]
    assert told.level == "warning" and told.text.startswith("round 1: two tries exceeded the limits")
    assert await table.contributor.compute(replace(base, round=2), table.work) is not None
    assert limits_told(table)[2:] == [(2, inf, inf)]


async def test_after_a_round_that_was_given_up_only_the_records_since_then_set_limits(table: Table) -> None:
    base = after_our_record(table, 9.0, 1e6)
    table.trainer.deaths += [LimitsExceeded("its loss is 99"), LimitsExceeded("its loss is 99")]
    assert await table.contributor.compute(base, table.work) is None
    for loss in (99.0, 98.0):
        base = after_our_record(table, loss, 1.0)
    assert await table.contributor.compute(base, table.work) is not None
    assert limits_told(table)[2][1] == 198.0


def test_only_our_own_entries_limit_a_round(tmp_path: Path) -> None:
    manifest = a_run(ANN).manifest
    explained = 4 * manifest.inner.lr * 10 * manifest.parameters**0.5

    def record(*entries: tuple[PeerId, int, float, float]) -> Any:
        return SimpleNamespace(members=[SimpleNamespace(peer=p, steps=s, loss=ls, norm=n) for p, s, ls, n in entries])

    me, other = ANN.peer_id, BOB.peer_id
    assert limits_from(manifest, [record((other, 10, 1.0, 1.0))], me, 10) == (inf, inf)
    ours = [record((me, 10, 9.0, 1e6), (other, 10, 99.0, 1e9)), record((me, 10, 1.0, 1.0))]
    assert limits_from(manifest, ours, me, 10) == (18.0, 32e6)
    assert limits_from(manifest, ours, me, 30) == (18.0, 96e6), "more steps, a larger norm"
    calm = limits_from(manifest, [record((me, 10, 1.0, 1e-9))], me, 10)
    assert calm.loss == 2 * log(manifest.model.vocab)
    assert calm.norm == pytest.approx(explained), "a return to the peak rate is no damage"


async def test_a_ready_states_the_losses_of_the_sources_that_the_run_mixes(table: Table) -> None:
    made = Contribution(7, 80, 10, 2.0, 1.0, memoryview(table.trainer.data))
    read = [SourceLoss("web", 60, 2.5), SourceLoss("code", 20, 1.0), SourceLoss("else", 9, 1.0)]
    stated = replace(made, losses=(*read, SourceLoss("books", 5, nan)))
    for names, losses in ((["code", "web", "books"], [SourceMean(0, 20, 1.0), SourceMean(1, 60, 2.5)]), (["web"], [])):
        sources = [SourceSection(name=name, rows=9) for name in names]
        data = table.manifest.data.model_copy(update={"sources": sources})
        manifest = table.manifest.model_copy(update={"data": data})
        mixing = replace(table.replica, signed=replace(table.replica.signed, manifest=manifest))
        with patch.object(table.contributor, "_replica", mixing):
            ready, _ = await table.contributor.commit(FAR, Work(layout=table.replica.layouts.contribution), stated, STATE)
        assert losses_in(ready.losses) == losses


@pytest.mark.parametrize(("ahead", "left"), [(0, 10), (1, 8), (5, 4), (9, 1), (10, 1), (999, 1)])
async def test_who_begins_late_does_fewer_steps(table: Table, ahead: int, left: int) -> None:
    assert table.manifest.rounds.inner_steps == 10
    assert await table.contributor.compute(FAR, table.work, lambda: ahead) is not None
    [task] = table.trainer.tasks
    assert (task.steps, task.first_step, table.work.wanted) == (left, 7 * 10, left)
    assert count_rows(task.rows) == left * table.manifest.data.sequences_per_step
    assert [event.total_steps for event in table.events if isinstance(event, ComputeProgress)] == [left]


async def test_a_trainer_that_gave_up_contributes_nothing(table: Table) -> None:
    table.trainer.deaths.append(TrainerGaveUp("out of memory"))
    assert await table.contributor.compute(FAR, table.work) is None
    assert table.activity.detail == "the trainer gave up: out of memory"


@pytest.mark.parametrize(("loss", "norm"), [(nan, 1.0), (inf, 1.0), (1e30, 1.0), (2.0, nan), (2.0, inf)])
async def test_numbers_of_failed_training_are_not_contributed(table: Table, loss: float, norm: float) -> None:
    table.trainer.loss, table.trainer.norm = loss, norm
    assert await table.contributor.compute(FAR, table.work) is None
    [notice] = [event.text for event in table.events if isinstance(event, Notice)]
    assert notice.startswith("round 7: training failed")


async def test_a_rest_that_ends_and_begins_again_at_once_begins_no_work(table: Table) -> None:
    table.own.permit.suspend(WhyIdle.PAUSED, "paused")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.contributor.compute, FAR, table.work)
        await trio.sleep(1)
        table.own.permit.restore(WhyIdle.PAUSED)
        table.own.permit.suspend(WhyIdle.TOO_HOT, "hot")
        await trio.sleep(1000)
        assert table.trainer.tasks == []
        table.own.permit.restore(WhyIdle.TOO_HOT)
    assert len(table.trainer.tasks) == 1


async def test_it_rests_as_long_as_there_is_a_reason_and_shows_one(table: Table) -> None:
    contributor, activity = table.contributor, table.activity
    activity.show(Phase.COMPUTING, WhyIdle.BUSY, "")
    table.own.permit.suspend(WhyIdle.TOO_HOT, "90 degrees")
    table.own.permit.suspend(WhyIdle.PAUSED, "paused by you")
    table.own.permit.suspend(WhyIdle.TOO_HOT, "91 degrees")
    assert (activity.why, activity.detail) == (WhyIdle.PAUSED, "paused by you"), "the person's own goes before others"
    table.own.permit.restore(WhyIdle.ON_BATTERY)
    table.own.permit.restore(WhyIdle.PAUSED)
    assert (activity.why, activity.detail) == (WhyIdle.TOO_HOT, "91 degrees") and not contributor.computes
    table.own.permit.restore(WhyIdle.TOO_HOT)
    assert contributor.computes and activity.phase is Phase.COMPUTING
    assert table.trainer.told == ["pause", "resume"]


# -- training ahead ------------------------------------------------------------------------------------------------------


def streamed(table: Table) -> tuple[Base, Base]:
    """The first two rounds, which we are a holder of."""
    first = Base(0, 0, table.replica.history.tip, MEMBERS, MEMBERS)
    return first, Base(1, 1, Hash(b"\x09" * 32), MEMBERS, MEMBERS)


@pytest.mark.parametrize("replaced", [False, True])
@in_run(STREAMED)
async def test_training_ahead_is_begun_anew_if_the_state_that_it_has_taken_over_was_replaced(
    table: Table, replaced: bool
) -> None:
    (first, second), contributor, state = streamed(table), table.contributor, table.replica.state
    async with trio.open_nursery() as nursery:
        assert await contributor.compute(first, table.work) is not None
        table.trainer.lasts_s = 10
        contributor.train_ahead(first, table.work, nursery.start_soon)
        with trio.move_on_after(1) as interrupted:
            await contributor.compute(second, contributor.work_on(second))
        assert interrupted.cancelled_caught
        if replaced:
            state.load(memoryview(bytes(state.size_bytes)), 0)
        assert await contributor.compute(second, contributor.work_on(second)) is not None
    asked = [(task.round, task.continues) for task in table.trainer.tasks]
    assert asked == [(0, False), (1, True)] + [(1, False)] * replaced


@in_run(STREAMED)
async def test_after_a_round_without_rows_the_next_one_begins_with_the_state(table: Table) -> None:
    (first, second), contributor = streamed(table), table.contributor
    idle = replace(first, leases=Leases(early=((ME.peer_id, ()),)))
    async with trio.open_nursery() as nursery:
        assert await contributor.compute(idle, table.work) is not None
        assert idle.next_lease(table.manifest, ME.peer_id)
        contributor.train_ahead(idle, table.work, nursery.start_soon)
        assert await contributor.compute(second, contributor.work_on(second)) is not None
    assert [(task.round, task.continues) for task in table.trainer.tasks] == [(1, False)]


@in_run(STREAMED)
async def test_a_request_to_finish_a_round_leaves_the_training_for_the_next_one_alone(table: Table) -> None:
    (first, second), contributor = streamed(table), table.contributor
    async with trio.open_nursery() as nursery:
        assert await contributor.compute(first, table.work) is not None
        contributor.train_ahead(first, table.work, nursery.start_soon)
        contributor.finish(first)
        assert table.trainer.told == []
        contributor.finish(second)
        assert table.trainer.told == ["finish"]
        await contributor.drop_ahead()


# ------------------------------------------------------------------------------------------------------------------------


async def test_a_ready_commits_to_every_chunk_of_the_contribution(table: Table) -> None:
    contribution = await table.contributor.compute(FAR, table.work)
    assert contribution is not None
    steps = table.manifest.rounds.inner_steps
    assert [event.steps for event in table.events if isinstance(event, ComputeProgress)] == [steps] == [table.work.steps]
    readys = [(await table.contributor.commit(FAR, table.work, contribution, STATE))[0] for _ in range(2)]
    assert [(ready.incarnation, ready.serial) for ready in readys] == [(4, 0), (4, 1)]
    ready = readys[-1]
    assert (ready.round, ready.base, ready.tokens, ready.state_digest) == (7, FAR.tip, 80, STATE)
    for number, span in enumerate(table.replica.layouts.contribution):
        part = table.work.part(Hash(ready.root), number)
        assert part is not None and part[1] == table.trainer.data[span.encoded]
        chunks = len(table.replica.layouts.contribution)
        assert is_committed(member_of(ME.peer_id, ready, bytes(64)), chunks, number, chunk_hash(part[1]), part[0])


class Chosen:
    """A `Selection` of batches; `ended` are those over which the trainer process ended."""

    before: frozenset[tuple[PeerId, Hash]] = frozenset()
    says: Learned | None = None

    def __init__(self) -> None:
        self.batches, self.paths, self.versions, self.reference = ["batch"], (Path("batch"),), (1,), None
        self.ended, self.used = list[str](), list[str]()

    def remember(self, before: frozenset[tuple[PeerId, Hash]]) -> None:
        self.before = before

    @asynccontextmanager
    async def chosen(self, round: int, on_wait: object) -> AsyncIterator[Chosen]:
        yield self

    def note_death(self, chosen: Chosen) -> None:
        self.ended += chosen.batches

    def use(self, round: int, chosen: Chosen, contribution: Contribution) -> Learned | None:
        self.used += chosen.batches
        return self.says


async def test_a_trainer_claims_no_more_tokens_than_the_makers_of_its_batches_said(table: Table) -> None:
    """The maker of a batch may have said fewer than it holds, and a READY that claims more is refused by everybody."""
    signed = table.replica.signed
    manifest = signed.manifest.model_copy(update={"rl": RlSection(environment="x")})
    table.contributor._replica = replace(table.replica, signed=replace(signed, manifest=manifest))
    selection, task = Chosen(), ComputeTask(7, (), 1, 0)
    others: Any = selection
    link: Any = table.trainer
    for said, claimed in ((0, 1), (1, 1), (7, 7), (79, 79), (80, 80), (2**30, 80)):
        selection.says = learned_from([UsedBatch(BOB.peer_id, Hash(b"b" * 32), said)], None)
        contribution = await table.contributor._learn(link, task, table.work, others)
        assert contribution.tokens == claimed


async def test_who_shares_rollouts_with_the_members_of_the_last_record_steps_further(table: Table) -> None:
    signed = table.replica.signed
    manifest = signed.manifest.model_copy(update={"rl": RlSection(environment="x"), "outer": "auto"})
    table.contributor._replica = replica = replace(table.replica, signed=replace(signed, manifest=manifest))
    assert (await table.contributor._limited(ComputeTask(0, (), 1, 0))).rate_factor == 1.0
    commit, _ = next_commit(replica, [ME, ANN], voters=[ANN])
    replica.history.append(commit)
    factor = (await table.contributor._limited(ComputeTask(1, (), 1, 0))).rate_factor
    assert factor == pytest.approx(2**0.5, abs=1e-3)


async def test_the_batches_over_which_a_trainer_ends_are_noted(table: Table) -> None:
    """Else a batch that is made for it ended the process without end."""
    table.trainer.deaths = [TrainerDied("killed by signal 9")]
    selection, task = Chosen(), ComputeTask(7, (), 1, 0)
    others: Any = selection
    link: Any = table.trainer
    with pytest.raises(TrainerDied):
        await table.contributor._learn(link, task, table.work, others)
    assert selection.ended == ["batch"] and not selection.used
    table.trainer.deaths = [TrainerGaveUp("it cannot be started")]
    with pytest.raises(TrainerGaveUp):
        await table.contributor._learn(link, task, table.work, others)
    assert selection.ended == ["batch"], "they never came to it"
    await table.contributor._learn(link, task, table.work, others)
    assert selection.ended == selection.used == ["batch"]


async def test_what_an_earlier_life_learned_from_is_known_when_its_record_has_come(table: Table) -> None:
    """It may have died before it had the record, and so is it known to have learned only after it has caught up."""
    selection, task, used = Chosen(), ComputeTask(1, (), 1, 0), UsedBatch(BOB.peer_id, Hash(b"b" * 32), 9)
    others: Any = selection
    link: Any = table.trainer
    await table.contributor._learn(link, task, table.work, others)
    assert selection.before == frozenset()
    commit, _ = next_commit(table.replica, [ME], voters=[ANN])
    mine = commit.record.members[0].model_copy(update={"rollouts": learned_from([used], None)})
    record = commit.record.model_copy(update={"members": [mine]})
    table.replica.history.append(commit.model_copy(update={"record": record}))
    await table.contributor._learn(link, task, table.work, others)
    assert selection.before == {(used.author, used.root)}


# -- lost blocks ----------------------------------------------------------------------------------------------------------


class Blocks:
    """In place of `LeasedBlocks`: the first `lost` slots of the column cannot be read, and a wait ends with `until_lost`."""

    def __init__(self, lost: int) -> None:
        self.lost, self.needed = lost, list[tuple[Any, Any]]()
        self.counted, self.gives_up = trio.Event(), trio.Event()

    async def choose(self, column: Any, wanted: int) -> tuple[tuple[int, int], ...]:
        rows = [place for place in range(self.lost, 3) if column(place)]
        return (
            ((rows[0] * 20 + 1, rows[0] * 20 + 1 + wanted // 2),) if rows and self.lost else ((0, wanted),) if rows else ()
        )

    def about_lost(self, rows: Any) -> str:
        return "ann had it last"

    async def lease(self, rows: Any, following: Any) -> None:
        self.needed.append((rows, following))

    async def until_lost(self) -> None:
        await self.gives_up.wait()
        self.gives_up, self.lost = trio.Event(), self.lost + 1


def with_blocks(table: Table, lost: int) -> Blocks:
    blocks = Blocks(lost)
    stand_in: Any = blocks
    table.own._blocks = stand_in
    return blocks


async def test_a_member_that_lacks_blocks_reads_elsewhere_in_its_column_and_says_so(table: Table) -> None:
    with_blocks(table, 1)
    table.trainer.lasts_s = 1.0
    contribution = await table.contributor.compute(FAR, table.work)
    assert contribution is not None
    ready, _ = await table.contributor.commit(FAR, table.work, contribution, STATE)
    steps = table.manifest.round_steps
    assert stretches_in(ready.stretches) == ((21, 21 + steps // 2),) and ready.steps == steps // 2
    (task,) = table.trainer.tasks
    assert task.rows == FAR.rows_read(table.manifest, ME.peer_id, ready.steps, stretches_in(ready.stretches))
    check_claims(table.manifest, FAR, ME.peer_id, ready.model_copy(update={"tokens": 1}))


async def test_a_peer_waits_only_if_no_row_can_be_read_and_says_who_had_the_block(table: Table) -> None:
    blocks = with_blocks(table, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(table.contributor.compute, FAR, table.work)
        await trio.testing.wait_all_tasks_blocked()
        assert table.activity.why is WhyIdle.FETCHING_DATA and "ann had it last" in table.activity.detail
        assert not table.trainer.tasks
        blocks.lost, before = 0, blocks.counted
        blocks.counted = trio.Event()
        before.set()
    assert len(table.trainer.tasks) == 1
