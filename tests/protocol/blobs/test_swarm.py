"""Swarms on equal lines: how fast a blob gets to all, what liars, crashes and floods cost, and samples of a rate."""

from __future__ import annotations

import gc
import weakref
from array import array
from functools import partial

import pytest
import trio

from protocol.blobs.blob import ChunksReply, ChunksRequest
from protocol.blobs.transfer import HOPE_S, PATIENCE_S, PROMISE_S, SAMPLE_S, Purpose, _first_chunks
from protocol.events.events import Dropped
from protocol.transport.interface import Refused
from protocol.wire.envelope import decode_body
from protocol.wire.identity import PeerId
from tests.protocol.blobs.liars import AlwaysBusy, Beginner, Claimer, Corrupter, LastWithholder, Repeater, Staller, Swallower
from tests.protocol.blobs.swarm_table import CHUNK_BYTES, Peer, SwarmTable, on_swarm_table, set_up
from tests.simulation.broadcast import measure


async def an_origin_and(table: SwarmTable, receivers: int) -> tuple[Peer, list[Peer]]:
    """Connected, and about to begin."""
    (origin,) = table.add()
    others = table.add(count=receivers)
    await trio.sleep(0.1)
    return origin, others


def begin(origin: Peer, receivers: list[Peer]) -> None:
    """Everybody begins to fetch from everybody."""
    origin.originate()
    for peer in receivers:
        peer.fetch([other for other in origin.table.peers if other is not peer])


# -- honest peers -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("receivers", "chunks", "most"), [(8, 64, 1.3), (24, 64, 1.6)])
def test_a_blob_gets_to_all_in_little_more_than_the_time_of_one_line(receivers: int, chunks: int, most: float) -> None:
    row = measure(receivers, chunks, degree=8)
    print(row)
    assert row.ratio < most
    assert row.copies < 1.3, "the origin sends each chunk once, and then helps those that are behind"
    assert row.twice < 0.02


async def test_peers_with_half_each_complete_each_other_without_an_origin(table: SwarmTable) -> None:
    first, second = table.add(count=2)
    await trio.sleep(0.1)
    half = table.blob.all // 3
    for peer, here in ((first, half), (second, table.blob.all & ~half)):
        for chunk in range(len(table.blob)):
            if here >> chunk & 1:
                peer.into[table.blob.span(chunk)] = table.data[table.blob.span(chunk)]
        peer.fetch([other for other in (first, second) if other is not peer], here)
    assert await table.until_all([first, second], table.least_s) < 0.6 * table.least_s
    assert not table.twice([first, second])


async def test_a_withheld_blob_goes_to_nobody_neither_while_it_is_fetched_nor_later(table: SwarmTable) -> None:
    origin, (holder, asker) = await an_origin_and(table, 2)
    table.wire.forget(origin.id, asker.id)
    origin.hold()
    holder.withheld.add(table.blob.name)
    holder.fetch([origin])
    await table.until(lambda: holder.here().bit_count() >= 4, table.least_s)
    asker.fetch([holder])
    wanted = ChunksRequest(blob=table.blob.name, chunks=[0, 1, 2, 3], spare=False)
    answer = await asker.network.request(holder.id, "want", wanted.encode(), timeout_s=1)
    assert decode_body(ChunksReply, answer).chunks == [0, 1, 2, 3]
    await table.until_all([holder], 2 * table.least_s)
    await table.until(lambda: asker.outcome is False, 2 * HOPE_S)
    assert not asker.here() and not holder.swarm.up_bytes and not holder.swarm.gives(table.blob.name)


async def test_two_that_wait_for_each_other_give_up_after_a_while(table: SwarmTable) -> None:
    _, (first, second) = await an_origin_and(table, 2)
    start = trio.current_time()
    first.fetch([second])
    second.fetch([first])
    await table.until(lambda: first.outcome is second.outcome is False, 2 * PATIENCE_S)
    assert trio.current_time() - start < PROMISE_S + 2 * HOPE_S


# -- deaths -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_origin_may_die_when_one_copy_has_left_it(table: SwarmTable) -> None:
    origin, others = await an_origin_and(table, 8)
    begin(origin, others)
    every = table.blob.all
    await table.until(lambda: _together(others) == every, 3 * table.least_s)
    assert origin.swarm.up_bytes <= 1.05 * len(table.data)
    assert not any(peer.done_at for peer in others)
    origin.crash()
    await table.until_all(others, table.least_s)


