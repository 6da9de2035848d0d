"""The state at the end of a chain, from what the disk has."""

from __future__ import annotations

import pytest
import trio

from protocol.chain.results import CheckpointName, ResultName
from protocol.events.events import CheckpointWritten, StateLoaded, TransferEnded
from protocol.sync.catch_up import WrongState
from protocol.sync.fetchers import ASK_TIMEOUT_S
from protocol.transport.interface import Unreachable
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from tests.protocol.chains import grow, next_commit, store_result
from tests.protocol.peers import ANN, BOB
from tests.protocol.sync.table import Table


def checkpoint(table: Table) -> None:
    state, history = table.ours.state, table.ours.history
    name = CheckpointName(state.rounds, history.tip_at(state.rounds))
    table.ours.store.checkpoints.write(name, state.leaves(), state.view)


def drop_result(table: Table, round: int) -> None:
    record = table.ours.history.commit_at(round).record
    table.ours.store.results.remove(ResultName.of(record))


@pytest.mark.parametrize("damaged", [False, True])
async def test_the_state_is_restored_from_the_newest_checkpoint_that_is_whole(table: Table, damaged: bool) -> None:
    for _ in range(2):
        grow(table.ours, 2, [ANN], voters=[ANN])
        checkpoint(table)
    grow(table.ours, 1, [ANN], voters=[ANN])
    name = CheckpointName(4, table.ours.history.tip_at(4))
    digest, path = table.ours.state.digest(), table.ours.store.checkpoints.path(name)
    if damaged:
        path.write_bytes(bytes(path.stat().st_size))
    await table.catch_up.restore()
    assert (table.ours.state.rounds, table.ours.state.digest()) == (5, digest)
    assert table.of(StateLoaded) == [StateLoaded(2 if damaged else 4)]
    assert table.ours.store.checkpoints.of(table.ours.history) == ([2] if damaged else [2, 4])


async def test_a_missing_result_stops_the_replay_unless_a_checkpoint_makes_it_superfluous(table: Table) -> None:
    grow(table.ours, 3, [ANN], voters=[ANN])
    digest = table.ours.state.digest()
    drop_result(table, 1)
    await table.catch_up.restore()
    assert table.ours.state.rounds == 1
    grow(table.theirs, 3, [ANN], voters=[ANN])
    assert await table.fetcher.bring(table.ours.history, table.catch_up.present(3), [ANN.peer_id]) == 3
    await table.catch_up.replay()
    assert table.ours.state.digest() == digest
    checkpoint(table)
    drop_result(table, 1)
    await table.catch_up.restore()
    assert table.ours.state.rounds == 3


async def test_a_result_that_comes_to_others_a_moment_later_is_fetched_soon(table: Table) -> None:
    table.share(1, [ANN], voters=[ANN])
    drop_result(table, 0)
    answer, begun = table.network.answers.pop(ANN.peer_id), trio.current_time()

    async def have_it() -> None:
        await trio.sleep(0.6)
        table.network.answers[ANN.peer_id] = answer

    async with trio.open_nursery() as nursery:
        nursery.start_soon(have_it)
        assert await table.fetcher.fetch_result(table.ours.history.commit_at(0), [ANN.peer_id])
    assert trio.current_time() - begun < 2.0, "it is not asked again only when all hope is gone"


async def test_a_result_that_was_cut_off_is_fetched_to_its_end(table: Table) -> None:
    table.share(1, [ANN], voters=[ANN])
    record, spans = table.ours.history.commit_at(0).record, [span.encoded for span in table.ours.layouts.result]
    root, size = Hash(record.result_root), spans[-1].stop
    whole = table.ours.store.results.view(ResultName(0, 0, root))
    assert whole is not None
    first = bytes(whole[spans[0]])
    drop_result(table, 0)
    begun = table.ours.store.results.begin(ResultName(0, 0, root), size)
    begun.view[spans[0]] = first
    table.ours.store.results.end(begun)
    assert await table.fetcher.fetch_result(table.ours.history.commit_at(0), [ANN.peer_id])
    (ended,) = table.of(TransferEnded)
    assert isinstance(ended, TransferEnded) and ended.complete
    assert (ended.what, ended.number, ended.fetched_bytes) == ("result", 0, size - len(first))


async def test_one_checkpoint_that_two_want_at_a_time_is_fetched_once(table: Table) -> None:
    for replica in (table.ours, table.theirs):
        grow(replica, 2, [ANN], voters=[ANN])
        state = replica.state
        if replica is table.theirs:
            replica.store.checkpoints.write(CheckpointName(2, replica.history.tip), state.leaves(), state.view)
        grow(replica, 1, [ANN], voters=[ANN])
    table.serve(BOB.peer_id, table.ours)
    fetched: list[bool] = []

    async def fetch(*sources: PeerId) -> None:
        fetcher = table.fetcher
        fetched.append(await fetcher._fetch_checkpoint(table.ours.history, 2, sources))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, ANN.peer_id, BOB.peer_id)
        nursery.start_soon(fetch, ANN.peer_id)
    assert fetched == [True, True] and len(table.of(CheckpointWritten)) == 1
    assert table.ours.store.checkpoints.of(table.ours.history) == [2]


async def test_peers_that_are_silent_about_their_checkpoints_delay_the_newest_one_by_one_deadline(table: Table) -> None:
    table.share(2, [ANN], voters=[ANN])
    state = table.theirs.state
    table.theirs.store.checkpoints.write(CheckpointName(2, table.theirs.history.tip), state.leaves(), state.view)

    async def silent(kind: str, data: bytes) -> bytes:
        await trio.sleep(ASK_TIMEOUT_S)
        raise Unreachable("it does not answer")

    crowd = [PeerId(f"silent {number}") for number in range(8)]
    for peer in crowd:
        table.network.answers[peer] = silent
    grow(table.ours, 1, [ANN], voters=[ANN])
    began = trio.current_time()
    assert await table.fetcher.fetch_newest_checkpoint(table.ours.history, [*crowd, ANN.peer_id], at_least=0) == 2
    assert trio.current_time() - began <= ASK_TIMEOUT_S + 1


async def test_a_record_that_names_another_state_is_not_applied(table: Table) -> None:
    grow(table.ours, 1, [ANN], voters=[ANN])
    commit, result = next_commit(table.ours, [ANN], voters=[ANN], state_digest=Hash(b"\x07" * 32))
    store_result(table.ours, commit, result)
    table.ours.history.append(commit)
    with pytest.raises(WrongState):
        await table.catch_up.restore()
    assert table.ours.state.rounds == 1


async def test_a_peer_that_cannot_make_the_beginning_needs_a_checkpoint(table: Table) -> None:
    table.catch_up.initialise = None
    grow(table.ours, 2, [ANN], voters=[ANN])
    digest = table.ours.state.digest()
    checkpoint(table)
    grow(table.theirs, 3, [ANN], voters=[ANN])
    table.ours.state.reset()
    assert table.catch_up.present(2) is None
    await table.catch_up.restore()
    assert (table.ours.state.rounds, table.ours.state.digest()) == (2, digest)
    table.ours.store.checkpoints.remove(CheckpointName(2, table.ours.history.tip))
    await table.catch_up.restore()
    assert table.ours.state.rounds == 0
    assert await table.fetcher.bring(table.ours.history, None, [ANN.peer_id]) is None
