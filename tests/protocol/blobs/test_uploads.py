"""Pushing chunks: in turns, a short queue, members first, and nobody that takes nothing holds up the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import Any

import pytest
import trio

from protocol.blobs.blob import read_chunk_header
from protocol.blobs.uploads import LEAST_QUEUE, MAX_REMEMBERED, MOST, MOST_QUEUE, MOST_WITH_STALLED, Uploads
from protocol.transport.interface import Unreachable
from protocol.wire.identity import PeerId
from tests.protocol.blobs.peers import NAME, PEERS
from tests.protocol.blobs.swarm_table import set_up
from tests.simulation.determinism import deterministic_trio

CROWD = [PeerId(f"stranger{number}") for number in range(400)]


class Line:
    """Takes `push_s` for a push; one to `stuck` peers never ends.  pushed: what arrived, in order.

    line_s: for how long a push has the line for itself, in turn; the rest of `push_s` is the way.
    """

    uploads: Uploads

    def __init__(self, push_s: float, line_s: float = 0.0) -> None:
        self.push_s, self.stuck, self.line_s = push_s, set[PeerId](), line_s
        self.free_at, self.stuck_s, self.members = 0.0, inf, set[PeerId]()
        self.pushed: list[tuple[PeerId, int]] = []
        self.under_way: Counter[PeerId] = Counter()
        self.most = self.most_to_one = 0

    def has_member(self, peer: PeerId) -> bool:
        return peer in PEERS or peer in self.members

    async def push(
        self, peer: PeerId, header: bytes, data: memoryview, *, timeout_s: float, spare: bool, on_sent: Callable[[], None]
    ) -> None:
        chunk = read_chunk_header(header)
        assert chunk is not None
        self.under_way[peer] += 1
        self.most = max(self.most, self.under_way.total())
        self.most_to_one = max(self.most_to_one, self.under_way[peer])
        self.free_at = max(self.free_at, trio.current_time()) + self.line_s
        try:
            if self.line_s:
                await trio.sleep_until(self.free_at)
                on_sent()
            await trio.sleep(min(timeout_s, self.stuck_s) if peer in self.stuck else self.push_s - self.line_s)
            if peer in self.stuck and self.stuck_s > timeout_s:
                raise Unreachable("it took nothing")
            self.pushed.append((peer, chunk.chunk))
        finally:
            self.under_way[peer] -= 1


@asynccontextmanager
async def a_line(push_s: float = 1.0, line_s: float = 0.0, size: int = 100) -> AsyncIterator[Line]:
    async def read(name: bytes, chunk: int) -> tuple[bytes, bool] | None:
        await trio.lowlevel.checkpoint()
        return None if chunk == 99 else (bytes(size), False)

    line = Line(push_s, line_s)
    network: Any = line
    line.uploads = Uploads(network, line, read, lambda peer, name, chunk: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.uploads.run)
        yield line
        nursery.cancel_scope.cancel()


@pytest.fixture
def line(how: dict[str, Any], virtual_time: None) -> Iterator[AbstractAsyncContextManager[Line]]:
    with deterministic_trio(1):
        yield a_line(**how)


async def test_what_is_queued_or_under_way_is_not_queued_again(line: Line) -> None:
    uploads = line.uploads
    for _ in range(5):
        assert uploads.want(PEERS[0], NAME, 1)
        await trio.sleep(0.1)
    await trio.sleep(3)
    assert line.pushed == [(PEERS[0], 1)]


async def test_beyond_a_short_queue_it_is_busy_and_who_was_turned_away_comes_first(line: Line) -> None:
    uploads = line.uploads
    ann, bob, cyn = PEERS[:3]
    taken = [uploads.want(ann, NAME, chunk) for chunk in range(10)]
    assert taken == [True] * LEAST_QUEUE + [False] * (10 - LEAST_QUEUE)
    assert not uploads.want(bob, NAME, 0)
    await trio.sleep(0.1)  # two of Ann's are under way now, and Bob and Ann wait for the two free places
    assert uploads.want(bob, NAME, 0) and uploads.want(ann, NAME, 4)
    assert not uploads.want(cyn, NAME, 0)


async def test_members_go_before_strangers_and_a_crowd_takes_no_place_of_theirs(line: Line) -> None:
    uploads = line.uploads
    for _ in range(3):
        for stranger in CROWD:
            uploads.want(stranger, NAME, 0)
    assert uploads.want(PEERS[0], NAME, 7)
    await trio.sleep(2.5)
    assert (PEERS[0], 7) in line.pushed[: MOST + 1]
    assert len(uploads._turned_away) <= MAX_REMEMBERED
    assert sum(map(len, uploads._queues.values())) <= MOST_QUEUE + 1


async def test_who_takes_nothing_holds_up_only_its_own(line: Line) -> None:
    uploads = line.uploads
    line.stuck = set(PEERS[:8])
    for peer in PEERS[:8]:
        uploads.want(peer, NAME, 0)
    for _ in range(20):
        uploads.want(PEERS[9], NAME, len(line.pushed))
        await trio.sleep(2)
    assert len(line.pushed) >= 15, "they cost some seconds"
    for again in range(20):
        for peer in PEERS[:8]:
            uploads.want(peer, NAME, 1)
        uploads.want(PEERS[9], NAME, 50 + again)
        await trio.sleep(2)
    assert sum(chunk >= 50 for _, chunk in line.pushed) >= 18, "and when they come again, nothing"
    assert line.most <= MOST_WITH_STALLED


async def _serve(uploads: Uploads, line: Line, peers: list[PeerId], seconds: float) -> float:
    """Pushes a second while these peers want as much as they get."""
    until, chunk = trio.current_time() + seconds, 0
    while trio.current_time() < until:
        for peer in peers:
            while uploads.want(peer, NAME, 100 + chunk):
                chunk += 1
        await trio.sleep(0.01)
    return len(line.pushed) / seconds


@pytest.mark.slow
@set_up(push_s=0.2, line_s=0.02)
async def test_a_long_way_to_one_peer_is_filled(line: Line) -> None:
    """A line that carries 50 chunks a second, and 0.2 s until one is acknowledged."""
    uploads = line.uploads
    assert await _serve(uploads, line, PEERS[:1], 20) > 40, "with two at a time it would be 10"


@pytest.mark.slow
@set_up(push_s=0.02, line_s=0.02)
async def test_members_far_away_that_withhold_their_answers_take_few_places(line: Line) -> None:
    """Twelve take what they get and never say so: two peers near by are served all the same."""
    uploads = line.uploads
    far, near = [PeerId(f"far{number}") for number in range(12)], PEERS[:2]
    line.stuck, line.members = {*far}, {*far}
    for peer in far:
        for chunk in range(8):
            uploads.want(peer, NAME, chunk)
        await trio.sleep(0.1)
    before = len(line.pushed)
    assert await _serve(uploads, line, near, 20) - before / 20 > 40


async def test_chunks_that_somebody_waits_for_go_before_spare_ones_of_all_peers(line: Line) -> None:
    uploads = line.uploads
    for chunk in range(2):
        assert uploads.want(PEERS[0], NAME, chunk, spare=True) and uploads.want(PEERS[1], NAME, chunk, spare=True)
    assert uploads.want(PEERS[2], NAME, 50) and uploads.want(PEERS[2], NAME, 51)
    assert uploads.want(PEERS[3], NAME, 60)
    assert uploads.want(PEERS[0], NAME, 1), "it was queued as spare"
    await trio.sleep(30)
    awaited = {(PEERS[2], 50), (PEERS[2], 51), (PEERS[3], 60), (PEERS[0], 1)}
    assert {*line.pushed[:4]} == awaited and len(line.pushed) == 7


async def test_copies_for_members_and_chunks_for_strangers_take_turns(line: Line) -> None:
    uploads = line.uploads
    stranger, taken = CROWD[0], Counter[PeerId]()
    for _ in range(40):
        for peer in (PEERS[0], stranger):
            taken[peer] += uploads.want(peer, NAME, taken[peer], spare=peer == PEERS[0])
        await trio.sleep(0.5)
    got = Counter(peer for peer, _ in line.pushed)
    assert 0.5 < got[PEERS[0]] / got[stranger] < 2.0