def _together(peers: list[Peer]) -> int:
    here = 0
    for peer in peers:
        here |= peer.here()
    return here


@pytest.mark.slow
async def test_who_crashes_at_half_goes_on_from_what_it_has(table: SwarmTable) -> None:
    origin, others = await an_origin_and(table, 4)
    begin(origin, others)
    victim = others[0]
    await table.until(lambda: victim.here().bit_count() >= 32, 2 * table.least_s)
    victim.crash()
    here = victim.here()
    await trio.sleep(1.0)
    victim.came.clear()
    victim.start()
    await trio.sleep(0.1)
    victim.fetch([origin, *others[1:]], here)
    await table.until_all(others, 2 * table.least_s)
    assert here & sum(1 << chunk for chunk in victim.came) == 0, "nothing again that was there"
    assert sum(victim.came.values()) <= len(table.blob) - here.bit_count() + 1


# -- liars ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Claimer, Repeater, Staller, AlwaysBusy, Corrupter])
async def test_two_liars_among_eight_sources_cost_seconds(table: SwarmTable, kind: type[Claimer]) -> None:
    honest, liars, (joiner,) = table.add(count=6), table.add(kind, 2), table.add()
    await trio.sleep(0.1)
    for source in honest:
        source.hold()
    joiner.fetch([*liars, *honest])
    taken_s = await table.until_all([joiner], 2 * table.least_s)
    print(kind.__name__, taken_s, table.least_s)
    assert taken_s < table.least_s + 3.0
    for liar in liars:
        assert isinstance(liar, Claimer) and 0 < liar.asked <= 40
    if kind is Corrupter:
        dropped = [event.peer for event in joiner.events if isinstance(event, Dropped)]
        assert set(dropped) <= {liar.id for liar in liars}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Claimer, Repeater, Staller, AlwaysBusy, Corrupter, Swallower])
async def test_two_liars_among_eight_receivers_cost_a_broadcast_seconds(table: SwarmTable, kind: type[Claimer]) -> None:
    (origin,) = table.add()
    liars, honest = table.add(kind, 2), table.add(count=6)
    await trio.sleep(0.1)
    begin(origin, honest)
    for liar in liars:
        if isinstance(liar, Swallower):
            liar.nursery.start_soon(liar.beg, [origin, *honest])
    taken_s = await table.until_all(honest, 4 * table.least_s)
    print(kind.__name__, taken_s, table.least_s)
    assert taken_s < 1.25 * table.least_s + 10.0


@pytest.mark.slow
@set_up(chunks=32)
async def test_a_crowd_that_withholds_the_last_chunk_gives_way_to_the_one_that_has_it(
    table: SwarmTable,
) -> None:
    withholders, (honest,), (joiner,) = table.add(LastWithholder, 60), table.add(), table.add()
    table.strangers.update(peer.id for peer in withholders)
    await trio.sleep(0.1)
    for peer in [*withholders, honest]:
        peer.hold()
    joiner.fetch([*withholders, honest])
    taken_s = await table.until_all([joiner], 100)
    assert taken_s < table.least_s + 16.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Staller, Beginner])
async def test_who_claims_what_nobody_has_keeps_no_download_for_ever(table: SwarmTable, kind: type[Claimer]) -> None:
    (liar,), (joiner,) = table.add(kind), table.add()
    await trio.sleep(0.1)
    joiner.fetch([liar])
    await table.until(lambda: joiner.outcome is False, PATIENCE_S + 5)


@pytest.mark.parametrize("within_s", [0.1, 60.0])
async def test_nothing_keeps_the_buffer_of_a_fetch_that_is_over(table: SwarmTable, within_s: float) -> None:
    """Or the file behind it would stay open, and on the disk after its removal, until the next garbage collection."""
    origin, (one,) = await an_origin_and(table, 1)
    origin.originate()
    into = array("B", bytes(len(table.data)))
    kept = weakref.ref(into)
    gc.disable()
    try:
        with trio.move_on_after(within_s):
            await one.swarm.fetch(table.blob, memoryview(into), [origin.id], Purpose("checkpoint", 1))
        del into
        await trio.sleep(1.0)
        assert kept() is None
    finally:
        gc.enable()


