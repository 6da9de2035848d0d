"""One bulk link over a pair of sockets: what is sent arrives, whatever the size, and the keys are replaced on the way."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from protocol.transport.bulk_link import FRAME_BYTES, SMALL_BYTES, SO_MAX_PACING_RATE, FrameKind, Keys, Link, LinkBroken
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity

RUN = hash_bytes("manifest", b"links")


def linked(test: Callable[[Link, Link], Awaitable[Any]], rekey_frames: int = 1 << 16, other: int | None = None) -> None:
    """Run `test` with both ends of a link: the dialler's and the listener's."""
    dialler, listener = Identity.generate().peer_id, Identity.generate().peer_id
    keys = Keys.agree(RUN, dialler, listener, bytes(16), bytes(64))
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    ends = (
        Link(there, keys, dialled=True, rekey_frames=rekey_frames),
        Link(here, keys, dialled=False, rekey_frames=other or rekey_frames),
    )
    try:
        trio.run(test, *ends)
    finally:
        for end in ends:
            end.close()


async def send(link: Link, pieces: list[bytes]) -> None:
    for number, piece in enumerate(pieces):
        link.put(FrameKind.DATA, number, piece)
        await link.flush()


async def receive(link: Link, pieces: list[bytes]) -> None:
    for number, piece in enumerate(pieces):
        kind, value, size = await link.receive_head()
        assert (kind, value, size) == (FrameKind.DATA, number, len(piece))
        plain = bytearray(size)
        await link.receive_body(memoryview(plain))
        assert plain == piece


async def both(one: Link, other: Link, pieces: list[bytes]) -> None:
    """The same pieces in both directions at once."""
    async with trio.open_nursery() as nursery:
        for task, link in ((send, one), (receive, other), (send, other), (receive, one)):
            nursery.start_soon(task, link, pieces)


def test_frames_of_every_size_arrive() -> None:
    sizes = [1, 100, FRAME_BYTES, FRAME_BYTES - 1, 0, FRAME_BYTES, 5000, FRAME_BYTES, FRAME_BYTES, 1]
    linked(lambda one, other: both(one, other, [os.urandom(size) for size in sizes]))


def test_keys_are_replaced_in_step_on_both_ends() -> None:
    async def main(one: Link, other: Link) -> None:
        await both(one, other, [os.urandom(1000) for _ in range(100)])
        assert one.rekeyed == other.rekeyed == (14, 14)

    linked(main, rekey_frames=7)


def test_an_end_that_does_not_replace_its_key_is_not_understood() -> None:
    async def main(one: Link, other: Link) -> None:
        pieces = [bytes(10)] * 8
        with pytest.raises(BaseExceptionGroup) as found:
            await both(one, other, pieces)
        assert found.group_contains(LinkBroken, match="altered")

    linked(main, rekey_frames=7, other=8)


def test_small_frames_wait_for_nobody_and_the_largest_fits() -> None:
    async def main(one: Link, other: Link) -> None:
        one.send_small(FrameKind.OPEN, 5, bytes(SMALL_BYTES))
        one.send_small(FrameKind.ANSWER, 6, b"")
        assert await other.receive_small() == (FrameKind.OPEN, 5, bytes(SMALL_BYTES))
        assert await other.receive_small() == (FrameKind.ANSWER, 6, b"")
        with pytest.raises(LinkBroken, match="does not read"):
            while True:
                one.send_small(FrameKind.OPEN, 7, bytes(SMALL_BYTES))

    linked(main)


def test_aborting_releases_who_waits_to_send_and_who_waits_to_receive() -> None:
    async def main(one: Link, other: Link) -> None:
        async def fails(work: Callable[[], Awaitable[Any]]) -> None:
            with pytest.raises(LinkBroken, match="enough"):
                await work()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails, one.receive_head)
            nursery.start_soon(fails, lambda: send(one, [bytes(FRAME_BYTES)] * 1000))
            await trio.testing.wait_all_tasks_blocked(0.01)
            one.abort("enough")

    linked(main)


def test_a_link_is_held_to_its_pace_and_let_go_again() -> None:
    async def test(one: Link, other: Link) -> None:
        one.pace(5e6)
        paced = one._sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE)
        one.pace(float("inf"))
        assert (paced, one._sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 4)) == (5_000_000, b"\xff" * 4)

    linked(test)


def test_the_kernel_tells_that_the_other_end_takes_no_more() -> None:
    async def main(one: Link, other: Link) -> None:
        async def fill() -> None:
            with pytest.raises(LinkBroken, match="enough"):
                await send(one, [bytes(FRAME_BYTES)] * 1000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            while (state := one.state) is not None and state.held_back_s == 0.0:
                await trio.sleep(0.01)
            one.abort("enough")
        assert state is not None and state.busy_s >= state.held_back_s > 0.0

    linked(main)
