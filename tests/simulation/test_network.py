"""The simulated network: shares of a link, what is lost, who is told, and what a stopped peer does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import pytest
import trio
from trio.testing import MockClock

from protocol.transport.interface import Acceptance, Landing, Refused, Unreachable
from protocol.wire.identity import PeerId
from tests.simulation.network import MemoryNetwork
from tests.simulation.wire import MemoryWire, Weather

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
RATE = 1e6


class Listener:
    """Takes whatever comes, and remembers it."""

    def __init__(self) -> None:
        self.gossip: list[bytes] = []
        self.pushed: list[tuple[bytes, float]] = []
        self.broken = 0
        self.seen: list[str] = []

    def has_member(self, peer: PeerId) -> bool:
        return False

    def has_allowance(self, peer: PeerId) -> bool:
        return False

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        self.gossip.append(data)
        return Acceptance.ACCEPT

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        if kind == "refuse":
            raise Refused("no")
        if kind == "silence":
            await trio.sleep_forever()
        return data[::-1]

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        return None if header == b"unwanted" else Landing(memoryview(bytearray(size)))

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        if landing is None:
            self.broken += 1
        else:
            self.pushed.append((header, trio.current_time()))

    def on_peer_connected(self, peer: PeerId) -> None:
        self.seen.append(f"+{peer}")

    def on_peer_disconnected(self, peer: PeerId) -> None:
        self.seen.append(f"-{peer}")


class Wired:
    """A, B and C on one wire."""

    def __init__(self, nursery: trio.Nursery, weather: Weather) -> None:
        self.wire = MemoryWire(nursery, Random(1), weather)
        self.listeners = {peer: Listener() for peer in (A, B, C)}
        self.ends = {peer: MemoryNetwork(self.wire, peer, listener) for peer, listener in self.listeners.items()}
        for end in self.ends.values():
            self.wire.join(end)
            nursery.start_soon(end.run)


async def push(end: MemoryNetwork, receiver: PeerId, size: int, *, spare: bool = False) -> None:
    await end.push(receiver, b"x", memoryview(bytearray(size)), timeout_s=60, spare=spare)


def on_a_wire(test: Callable[[Wired], Awaitable[None]], weather: Weather | None = None) -> float:
    """Run the test under virtual time; the virtual seconds it took."""

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            await test(Wired(nursery, weather or Weather(latency_s=0.01, jitter_s=0.0, bytes_per_s=RATE)))
            taken = trio.current_time()
            nursery.cancel_scope.cancel()
        return taken - begun

    begun = 0.0
    clock = MockClock(autojump_threshold=0)
    begun = clock.current_time()
    return trio.run(main, clock=clock)


def test_a_question_is_answered_and_a_refusal_has_its_reason() -> None:
    async def test(wired: Wired) -> None:
        assert await wired.ends[A].request(B, "any", b"abc", timeout_s=5) == b"cba"
        with pytest.raises(Refused, match="no"):
            await wired.ends[A].request(B, "refuse", b"", timeout_s=5)
        with pytest.raises(Unreachable, match="5 s"):
            await wired.ends[A].request(B, "silence", b"", timeout_s=5)

    on_a_wire(test)


def test_two_flows_share_a_link_up_and_one_has_it_alone() -> None:
    """2 MB each to B and C through 1 MB/s: 4 s together, half of it alone."""

    async def both(wired: Wired) -> None:
        async with trio.open_nursery() as nursery:
            for peer in (B, C):
                nursery.start_soon(push, wired.ends[A], peer, 2_000_000)
        (_, one), (_, other) = wired.listeners[B].pushed[0], wired.listeners[C].pushed[0]
        assert abs(one - other) < 0.2, "they took turns"

    async def alone(wired: Wired) -> None:
        await push(wired.ends[A], B, 2_000_000)

    assert 4.0 <= on_a_wire(both) <= 4.3
    assert 2.0 <= on_a_wire(alone) <= 2.3


def test_what_is_spare_waits_for_what_is_urgent() -> None:
    """2 MB each to B and C through 1 MB/s; the urgent one comes half a second later, and is there first."""

    async def test(wired: Wired) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(push, wired.ends[A], B, 2_000_000, spare=True))
            await trio.sleep(0.5)
            begun = trio.current_time()
            nursery.start_soon(push, wired.ends[A], C, 2_000_000)
        (_, spare), (_, urgent) = wired.listeners[B].pushed[0], wired.listeners[C].pushed[0]
        assert urgent - begun < 2.3 and urgent < spare

    assert 4.0 <= on_a_wire(test) <= 4.3


def test_two_senders_share_the_receivers_link_down() -> None:
    async def test(wired: Wired) -> None:
        async with trio.open_nursery() as nursery:
            for sender in (A, B):
                nursery.start_soon(push, wired.ends[sender], C, 1_000_000)

    assert 2.0 <= on_a_wire(test) <= 2.3


def test_control_does_not_wait_behind_bulk() -> None:
    async def test(wired: Wired) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push, wired.ends[A], B, 5_000_000)
            await trio.sleep(1)
            before = trio.current_time()
            await wired.ends[A].request(B, "any", b"?", timeout_s=5)
            assert trio.current_time() - before < 0.1
            nursery.cancel_scope.cancel()

    on_a_wire(test)


def test_an_unwanted_push_is_refused_before_its_data() -> None:
    async def test(wired: Wired) -> None:
        with pytest.raises(Refused):
            await wired.ends[A].push(B, b"unwanted", memoryview(bytearray(50_000_000)), timeout_s=5)

    assert on_a_wire(test) < 0.1


def test_one_way_means_that_questions_get_through_and_answers_do_not() -> None:
    async def test(wired: Wired) -> None:
        wired.wire.cut(B, A)
        with pytest.raises(Unreachable):
            await wired.ends[A].request(B, "any", b"", timeout_s=2)
        assert wired.wire.arrivals["request", B] == 1
        await wired.ends[B].publish(b"news")
        await trio.sleep(1)
        assert wired.listeners[A].gossip == [b"news"], "gossip finds a way through C"

    on_a_wire(test)


def test_who_crashes_breaks_its_calls_and_pushes_and_is_missed() -> None:
    async def test(wired: Wired) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push, wired.ends[A], B, 5_000_000)
            await trio.sleep(1)
            wired.wire.crash(A)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert wired.listeners[B].broken == 1
        assert wired.listeners[C].seen[-1] == "-a"
        with pytest.raises(Unreachable):
            await wired.ends[B].request(A, "any", b"", timeout_s=5)

    on_a_wire(test)


def test_gossip_is_lost_doubled_and_overtaken_as_often_as_the_weather_says() -> None:
    async def test(wired: Wired) -> None:
        for number in range(400):
            await wired.ends[A].publish(number.to_bytes(2, "big"))
            await trio.sleep(0.01)
        await trio.sleep(10)
        heard = [int.from_bytes(data, "big") for data in wired.listeners[B].gossip]
        assert 250 < len(set(heard)) < 350, "a quarter is lost"
        assert len(heard) > len(set(heard)) + 40, "some come twice"
        assert heard != sorted(heard), "late ones are overtaken"

    on_a_wire(test, Weather(gossip_loss=0.25, gossip_copies=0.25, gossip_late=0.2))


def test_sides_hear_nothing_of_each_other_until_they_are_healed() -> None:
    async def test(wired: Wired) -> None:
        wired.wire.partition([A], [B, C])
        await wired.ends[A].publish(b"alone")
        await trio.sleep(1)
        assert wired.listeners[B].gossip == [] and wired.listeners[B].seen[-1] == "-a"
        wired.wire.heal()
        await wired.ends[A].publish(b"back")
        await trio.sleep(1)
        assert wired.listeners[B].gossip == [b"back"] and wired.listeners[B].seen[-1] == "+a"

    on_a_wire(test)
