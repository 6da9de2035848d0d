"""Networks with limits on what they move, on loopback: nothing is lost, and nothing is faster than it may be."""

from __future__ import annotations

import os

import pytest
import trio

from protocol.transport.interface import MAX_REQUEST_BYTES
from protocol.transport.rate_limit import BURST_S
from tests.protocol.transport.recorder import PATIENCE_S, Recorder, network, pair, stack

CAP = 4e6
DATA = os.urandom(3 << 20)
SHORTEST_S = len(DATA) / CAP - 2 * BURST_S


@pytest.mark.slow
@pytest.mark.parametrize("caps_up", [True, False])
async def test_pushes_and_large_answers_arrive_whole_and_no_faster_than_the_limit(caps_up: bool) -> None:
    a, b = Recorder(), Recorder()
    up, down = (CAP, None) if caps_up else (None, CAP)
    async with network(a, up_limit=up, down_limit=down) as capped, network(b) as free:
        capped.remember(free.addresses())
        await b.until(lambda: b.connected)
        await a.until(lambda: a.connected)
        begun, data = trio.current_time(), memoryview(DATA)
        async with trio.open_nursery() as nursery:
            for spare in (False, True):
                header, piece = b"spare" if spare else b"urgent", data[spare::2]
                sender, taker = (capped, free) if caps_up else (free, capped)
                nursery.start_soon(
                    lambda to=taker.peer_id, h=header, p=bytes(piece), s=sender, spare=spare: s.push(
                        to, h, memoryview(p), timeout_s=PATIENCE_S, spare=spare
                    )
                )
        assert trio.current_time() - begun >= SHORTEST_S
        landed = (b if caps_up else a).buffers
        assert landed[b"urgent"] == DATA[::2] and landed[b"spare"] == DATA[1::2]
        begun, question = trio.current_time(), os.urandom(MAX_REQUEST_BYTES)
        assert await capped.request(free.peer_id, "echo", question, timeout_s=PATIENCE_S) == question
        assert trio.current_time() - begun >= len(question) / CAP - 2 * BURST_S


async def test_all_that_libp2p_moves_is_counted() -> None:
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        meters = [stack(end).meter for end in (one, two)]
        before = [(meter.up_bytes, meter.down_bytes) for meter in meters]
        assert all(up > 100 and down > 100 for up, down in before), "both have shaken hands, whoever dialled"
        await one.request(two.peer_id, "echo", bytes(100_000), timeout_s=PATIENCE_S)
        assert all(
            meter.up_bytes - up > 100_000 and meter.down_bytes - down > 100_000
            for meter, (up, down) in zip(meters, before, strict=True)
        )


@pytest.mark.slow
async def test_bytes_from_servers_outside_the_run_count_and_keep_to_the_limit() -> None:
    async with network(Recorder(), down_limit=CAP) as capped:
        begun, down, moved = trio.current_time(), capped.traffic().down_bytes, capped.line_bytes()
        for _ in range(24):
            await capped.receive_elsewhere(len(DATA) // 24)
        assert trio.current_time() - begun >= SHORTEST_S
        assert capped.traffic().down_bytes - down >= len(DATA) and capped.line_bytes() - moved > len(DATA)
