"""How fast a peer sends: measured with chunks that it has, and bounded for both."""

from __future__ import annotations

import pytest
import trio

from protocol.blobs.blob import MAX_WANTED
from protocol.blobs.transfer import SAMPLE_BYTES, SAMPLE_S, _first_chunks
from tests.protocol.blobs.liars import AlwaysBusy, Corrupter, Swallower
from tests.protocol.blobs.swarm_table import CHUNK_BYTES, Peer, SwarmTable, set_up


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


async def test_a_sample_ends_in_time_on_a_slow_line(table: SwarmTable) -> None:
    source, asker = await two(table)
    begun = trio.current_time()
    sampled = await asker.swarm.sample(table.blob, source.id)
    assert trio.current_time() - begun <= SAMPLE_S
    assert 0 < sampled.down_bytes <= SAMPLE_S * table.rate
    assert sampled.bytes_per_s == pytest.approx(table.rate, rel=0.3)


async def test_a_peer_without_the_blob_is_a_reason(table: SwarmTable) -> None:
    source, asker = table.add(count=2)
    await trio.sleep(0.1)
    sampled = await asker.swarm.sample(table.blob, source.id)
    assert sampled.problem == "that blob is not here" and sampled.bytes_per_s == 0


@pytest.mark.parametrize("kind", [Corrupter, Swallower, AlwaysBusy])
@set_up(chunk_s=0.01)
async def test_what_a_liar_sends_is_no_rate(table: SwarmTable, kind: type[Peer]) -> None:
    source, asker = await two(table, kind)
    begun = trio.current_time()
    sampled = await asker.swarm.sample(table.blob, source.id)
    assert sampled.bytes_per_s == 0 and sampled.problem
    assert trio.current_time() - begun <= SAMPLE_S


@set_up(chunk_s=0.01)
async def test_pushes_that_no_sample_asked_for_are_refused(table: SwarmTable) -> None:
    source, asker = await two(table)
    await asker.swarm.sample(table.blob, source.id)
    source.swarm._uploads.want(asker.id, table.blob.name, 0)
    came = asker.came[0]
    await trio.sleep(5)
    assert asker.came[0] == came


def test_a_sample_has_a_few_megabytes_at_most() -> None:
    assert _first_chunks([16 << 20] * 3) == [0]
    assert sum([1 << 20] * len(_first_chunks([1 << 20] * 100))) == SAMPLE_BYTES
    assert len(_first_chunks([CHUNK_BYTES] * 1000)) == MAX_WANTED
