"""Rate limits and gauges, under virtual time."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
import trio
import trio.testing

from protocol.network.libp2p.link import Link, SocketState
from protocol.network.libp2p.rates import BURST_S, FORGET_S, GROWTH, PACED_BELOW, Gauge, RateLimit, pace
from protocol.network.libp2p.sending import MAX_LANES, WAY_S, Lane, Sending, _Push, lanes_for
from protocol.wire.identity import PeerId

RATE = 1000.0


def run(main: Callable[[], object]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type]


async def move(limit: RateLimit, pieces: list[int], log: list[str] | None = None, name: str = "") -> None:
    for piece in pieces:
        await limit.pay(piece)
        if log is not None:
            log.append(name)


def test_a_flow_keeps_to_the_limit() -> None:
    async def main() -> None:
        limit, begun = RateLimit(RATE), trio.current_time()
        await move(limit, [100] * 100)
        moved_before_the_last_pause = 9900 - BURST_S * RATE
        assert trio.current_time() - begun == pytest.approx(moved_before_the_last_pause / RATE)

    run(main)


def test_many_flows_together_keep_to_the_limit_and_get_equal_turns() -> None:
    async def main() -> None:
        limit, begun, log = RateLimit(RATE), trio.current_time(), list[str]()
        async with trio.open_nursery() as nursery:
            for name in "abcd":
                nursery.start_soon(move, limit, [100] * 25, log, name)
        assert trio.current_time() - begun == pytest.approx((9900 - BURST_S * RATE) / RATE)
        for end in range(4, 101, 4):
            assert {log[:end].count(name) for name in "abcd"} == {end // 4}

    run(main)


def test_control_traffic_never_waits_and_bulk_pays_for_it() -> None:
    async def main() -> None:
        control = 0
        limit, begun = RateLimit(RATE, lambda: control), trio.current_time()
        await move(limit, [100] * 10)
        control = 5000
        await move(limit, [100, 100])
        assert trio.current_time() - begun == pytest.approx((1100 + 5000 - BURST_S * RATE) / RATE)

    run(main)


def test_without_a_limit_nothing_waits() -> None:
    async def main() -> None:
        await move(RateLimit(), [1 << 40] * 10)
        assert trio.current_time() == 0.0

    run(main)


def test_frames_are_small_where_the_limit_is_low() -> None:
    assert RateLimit().frame(1 << 18) == 1 << 18 == RateLimit(1e9).frame(1 << 18)
    assert RateLimit(1e6).frame(1 << 18) == 100_000
    assert RateLimit(1.0).frame(1 << 18) == 16 << 10


def test_a_gauge_shows_the_best_window_of_all_sockets_together() -> None:
    gauge = Gauge()
    assert gauge.up_bytes_per_s == gauge.down_bytes_per_s == 0.0
    gauge.read({"a": SocketState(0.01, 10**9, 0), "b": SocketState(0.01, 0, 0)}, 10.0, inf)
    assert gauge.up_bytes_per_s == 0.0, "what a socket did before it was first seen has no time"
    gauge.read({"a": SocketState(0.01, 10**9 + 3_000_000, 5), "b": SocketState(0.01, 1_000_000, 0)}, 12.0, inf)
    assert gauge.up_bytes_per_s == 2_000_000.0 and gauge.down_bytes_per_s == 0.0
    gauge.read({"b": SocketState(0.01, 2_000_000, 4_000_000)}, 13.0, inf)
    assert gauge.up_bytes_per_s == 2_000_000.0 and gauge.down_bytes_per_s == 4_000_000.0


def test_what_is_known_and_what_is_allowed() -> None:
    assert RateLimit(5.0).at_most(0.0) == 5.0 == RateLimit(5.0).at_most(9.0)
    assert RateLimit(5.0).at_most(3.0) == 3.0 == RateLimit().at_most(3.0)
    assert RateLimit().at_most(0.0) == 0.0


def test_long_ways_get_several_sockets() -> None:
    assert [lanes_for(rtt) for rtt in (0.0, 0.001, 0.02, 0.045, 0.085, 3.0)] == [1, 1, 2, 3, MAX_LANES, MAX_LANES]


def test_a_line_is_shared_out_equally_if_it_is_known_and_not_too_fast() -> None:
    assert pace(12e6, 3) == pytest.approx(12e6 * GROWTH / 3)
    assert pace(0.0, 3) == pace(PACED_BELOW, 3) == pace(12e6, 0) == inf


def test_a_line_is_known_only_from_windows_in_which_it_was_always_used_and_nothing_else_held_back() -> None:
    gauge, sent, known = Gauge(), 0, []
    for second, (size, offered) in enumerate(
        [(0, 0.0), (10_000_000, 0.0), (10_000_000, inf), (10_300_000, 10.4e6), (5_000_000, 10.7e6)]
    ):
        sent += size
        gauge.read({"a": SocketState(0.0, sent, 0)}, float(second), offered)
        known.append(gauge.line_bytes_per_s)
    assert known == [0, 0, 10_000_000, 10_300_000, 10_300_000]
    gauge.read({}, FORGET_S + 10.0, 0.0)
    assert gauge.line_bytes_per_s == 0, "that is long ago"


# -- giving way -----------------------------------------------------------------------------------------------------------


def test_what_is_not_urgent_gives_way_but_not_for_long() -> None:
    async def dial(peer: PeerId) -> Link:
        raise AssertionError("nothing is sent")

    async def waits(spare: Sending) -> float:
        begun = trio.current_time()
        await spare.give_way()
        return trio.current_time() - begun

    async def main() -> None:
        urgent = Sending(dial, RateLimit())
        spare = Sending(dial, RateLimit(), first=urgent)
        assert await waits(spare) == 0 and await waits(urgent) == 0
        lane = Lane(urgent, PeerId("somebody"))
        urgent._lanes[PeerId("somebody")] = [lane]
        async with trio.open_nursery() as nursery:
            push = _Push(b"", memoryview(b"urgent"))
            nursery.start_soon(lane.carry, push)
            await trio.testing.wait_all_tasks_blocked()
            assert await waits(spare) == WAY_S and await waits(urgent) == 0
            lane._waiting.clear()
            push.end(None)
            urgent.turned()
        assert await waits(spare) == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
