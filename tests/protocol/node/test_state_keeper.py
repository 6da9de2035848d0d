"""The state is kept at the end of the chain: by commits, checkpoints, moves, and what others have when ours is wrong."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import trio
import trio.testing

from peer.console.problems import known_problem
from protocol.chain.replica import Replica
from protocol.chain.results import CheckpointName
from protocol.disk import StateLost
from protocol.events.events import CheckpointWritten, Desynced, RolledBack, RoundCommitted
from protocol.node.state import FIRST_DISTANCE, LONE_S, MAX_DISTANCE, StateKeeper, StateRecheckBackoff
from protocol.run.manifest import SignedManifest
from protocol.sync.following import Following, Move
from protocol.trainer_link import StateMark, TrainerDied, TrainerGaveUp
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from tests.protocol.chains import a_run, grow, in_run, initialise, next_commit, store_result
from tests.protocol.peers import ANN, BOB, ME, at_once
from tests.protocol.sync.table import Table, a_table

OTHER_STATE = Hash(b"\x07" * 32)
FOUR = (ANN, BOB, *(Identity.from_seed(bytes([number]) * 32) for number in (4, 5)))


def kept(table: Table) -> StateKeeper:
    """The keeper of our replica."""
    parts = (table.activity, table.catch_up, table.following, table.claims)
    return StateKeeper(table.session, table.ours, at_once, *parts)


@pytest.fixture
def table(tmp_path: Path, signed: SignedManifest, virtual_time: None) -> AbstractAsyncContextManager[Table]:
    return a_table(tmp_path, signed)


async def advance(keeper: StateKeeper, replica: Replica, *, stored: bool = True, digest: Hash | None = None) -> bool:
    """Our next round is committed; whether a checkpoint is due.  stored: its result is on our disk."""
    commit, result = next_commit(replica, [ANN], voters=FOUR, state_digest=digest)
    if stored:
        store_result(replica, commit, result)
    return await keeper.advance(commit)


async def test_each_record_is_appended_and_applied_and_some_are_followed_by_a_checkpoint(table: Table) -> None:
    keeper = kept(table)
    interval = table.ours.manifest.checkpoint_interval
    due = [await advance(keeper, table.ours) for _ in range(2 * interval)]
    assert due == [*[False] * (interval - 1), True] * 2
    assert keeper.mark == StateMark(2 * interval, table.ours.state.digest())
    assert [(event.round, event.members) for event in table.of(RoundCommitted)] == [
        (round, [ANN.peer_id]) for round in range(2 * interval)
    ]
    await keeper.checkpoint()
    assert table.of(CheckpointWritten) == [CheckpointWritten(2 * interval, table.ours.state.size_bytes)]
    assert table.ours.store.checkpoints.of(table.ours.history) == [2 * interval]


@pytest.mark.parametrize(("stored", "digest"), [(False, None), (True, OTHER_STATE)], ids=["no result", "another state"])
async def test_a_record_that_cannot_be_applied_is_ours_all_the_same(table: Table, stored: bool, digest: Hash | None) -> None:
    keeper = kept(table)
    await advance(keeper, table.ours)
    assert await advance(keeper, table.ours, stored=stored, digest=digest) is False
    assert (table.ours.history.length, keeper.mark.rounds) == (2, 1)


@pytest.mark.slow
async def test_a_trainer_that_died_is_waited_for_and_one_that_gave_up_ends_the_restoring(table: Table) -> None:
    keeper = kept(table)
    deaths: list[TrainerDied] = [TrainerDied("killed"), TrainerDied("killed again")]

    async def start(theta: memoryview) -> None:
        if deaths:
            raise deaths.pop()
        await initialise(theta)

    table.catch_up.initialise = start
    await keeper.restore()
    assert deaths == [] and keeper.mark.digest == table.ours.state.digest()
    deaths.append(TrainerGaveUp("out of memory"))
    with trio.move_on_after(1000) as scope:
        await keeper.restore()
    assert scope.cancelled_caught and table.activity.detail == "the trainer gave up: out of memory"


async def test_a_move_that_was_judged_again_is_made_though_it_is_another_object(table: Table) -> None:
    keeper = kept(table)
    grow(table.theirs, 3, [ANN], voters=FOUR)
    move = await table.found()
    assert move is not None
    reads = iter(range(100))

    def judged_again(following: Following) -> Move | None:
        assert next(reads, None) is not None, "never made"
        return following._move and replace(following._move)

    with patch.object(Following, "move", property(judged_again)):
        await keeper.reach_tip()
    assert table.ours.history.tip == table.theirs.history.tip


@pytest.mark.parametrize("have_it", [True, False], ids=["others have it", "nobody has it"])
async def test_a_lost_result_comes_from_others_or_its_record_is_given_up(table: Table, have_it: bool) -> None:
    keeper = kept(table)
    await advance(keeper, table.ours)
    await advance(keeper, table.ours, stored=False)
    if have_it:
        grow(table.theirs, 2, [ANN], voters=FOUR)
        table.hear(ANN.peer_id, table.theirs)
    began = trio.current_time()
    await keeper.reach_tip()
    rounds = 2 if have_it else 1
    assert table.ours.history.length == rounds and keeper.mark == StateMark(rounds, table.ours.state.digest())
    assert (trio.current_time() - began > table.ours.rounds.eviction_s) is not have_it
    assert table.of(RolledBack) == ([] if have_it else [RolledBack(1, 1, "")])


@pytest.mark.parametrize("is_bound", [True, False], ids=["voted", "did not vote"])
@pytest.mark.parametrize("addresses", [[], ["/ip4/192.0.2.1/tcp/4001"]], ids=["nobody known", "an address known"])
@in_run(a_run(ME))
async def test_a_peer_that_knows_no_other_gives_its_lost_results_up_soon_or_says_what_binds_it(
    table: Table, is_bound: bool, addresses: list[str]
) -> None:
    keeper = kept(table)
    history, votes, began = table.ours.history, table.ours.store.votes, trio.current_time()
    for stored in (True, False, False):
        commit, result = next_commit(table.ours, [ME], voters=[ME])
        if stored:
            store_result(table.ours, commit, result)
        await keeper.advance(commit)
    if is_bound:
        votes.confirm([(1, history.tip_at(1), history.tip_at(2))])
    table.network.known_addresses = lambda: addresses  # type: ignore[method-assign]
    with pytest.raises(StateLost) if is_bound else nullcontext() as lost:
        await keeper.reach_tip()
    assert (trio.current_time() - began > LONE_S + 2) is bool(addresses)
    whom = (
        "looking for peers of the run at addresses from an earlier start"
        if addresses
        else "no other peer of the run is known"
    )
    assert table.activity.detail == (
        "the results of rounds 1 to 2 are damaged or missing on this disk; "
        f"{whom}; this peer gives up after {20 if addresses else LONE_S:.0f} s"
    )
    if lost is None:
        assert (history.length, table.of(RolledBack)) == (1, [RolledBack(1, 2, "")])
    else:
        said = f"the results of rounds 1 to 2 are damaged or missing in {table.ours.store.root}, nobody else took part"
        assert str(lost.value).startswith(said) and history.length == 3 and known_problem(lost.value) is not None


@pytest.mark.parametrize(
    ("signed", "fetched"), [(a_run(ANN), []), (a_run(*FOUR), [2])], ids=["one elector", "four electors"]
)
async def test_our_own_disk_is_asked_first_and_others_when_a_quorum_of_four_is_against_us(
    table: Table, fetched: list[int]
) -> None:
    keeper = kept(table)
    grow(table.theirs, 2, [ANN], voters=FOUR)
    history, state = table.theirs.history, table.theirs.state
    table.theirs.store.checkpoints.write(CheckpointName(2, history.tip), state.leaves(), state.view)
    grow(table.theirs, 1, [ANN], voters=FOUR)
    table.hear(ANN.peer_id, table.theirs)
    for _ in range(3):
        await advance(keeper, table.ours)
    mark = keeper.mark
    assert not keeper.is_verified
    await keeper.repair(OTHER_STATE)
    assert keeper.mark == mark and keeper.is_verified
    assert table.of(Desynced) == [Desynced(3, mark.digest.hex(), OTHER_STATE.hex())]
    assert table.ours.store.checkpoints.of(table.ours.history) == fetched


def test_each_time_that_ours_was_right_the_next_look_is_twice_as_far() -> None:
    thoughts, looks, rounds = StateRecheckBackoff(), list[int](), 0
    while rounds < 16 * FIRST_DISTANCE:
        if thoughts.are_due(rounds):
            looks.append(rounds)
            thoughts.had(rounds, ours_was_right=True)
        rounds += 1
    assert looks == [0, FIRST_DISTANCE, 3 * FIRST_DISTANCE, 7 * FIRST_DISTANCE, 15 * FIRST_DISTANCE]
    for _ in range(20):
        thoughts.had(rounds, ours_was_right=True)
    assert not thoughts.are_due(rounds + MAX_DISTANCE - 1) and thoughts.are_due(rounds + MAX_DISTANCE)


def test_a_state_that_was_wrong_is_looked_at_again_on_the_next_tip() -> None:
    thoughts = StateRecheckBackoff()
    thoughts.had(5, ours_was_right=True)
    thoughts.had(6, ours_was_right=False)
    assert not thoughts.are_due(6) and thoughts.are_due(7)
