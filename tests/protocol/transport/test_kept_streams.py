"""Streams that carry one question after the other, between real hosts on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from libp2p.network.stream.exceptions import StreamError

from protocol.transport import requests
from protocol.transport.interface import Refused
from protocol.transport.library import library_id
from protocol.transport.network import Libp2pNetwork
from protocol.transport.reputation import Reputation
from protocol.transport.requests import KEPT_BYTES, KEPT_S, MAX_CONCURRENT_PER_PEER, MOST_KEPT, WAITED_S, Requests
from protocol.wire.identity import PeerId
from tests.protocol.transport.recorder import PATIENCE_S, Recorder, network, pair, stack, until


@asynccontextmanager
async def two_ends(b: Recorder) -> AsyncIterator[tuple[Libp2pNetwork, Requests, Requests, PeerId]]:
    """The end that asks, the questions of both ends, and whom to ask: `b` answers."""
    async with pair(Recorder(), b) as (one, two):
        yield one, stack(one).requests, stack(two).requests, two.peer_id


def streams(end: Libp2pNetwork, peer: PeerId) -> int:
    """How many were opened on the connections to this peer since they began."""
    connections = stack(end).host.get_network().connections[library_id(peer)]
    return sum(getattr(connection.muxed_conn, "next_stream_id", 0) for connection in connections)


async def test_questions_that_follow_each_other_share_a_stream_refusals_included() -> None:

    assert KEPT_S < WAITED_S
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        await one.request(peer, "echo", b"first", timeout_s=PATIENCE_S)
        before = streams(one, peer)
        for number in range(10):
            data = b"%d" % number
            assert await one.request(peer, "echo", data, timeout_s=PATIENCE_S) == data
            with pytest.raises(Refused):
                await one.request(peer, "no", b"", timeout_s=PATIENCE_S)
        assert streams(one, peer) == before
        assert len(asking._kept._kept[peer]) == sum(answering._waiting.values()) and not answering._open


async def test_of_many_streams_at_a_time_few_are_kept_by_either_end() -> None:
    gate, asked = trio.Event(), trio.Event()

    async def wait(kind: str, data: bytes) -> bytes:
        if len(answered) == MAX_CONCURRENT_PER_PEER - 1:
            asked.set()
        answered.append(data)
        await gate.wait()
        return data

    answered: list[bytes] = []
    b = Recorder()
    b.answer = wait
    async with two_ends(b) as (one, asking, answering, peer):
        answered.clear()

        async def ask() -> None:
            await one.request(peer, "echo", b"", timeout_s=PATIENCE_S)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(MAX_CONCURRENT_PER_PEER):
                    nursery.start_soon(ask)
                await asked.wait()
                gate.set()
        assert len(asking._kept._kept[peer]) <= MOST_KEPT
        assert sum(answering._waiting.values()) <= MOST_KEPT and not answering._open


async def test_what_is_no_question_ends_a_stream_that_was_kept_and_has_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    penalised: list[PeerId] = []
    monkeypatch.setattr(Reputation, "penalise", lambda self, peer, penalty, why: penalised.append(peer))
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        await one.request(peer, "echo", b"first", timeout_s=PATIENCE_S)
        kept = asking._kept._kept[peer]
        for each in kept:
            await each.stream.write(b"\xff\xff\xff\xff")
        await until(lambda: not answering._waiting)
        assert penalised == [one.peer_id] * len(kept)


async def test_nothing_is_kept_of_a_peer_that_is_gone() -> None:
    a = Recorder()
    async with network(a) as one:
        async with network(Recorder()) as two:
            one.remember(two.addresses())
            await a.until(lambda: a.connected)
            await one.request(two.peer_id, "echo", b"", timeout_s=PATIENCE_S)
            assert stack(one).requests._kept._kept
        await a.until(lambda: a.disconnected)
        assert not stack(one).requests._kept._kept


async def test_a_question_goes_on_to_a_new_stream_when_the_other_end_has_closed_those_that_were_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "WAITED_S", 0.0)
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        await one.request(peer, "echo", b"first", timeout_s=PATIENCE_S)
        await until(lambda: not answering._waiting)
        assert asking._kept._kept[peer]
        assert await one.request(peer, "echo", b"second", timeout_s=PATIENCE_S) == b"second"


@pytest.mark.parametrize("size", [100, KEPT_BYTES])
async def test_what_brought_much_is_kept_by_neither_end(size: int) -> None:
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        for _ in range(6):
            await one.request(peer, "echo", bytes(size), timeout_s=PATIENCE_S)
        assert all(kept.brought_bytes <= KEPT_BYTES for kept in asking._kept._kept.get(peer, []))
        assert bool(asking._kept._kept.get(peer)) is (size < KEPT_BYTES)


async def test_what_is_no_name_of_a_protocol_ends_its_stream_alone() -> None:
    async with two_ends(Recorder()) as (one, asking, answering, peer):
        stream = await stack(one).host.get_network().new_stream(library_id(peer))
        await stream.write(b"\x13/multistream/1.0.0\n\x02\xff\n")
        with pytest.raises(StreamError), trio.fail_after(PATIENCE_S):
            while True:
                assert await stream.read(1)
        assert await one.request(peer, "echo", b"still here", timeout_s=PATIENCE_S) == b"still here"
