"""Sockets that cannot be opened, while their peer comes and goes."""

from __future__ import annotations

import socket
from contextlib import suppress
from math import inf

import pytest
import trio
import trio.testing

from protocol.transport.bulk_link import Keys, Link, LinkBroken
from protocol.transport.bulk_sending import STILL_S, Sending
from protocol.transport.interface import Unreachable
from protocol.transport.rate_limit import RateLimit
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity

ME, PEER = Identity.from_seed(b"\x01" * 32).peer_id, Identity.from_seed(b"\x02" * 32).peer_id
KEYS = Keys.agree(hash_bytes("manifest", b"sending"), ME, PEER, bytes(16), bytes(64))


def test_a_socket_that_fails_after_its_peer_left_and_came_back_ends_nothing_else() -> None:
    """The first handshake fails, and is cleaned up for a moment, in which it cannot be cancelled."""
    begun = trio.Event()

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            here, there = socket.create_connection(server.getsockname()), server.accept()[0]

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

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("how", ["cancelled", "disconnected", "still"])
def test_what_gives_way_goes_on_when_a_push_breaks_off_or_nothing_of_it_moves(how: str) -> None:
    """The peer takes nothing of a push that goes before others."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ends = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(2)]

        async def dial(peer: object) -> Link:
            return Link(ends[0][0], KEYS, dialled=True)

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
        for end in (end for pair in ends for end in pair):
            end.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
