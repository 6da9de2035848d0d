"""The limit on traffic, under virtual time."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing

from protocol.transport.rate_limit import BURST_S, FRAMES_A_SECOND, Priority, RateLimit

pytestmark = pytest.mark.usefixtures("virtual_time")

RATE = 1000.0
WINDOW_S = 30.0


class Control:
    """Control traffic so far."""

    def __init__(self) -> None:
        self.bytes = 0


class Line:
    """What moved, and when."""

    def __init__(self) -> None:
        self.moved: list[tuple[float, int]] = []

    def most(self, window_s: float) -> int:
        """Bytes of the fullest window that begins when something moves."""
        return max(sum(size for at, size in self.moved if begin <= at < begin + window_s) for begin, _ in self.moved)


async def move(limit: RateLimit, pieces: list[int], log: list[str] | None = None, name: str = "") -> None:
    for piece in pieces:
        await limit.pay(piece)
        if log is not None:
            log.append(name)


async def test_a_flow_keeps_to_the_limit() -> None:
    limit, begun = RateLimit(RATE), trio.current_time()
    await move(limit, [100] * 100)
    moved_before_the_last_pause = 9900 - BURST_S * RATE
    assert trio.current_time() - begun == pytest.approx(moved_before_the_last_pause / RATE)


@pytest.mark.parametrize("changed", [10 * RATE, RATE / 10, None])
async def test_a_limit_that_changes_holds_at_once_also_for_what_waits(changed: float | None) -> None:
    limit, moved = RateLimit(RATE), list[float]()

    async def flow() -> None:
        for _ in range(100):
            await limit.pay(100)
            moved.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flow)
        await trio.sleep(2.05)
        before, at = len(moved), trio.current_time()
        limit.change(changed)
    after = [when - at for when in moved[before:]]
    pace_s = 100 / changed if changed else 0.0
    assert 18 <= before <= 25 and len(after) == 100 - before
    assert after[0] == pytest.approx(0.0, abs=1e-6), "what moved before is paid for"
    assert after[-1] == pytest.approx(pace_s * (len(after) - 1), abs=1e-6)


async def test_a_limit_that_is_set_later_counts_from_then_on() -> None:
    control = Control()
    limit, begun = RateLimit(None, lambda: control.bytes), trio.current_time()
    await move(limit, [10_000] * 100)
    control.bytes = 50_000
    assert trio.current_time() == begun
    limit.change(RATE)
    await move(limit, [100] * 11)
    assert trio.current_time() - begun == pytest.approx(1.0 - BURST_S)


async def test_many_flows_together_keep_to_the_limit_and_get_equal_turns() -> None:
    limit, begun, log = RateLimit(RATE), trio.current_time(), list[str]()
    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(move, limit, [100] * 25, log, name)
    assert trio.current_time() - begun == pytest.approx((9900 - BURST_S * RATE) / RATE)
    for end in range(4, 101, 4):
        assert {log[:end].count(name) for name in "abcd"} == {end // 4}


async def test_control_traffic_never_waits_and_bulk_pays_for_it() -> None:
    control = 0
    limit, begun = RateLimit(RATE, lambda: control), trio.current_time()
    await move(limit, [100] * 10)
    control = 5000
    await move(limit, [100, 100])
    assert trio.current_time() - begun == pytest.approx((1100 + 5000 - BURST_S * RATE) / RATE)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
async def test_no_window_of_30_seconds_has_5_percent_more_than_the_limit(seed: int) -> None:
    """Flows that come and go, large answers, and control traffic that never waits, all counted together."""
    random, line, control, rate = Random(seed), Line(), Control(), 1e6
    limit = RateLimit(rate, lambda: control.bytes)

    async def push(priority: Priority) -> None:
        while trio.current_time() < 100:
            if random.random() < 0.05:
                await trio.sleep(random.expovariate(0.3))
            size = random.randint(1, int(rate / FRAMES_A_SECOND))
            await limit.pay(size, priority)
            line.moved.append((trio.current_time(), size))

    async def answer() -> None:
        while trio.current_time() < 100:
            await trio.sleep(random.expovariate(1.0))
            for _ in range(random.randint(1, 8)):
                await limit.pay_ahead(64 << 10)
                line.moved.append((trio.current_time(), 64 << 10))
                control.bytes += 64 << 10

    async def speak() -> None:
        while trio.current_time() < 100:
            await trio.sleep(random.expovariate(20.0))
            size = random.randint(1, 4096)
            line.moved.append((trio.current_time(), size))
            control.bytes += size

    async with trio.open_nursery() as nursery:
        for priority in (Priority.PUSH, Priority.PUSH, Priority.SPARE):
            nursery.start_soon(push, priority)
        nursery.start_soon(answer)
        nursery.start_soon(speak)
    assert line.most(WINDOW_S) <= 1.05 * rate * WINDOW_S


async def test_answers_go_first_and_what_is_spare_goes_last() -> None:
    limit, log = RateLimit(RATE), list[str]()
    await limit.pay(1000)

    async def one(priority: Priority) -> None:
        await limit.pay(100, priority)
        log.append(priority.name)

    async with trio.open_nursery() as nursery:
        for priority in (Priority.SPARE, Priority.PUSH, Priority.ANSWER):
            nursery.start_soon(one, priority)
            await trio.testing.wait_all_tasks_blocked()
    assert log == ["ANSWER", "PUSH", "SPARE"]


async def test_what_is_spare_is_not_starved() -> None:
    limit, done = RateLimit(RATE), trio.Event()

    async def urgent() -> None:
        while not done.is_set():
            await limit.pay(100)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(urgent)
        await trio.sleep(10)
        begun = trio.current_time()
        await limit.pay(100, Priority.SPARE)
        assert Priority.SPARE.value <= trio.current_time() - begun <= Priority.SPARE.value + 9 * 0.1
        done.set()


async def test_whoever_gives_up_waiting_holds_nobody_up() -> None:
    limit = RateLimit(RATE)
    await limit.pay(1000)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.1):
            nursery.start_soon(move, limit, [100])
            await limit.pay(10_000, Priority.ANSWER)
    assert trio.current_time() == pytest.approx((1000 - BURST_S * RATE) / RATE)


async def test_what_is_paid_ahead_is_not_paid_again_when_it_moves() -> None:
    control = Control()
    limit, begun = RateLimit(RATE, lambda: control.bytes), trio.current_time()
    for _ in range(10):
        await limit.pay_ahead(100)
        control.bytes += 110  # with what the library adds
    await limit.pay(1)
    assert trio.current_time() - begun == pytest.approx((1100 - BURST_S * RATE) / RATE)


def test_frames_are_small_where_the_limit_is_low() -> None:
    assert RateLimit().frame(1 << 18) == 1 << 18 == RateLimit(1e9).frame(1 << 18)
    assert RateLimit(1e6).frame(1 << 18) == 100_000
    assert RateLimit(1.0).frame(1 << 18) == 16 << 10
    assert RateLimit(1.0).frame(100) == 100