async def test_who_asks_for_chunks_that_are_not_here_is_told_so_and_nothing_is_queued(table: SwarmTable) -> None:
    origin, (asker,) = await an_origin_and(table, 1)
    origin.hold()
    question = ChunksRequest(blob=table.blob.name, chunks=[0, 63, 64, 32000])
    reply = decode_body(ChunksReply, await asker.network.request(origin.id, "want", question.encode(), timeout_s=5))
    assert reply == ChunksReply(chunks=[64, 32000], busy=[])
    unknown = ChunksRequest(blob=bytes(32), chunks=[0])
    with pytest.raises(Refused):
        await asker.network.request(origin.id, "want", unknown.encode(), timeout_s=5)
    await trio.sleep(1)
    assert not asker.came, "a push that was asked for behind the back of the swarm is refused before its bytes"


async def test_of_a_chunk_only_one_push_at_a_time_gets_a_buffer(table: SwarmTable) -> None:
    (liar,), (joiner,) = table.add(Staller), table.add()
    await trio.sleep(0.1)
    joiner.fetch([liar])
    await trio.sleep(1.0)
    (fetch,) = joiner.swarm._fetches[table.blob.name]
    (chunk, *_) = [chunk for chunk in range(64) if fetch._download.expects(liar.id, chunk)]
    first = fetch.landing(liar.id, chunk, CHUNK_BYTES)
    assert first is not None and fetch.landing(liar.id, chunk, CHUNK_BYTES) is None
    await fetch.landed(liar.id, chunk, None)
    assert fetch.landing(liar.id, chunk, CHUNK_BYTES) is not None
    assert fetch.landing(joiner.id, chunk, CHUNK_BYTES) is None, "nobody asked it"


def test_word_of_a_source_at_any_step_after_a_fetch_has_all_chunks_raises_nothing() -> None:
    """The nursery of a fetch closes some steps of the scheduler before the fetch leaves it; others may speak in between."""

    async def check(table: SwarmTable, step: int) -> None:
        (origin, one), raised = table.add(count=2), list[Exception]()
        origin.hold()
        await trio.sleep(0.1)
        one.fetch([origin])
        await table.until(lambda: table.blob.name in one.swarm._fetches, table.least_s)
        (fetch,) = one.swarm._fetches[table.blob.name]
        steps = 0

        class Speaking(trio.abc.Instrument):
            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                nonlocal steps
                steps += one.here() == table.blob.all
                if steps == step + 1:
                    steps += 1
                    try:
                        fetch.met(PeerId("another"), table.blob.all)
                    except Exception as error:  # noqa: BLE001 - trio takes an instrument that raises away, and goes on
                        raised.append(error)

        watch = Speaking()
        trio.lowlevel.add_instrument(watch)
        await table.until(lambda: one.outcome is not None and steps > step, PATIENCE_S)
        trio.lowlevel.remove_instrument(watch)
        assert one.outcome and not raised, step

    for step in range(12):
        on_swarm_table(partial(check, step=step), chunks=2)


async def two(table: SwarmTable, kind: type[Peer] = Peer) -> tuple[Peer, Peer]:
    """One that has the blob, and one that measures."""
    (source,), (asker,) = table.add(kind), table.add()
    await trio.sleep(0.1)
    source.hold()
    return source, asker


@set_up(chunk_s=0.01, latency_s=0.001)
async def test_a_sample_finds_the_rate_of_the_line_and_keeps_nothing(table: SwarmTable) -> None:
    source, asker = await two(table)
    sampled = await asker.swarm.sample(table.blob, source.id)
    assert sampled.bytes_per_s == pytest.approx(table.rate, rel=0.2) and not sampled.problem
    assert sampled.down_bytes == sum(table.blob.sizes[chunk] for chunk in _first_chunks(table.blob.sizes))
    assert not asker.swarm._samples and not asker.shelf
    assert not source.swarm._askers and not source.swarm._fetches, "nobody remembers who measured"


async def test_a_peer_without_the_blob_is_a_reason(table: SwarmTable) -> None:
    source, asker = table.add(count=2)
    await trio.sleep(0.1)
    sampled = await asker.swarm.sample(table.blob, source.id)
    assert sampled.problem == "this peer does not have that blob" and sampled.bytes_per_s == 0


@pytest.mark.parametrize("kind", [Corrupter, Swallower, AlwaysBusy])
@set_up(chunk_s=0.01)
async def test_what_a_liar_sends_is_no_rate(table: SwarmTable, kind: type[Peer]) -> None:
    source, asker = await two(table, kind)
    begun = trio.current_time()
    sampled = await asker.swarm.sample(table.blob, source.id)
    assert sampled.bytes_per_s == 0 and sampled.problem
    assert trio.current_time() - begun <= SAMPLE_S
