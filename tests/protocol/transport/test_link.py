"""Bulk links over pairs of sockets: what arrives, keys that are replaced, and sockets that bring or take nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

import pytest
import trio
import trio.testing

from protocol.transport.bulk import GRACE_S, Receiving
from protocol.transport.bulk_link import (
    FRAME_BYTES,
    HEAD,
    SMALL_BYTES,
    SO_MAX_PACING_RATE,
    TAG_BYTES,
    FrameKind,
    Keys,
    Link,
    LinkBroken,
)
from protocol.transport.bulk_sending import STILL_S, Sending
from protocol.transport.interface import Unreachable
from protocol.transport.limits import FULL_SCORE, SLOWNESS, Reputation
from protocol.transport.rate_limit import RateLimit
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from tests.protocol.transport.recorder import Recorder

ME, PEER = Identity.from_seed(b"\x01" * 32).peer_id, Identity.from_seed(b"\x02" * 32).peer_id
KEYS = Keys.agree(hash_bytes("manifest", b"links"), ME, PEER, bytes(16), bytes(64))


def sockets() -> tuple[socket.socket, socket.socket]:
    """Two ends of one TCP connection: the dialler's and the listener's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


@contextmanager
def linked(rekey_frames: int = 1 << 16, other: int | None = None) -> Iterator[tuple[Link, Link]]:
    """Both ends of a link: the dialler's and the listener's."""
    there, here = sockets()
    one = Link(there, KEYS, dialled=True, rekey_frames=rekey_frames)
    listening = Link(here, KEYS, dialled=False, rekey_frames=other or rekey_frames)
    try:
        yield one, listening
    finally:
        one.close()
        listening.close()


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    with linked() as both_ends:
        yield both_ends


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


async def test_frames_of_every_size_arrive(ends: tuple[Link, Link]) -> None:
    sizes = [1, 100, FRAME_BYTES, FRAME_BYTES - 1, 0, FRAME_BYTES, 5000, FRAME_BYTES, FRAME_BYTES, 1]
    await both(*ends, [os.urandom(size) for size in sizes])


async def test_keys_are_replaced_in_step_on_both_ends() -> None:
    with linked(rekey_frames=7) as (one, other):
        await both(one, other, [os.urandom(1000) for _ in range(100)])
        assert one.rekeyed == other.rekeyed == (14, 14)


async def test_an_end_that_does_not_replace_its_key_is_not_understood() -> None:
    with linked(rekey_frames=7, other=8) as (one, other), pytest.raises(BaseExceptionGroup) as found:
        await both(one, other, [bytes(10)] * 8)
    assert found.group_contains(LinkBroken, match="altered")


async def test_small_frames_wait_for_nobody_and_the_largest_fits(ends: tuple[Link, Link]) -> None:
    one, other = ends
    one.send_small(FrameKind.OPEN, 5, bytes(SMALL_BYTES))
    one.send_small(FrameKind.ANSWER, 6, b"")
    assert await other.receive_small() == (FrameKind.OPEN, 5, bytes(SMALL_BYTES))
    assert await other.receive_small() == (FrameKind.ANSWER, 6, b"")
    with pytest.raises(LinkBroken, match="does not read"):
        while True:
            one.send_small(FrameKind.OPEN, 7, bytes(SMALL_BYTES))


async def test_aborting_releases_who_waits_to_send_and_who_waits_to_receive(ends: tuple[Link, Link]) -> None:
    one, other = ends

    async def fails(work: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises(LinkBroken, match="enough"):
            await work()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails, one.receive_head)
        nursery.start_soon(fails, lambda: send(one, [bytes(FRAME_BYTES)] * 1000))
        await trio.testing.wait_all_tasks_blocked(0.01)
        one.abort("enough")


async def test_a_link_is_held_to_its_pace_and_let_go_again(ends: tuple[Link, Link]) -> None:
    one, other = ends
    one.pace(5e6)
    paced = one._sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE)
    one.pace(float("inf"))
    assert (paced, one._sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 4)) == (5_000_000, b"\xff" * 4)


@pytest.mark.parametrize(
    ("came", "penalty"),
    [(b"", 0.0), (HEAD.pack(TAG_BYTES + 20, FrameKind.OPEN, 0), SLOWNESS)],
    ids=["nothing", "the head of a frame"],
)
@pytest.mark.usefixtures("virtual_time")
async def test_an_idle_link_ends_and_only_half_a_frame_costs_something(came: bytes, penalty: float) -> None:
    banned: list[PeerId] = []
    reputation = Reputation(lambda: 0.0, lambda peer, why: banned.append(peer))
    there, here = sockets()
    there.sendall(came)
    assert here.recv(len(came), socket.MSG_PEEK | socket.MSG_WAITALL) == came
    link = Link(here, KEYS, dialled=False)
    await Receiving(Recorder(), RateLimit(), reputation).serve(PEER, link)
    assert trio.current_time() == GRACE_S
    reputation.penalise(PEER, FULL_SCORE - penalty - 1, "all but one of what is left")
    assert not banned
    reputation.penalise(PEER, 1, "the last")
    assert banned == [PEER]
    link.close()
    there.close()


@pytest.mark.usefixtures("virtual_time")
async def test_a_socket_that_fails_after_its_peer_left_and_came_back_ends_nothing_else() -> None:
    """The first handshake fails, and is cleaned up for a moment, in which it cannot be cancelled."""
    begun = trio.Event()
    here, there = sockets()

    async def dial(peer: object) -> Link:
        if begun.is_set():
            return Link(here, KEYS, dialled=True)
        begun.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        raise LinkBroken("no answer")

    async def push() -> None:
        with pytest.raises(Unreachable):
            await sending.push(nursery.start_soon, PEER, b"", memoryview(b"data"))

    sending = Sending(dial, RateLimit())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(push)
        await begun.wait()
        sending.disconnected(PEER)
        nursery.start_soon(push)
        await trio.sleep(5)
        assert sending.links(), "the other one is open, and waits for an answer"
        sending.disconnected(PEER)
    there.close()


@pytest.mark.parametrize("how", ["cancelled", "disconnected", "still"])
@pytest.mark.usefixtures("virtual_time")
async def test_what_gives_way_goes_on_when_a_push_breaks_off_or_nothing_of_it_moves(how: str) -> None:
    """The peer takes nothing of a push that goes before others."""
    ends = sockets()

    async def dial(peer: object) -> Link:
        return Link(ends[0], KEYS, dialled=True)

    async def push(scope: trio.CancelScope) -> None:
        with scope, suppress(Unreachable):
            await urgent.push(nursery.start_soon, PEER, b"", memoryview(bytes(64 << 20)))

    urgent, scope = Sending(dial, RateLimit()), trio.CancelScope()
    spare = Sending(dial, RateLimit(), first=urgent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(push, scope)
        await trio.sleep(1)
        assert await spare.give_way()
        if how == "cancelled":
            scope.cancel()
        elif how == "disconnected":
            urgent.disconnected(PEER)
        else:
            await trio.sleep(STILL_S)
            urgent.measure(inf, 0.0, trio.current_time())
        await trio.sleep(0.1)
        assert not await spare.give_way()
        urgent.disconnected(PEER)
        nursery.cancel_scope.cancel()
    for end in ends:
        end.close()
