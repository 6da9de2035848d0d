"""Buffers of an exchange: shared equally among the senders, and used again."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from protocol.allreduce.buffers import PART_BUFFERS, BufferPool, WaitingParts, share_of_buffers
from protocol.wire.identity import PeerId

ONE, OTHER = PeerId("one"), PeerId("other")


def test_a_returned_buffer_is_the_next_one_of_its_size() -> None:
    pool = BufferPool()
    buffer = pool.take(10)
    pool.give(buffer)
    assert pool.take(11) is not buffer and pool.take(10) is buffer and pool.take(10) is not buffer


def test_every_sender_has_an_equal_share_and_at_least_one() -> None:
    assert [share_of_buffers(senders) for senders in (0, 1, 3, 64, 255)] == [PART_BUFFERS, PART_BUFFERS, 21, 1, 1]


async def test_a_sender_with_its_share_waits_until_a_chunk_is_dropped_or_a_push_breaks_off() -> None:
    pool = BufferPool()
    parts = WaitingParts([ONE, OTHER], pool)
    room: list[PeerId] = []

    async def reserve(peer: PeerId) -> None:
        await parts.reserve(peer)
        room.append(peer)

    for chunk in range(share_of_buffers(2)):
        await reserve(ONE)
        if chunk:
            parts.arrived(ONE)
            parts.put(chunk, ONE, pool.take(4))
    room.clear()
    async with trio.open_nursery() as nursery:
        for peer in (ONE, ONE, OTHER):
            nursery.start_soon(reserve, peer)
        await wait_all_tasks_blocked()
        assert room == [OTHER], "the other's share is its own"
        assert parts.held() == [ONE]
        parts.drop(1)
        await wait_all_tasks_blocked()
        assert sorted(room) == [ONE, OTHER] and (1, ONE) not in parts and (2, ONE) in parts
        parts.arrived(ONE)  # the first push broke off
        await wait_all_tasks_blocked()
        assert sorted(room) == [ONE, ONE, OTHER]
        assert parts.held() == []
