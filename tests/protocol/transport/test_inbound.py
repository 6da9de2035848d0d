"""Which inbound connections of a peer are served and which are closed, by the test's clock and on loopback sockets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest
import trio

from protocol.events.events import NoticeCode
from protocol.transport.inbound import EVENT_EVERY_S, CloseSummary, address_group
from protocol.transport.inbound_policy import (
    MAX_ADDRESSES_PER_PEER,
    MAX_PEERS,
    MAX_REMEMBERED,
    CloseReason,
    InboundDecision,
    InboundLimits,
    InboundPolicy,
    Stage,
)
from protocol.transport.library import agent_version
from protocol.transport.limits import Allowance
from protocol.transport.network import Libp2pNetwork
from protocol.transport.streams import agreement, open_stream
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.outsiders import HALF_A_HANDSHAKE, socket_to, stranger_to
from tests.protocol.transport.recorder import PATIENCE_S, Recorder, network, stack, until

LIMITS = replace(InboundLimits(), handshakes=Allowance(1000, math.inf, 10))
"""With handshakes that cost nothing."""


class Driver:
    """A policy, its clock, and what became of each connection."""

    def __init__(self, limits: InboundLimits = LIMITS) -> None:
        self.now = 0.0
        self.members = TheseMembers()
        self.policy = InboundPolicy(limits, 0.0, self.members)
        self.inside: set[int] = set()
        self.closed: dict[int, CloseReason] = {}
        self.again_at = math.inf
        self._next = 0

    def step(self, passed_s: float = 0.0) -> InboundDecision:
        self.now += passed_s
        decision = self.policy.step(self.now)
        self.inside |= set(decision.handshake)
        self.inside -= set(decision.close)
        self.closed |= decision.close
        self.again_at = decision.again_at
        return decision

    def open(self, address: str = "there") -> int:
        self._next += 1
        self.policy.opened(self._next, address, self.now)
        return self._next

    def queue(self, address: str = "there") -> int:
        """A connection that sends a byte at once."""
        number = self.open(address)
        self.policy.received(number, self.now)
        return number

    def crowd(self, count: int, address: str = "there") -> list[int]:
        numbers = [self.queue(address) for _ in range(count)]
        self.step()
        return numbers

    def leave(self, number: int) -> None:
        self.policy.closed(number)
        self.inside.discard(number)

    def greeted(self, name: str, address: str = "home") -> int:
        number = self.queue(address)
        self.step()
        assert number in self.inside
        self.policy.authenticated(number, PeerId(name), self.now)
        self.policy.welcome(PeerId(name))
        return number


def test_a_stranger_that_does_not_greet_in_time_is_closed_and_a_greeted_peer_stays() -> None:
    driver = Driver()
    silent, greeted = driver.queue(), driver.greeted("member")
    assert driver.step().close == {} and driver.again_at == LIMITS.greeting_s
    driver.step(LIMITS.greeting_s - 0.01)
    assert silent in driver.inside
    assert driver.step(0.01).close == {silent: CloseReason.SILENT}
    driver.step(1e6)
    assert greeted in driver.inside and driver.again_at == math.inf


def test_a_connection_that_sends_nothing_gets_no_handshake_and_is_closed() -> None:
    driver = Driver()
    opened = [driver.open() for _ in range(3)]
    assert driver.step().handshake == []
    driver.policy.received(opened[0], driver.now)
    assert driver.step().handshake == opened[:1]
    assert driver.step(LIMITS.first_byte_s).close == dict.fromkeys(opened[1:], CloseReason.SILENT)


def test_strangers_are_limited_for_each_address_and_for_all_together() -> None:
    driver = Driver()
    driver.crowd(200)
    assert len(driver.inside) == LIMITS.strangers_per_address
    for number in range(100):
        driver.crowd(2, f"address {number}")
    assert len(driver.inside) == LIMITS.strangers == driver.policy.count(Stage.STRANGER)


def test_when_all_places_are_taken_the_oldest_stranger_of_the_busiest_address_is_closed() -> None:
    driver = Driver()
    many, few = driver.crowd(LIMITS.strangers_per_address), driver.crowd(LIMITS.strangers // 4, "elsewhere")
    for number in range(LIMITS.strangers - len(many) - len(few)):
        driver.crowd(1, f"address {number}")
    newcomer = driver.queue("fresh")
    assert driver.step().handshake == [], "they have just come, and may be about to greet"
    decision = driver.step(LIMITS.protected_s)
    assert decision.handshake == [newcomer] and decision.close == {many[0]: CloseReason.CROWDED}


def test_greeted_peers_take_no_place_of_strangers_though_all_share_an_address() -> None:
    driver = Driver()
    greeted = [driver.greeted(f"peer {number}") for number in range(2 * LIMITS.strangers_per_address)]
    strangers = driver.crowd(LIMITS.strangers_per_address, "home")
    driver.step()
    assert driver.inside == {*greeted, *strangers} and not driver.closed


def test_a_member_gets_a_handshake_at_once_from_an_address_it_has_used_though_all_places_are_taken() -> None:
    driver = Driver()
    driver.leave(driver.greeted("member", "its home"))
    for number in range(LIMITS.strangers + LIMITS.queue):
        driver.queue(f"address {number}")
        driver.step()
    member = driver.queue("its home")
    assert member in driver.step().handshake
    driver.policy.authenticated(member, PeerId("member"), driver.now)
    driver.step(1e6)
    assert driver.inside == {member}, "it has greeted before"


def test_a_newcomer_gets_a_handshake_within_the_time_that_strangers_are_protected() -> None:
    driver = Driver()
    for _ in range(50):  # 254 strangers from one address that come back as soon as they are closed
        gone = 254 - driver.policy.count(*Stage)
        driver.crowd(gone)
        driver.step(0.1)
    newcomer = driver.queue()
    began = driver.now
    while newcomer not in driver.inside:
        assert newcomer not in driver.closed and driver.now < began + LIMITS.queued_s
        driver.crowd(254 - driver.policy.count(*Stage))
        driver.step(0.1)
    assert driver.now - began < 4 * LIMITS.protected_s


def test_a_crowd_at_a_trusted_address_does_not_keep_others_out() -> None:
    driver = Driver(replace(LIMITS, handshakes=Allowance(10, math.inf, 1)))
    driver.greeted("member", "trusted")
    for _ in range(20):
        driver.crowd(2 * LIMITS.queue, "trusted")
        driver.step(0.1)
    newcomer = driver.queue("fresh")
    driver.crowd(2 * LIMITS.queue, "trusted")
    driver.step(0.1)
    assert newcomer in driver.inside


def test_the_queue_is_bounded_and_drops_silent_connections_and_then_the_newest_of_the_busiest_address() -> None:
    driver = Driver(replace(LIMITS, handshakes=Allowance(1e-9, math.inf, 0)))  # nobody comes in
    silent, first = [driver.open() for _ in range(10)], driver.queue("elsewhere")
    crowd = driver.crowd(LIMITS.queue)
    assert driver.closed == dict.fromkeys([*silent, crowd[-1]], CloseReason.CROWDED)
    assert driver.policy.count(Stage.QUEUED) == LIMITS.queue and first not in driver.closed
    driver.step(LIMITS.queued_s)
    assert driver.policy.count(*Stage) == 0


def test_handshakes_keep_their_rate_and_go_by_address() -> None:
    driver = Driver(replace(LIMITS, handshakes=Allowance(10, math.inf, 1)))
    driver.crowd(50)
    assert len(driver.inside) == 10
    other = driver.queue("elsewhere")
    assert driver.step(0.1).handshake == [other]
    assert len(driver.step(0.5).handshake) == 5


def test_fewer_handshakes_begin_while_the_processor_is_overloaded() -> None:
    limits = replace(LIMITS, handshakes=Allowance(10, math.inf, 1))
    driver = Driver(limits)
    for _ in range(20):
        driver.queue()
    assert len(driver.policy.step(0.0, overloaded=True).handshake) == 10 / limits.overload_price
    assert not driver.policy.step(0.4, overloaded=True).handshake
    assert len(driver.policy.step(0.5, overloaded=True).handshake) == 1
    assert len(driver.policy.step(1.0).handshake) == 5


def test_the_oldest_connections_of_one_peer_are_closed() -> None:
    driver = Driver()
    numbers = []
    for _ in range(LIMITS.per_peer + 2):
        numbers.append(driver.queue())
        driver.step()
        driver.policy.authenticated(numbers[-1], PeerId("one key"), driver.now)
        driver.step()
    assert driver.closed == dict.fromkeys(numbers[:2], CloseReason.SURPLUS)


def test_greeted_peers_are_limited_too_and_the_busiest_address_loses_its_newest() -> None:
    driver = Driver()
    friends = [driver.greeted(f"friend {number}", f"home {number}") for number in range(10)]
    crowd = [driver.greeted(f"key {number}", "hall") for number in range(LIMITS.greeted)]
    driver.step()
    assert driver.closed == dict.fromkeys(crowd[-10:], CloseReason.CROWDED) and driver.inside.issuperset(friends)


def test_a_revoked_peer_is_a_stranger_again() -> None:
    driver = Driver()
    driver.policy.closed(driver.greeted("member"))
    driver.policy.revoke(PeerId("member"))
    number = driver.queue()
    driver.step()
    driver.policy.authenticated(number, PeerId("member"), driver.now)
    assert driver.step(LIMITS.greeting_s).close == {number: CloseReason.SILENT}


@pytest.mark.slow
def test_what_is_remembered_is_bounded() -> None:
    driver = Driver()
    for number in range(MAX_REMEMBERED + 100):
        driver.policy.closed(driver.greeted(f"peer {number}", f"address {number}"))
        driver.step(0.01)
    assert len(driver.policy._greeted) == MAX_REMEMBERED and len(driver.policy._trusted) == MAX_PEERS


def test_a_crowd_that_has_greeted_from_anywhere_closes_no_member_and_a_member_always_gets_in() -> None:
    driver = Driver()
    driver.members.peers = {PeerId("member"), PeerId("late member")}
    member = driver.greeted("member", "its home")
    crowd = [driver.greeted(f"key {number}", f"address {number}") for number in range(300)]
    late = driver.greeted("late member", "another home")
    driver.step()
    assert {member, late} <= driver.inside and driver.policy.count(Stage.GREETED) == LIMITS.greeted
    assert set(driver.closed) < set(crowd)
    driver.greeted("key again", "its home")
    driver.step()
    assert {member, late} <= driver.inside


@pytest.mark.slow
def test_one_key_that_comes_from_thousands_of_addresses_makes_few_of_them_trusted() -> None:
    driver = Driver()
    driver.members.peers = {PeerId("member")}
    driver.leave(driver.greeted("member", "its home"))
    for number in range(4200):
        driver.leave(driver.greeted("one key", f"address {number}"))
        driver.step(0.05)
    trusted = driver.policy._trusted
    assert len(trusted) == 1 + MAX_ADDRESSES_PER_PEER
    for number in range(2 * MAX_PEERS):
        driver.leave(driver.greeted(f"key {number}", f"other {number}"))
        driver.step(0.05)
    assert trusted.rank("its home") == 2 and trusted.rank(f"other {2 * MAX_PEERS - 1}") == 1 and trusted.rank("other 0") == 0
    assert len(trusted) == 1 + MAX_PEERS


def test_events_are_sums_and_come_once_a_minute() -> None:
    summary, told = CloseSummary(), []
    for tick in range(10 * int(EVENT_EVERY_S)):
        summary.count("busy", CloseReason.SILENT)
        summary.count(f"address {tick}", CloseReason.CROWDED)
        summary.count("busy", CloseReason.SURPLUS)
        told += [event for event in [summary.take(float(tick))] if event is not None]
    assert {event.code for event in told} == {NoticeCode.STRANGERS_CLOSED}
    assert told[0].details == {"silent": 1, "crowded": 1, "busiest": "busy"}
    assert told[1].details == {"silent": 60, "crowded": 60, "busiest": "busy"}
    assert len(told) == 10
    assert summary.take(1e6) is not None and summary.take(2e6) is None and summary.due_at == math.inf


AT_ANY_PACE = replace(InboundLimits(), handshakes=Allowance(10_000, math.inf, 1))
HANDSHAKES = 20
"""One connection in so many goes through with its handshake; the others end earlier."""


async def empty(end: Libp2pNetwork) -> None:
    """Until nobody from outside is here."""
    await until(lambda: not stack(end).inbound.count(*Stage))


async def come_and_go(address: str, number: int) -> None:
    """One connection, ended by its maker at one point or another."""
    if number % HANDSHAKES == 0:
        async with stranger_to(address):
            return
    async with socket_to(address) as sock:
        if number % 3:
            await sock.send_all(HALF_A_HANDSHAKE if number % 3 == 1 else bytes(range(256)))


async def many(address: str, count: int, at_once: int) -> None:
    numbers = iter(range(count))

    async def one_after_the_other() -> None:
        for number in numbers:
            await come_and_go(address, number)

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(one_after_the_other)


@pytest.mark.slow
async def test_2000_connections_leave_nothing_behind() -> None:
    a = Recorder()
    async with network(a, limits=AT_ANY_PACE) as one:
        address = one.addresses()[0]
        await many(address, 100, 10)
        await empty(one)
        process = psutil.Process()
        files, tasks = process.num_fds(), trio.lowlevel.current_statistics().tasks_living
        await many(address, 1000, 1)
        await many(address, 1000, 50)
        await empty(one)
        with trio.fail_after(PATIENCE_S):
            while (
                trio.lowlevel.current_statistics().tasks_living > tasks
                or stack(one).host.get_network().connections
                or process.num_fds() > files
            ):
                await trio.sleep(0.01)
        assert not a.connected
        async with network(Recorder()) as two:
            two.remember([address])
            await a.until(lambda: a.connected == [two.peer_id])


async def test_a_member_that_comes_back_need_not_greet_again() -> None:
    a, member = Recorder(), Identity.generate()
    async with network(a) as one:
        async with network(Recorder(), member) as two:
            two.remember(one.addresses())
            await a.until(lambda: a.connected == [member.peer_id])
        await a.until(lambda: a.disconnected == [member.peer_id])
        async with stranger_to(one.addresses()[0], identity=member) as again:
            await a.until(lambda: len(a.connected) == 2)
            with trio.fail_after(PATIENCE_S):
                while not stack(one).inbound.count(Stage.GREETED):
                    await trio.sleep(0.01)
                one.forget(member.peer_id)
                await again.closed()


def test_what_counts_as_one_address() -> None:
    assert address_group("192.0.2.1") == address_group("::ffff:192.0.2.1") == "192.0.2.1"
    assert address_group("2001:db8::1") == address_group("2001:db8::ffff:2%eth0") == "2001:db8::/64"
    assert address_group(None) == address_group("nonsense") == "unknown"


async def test_identify_says_what_program_this_is() -> None:
    from libp2p.identity.identify.identify import ID as IDENTIFY
    from libp2p.identity.identify.identify import parse_identify_response

    a = Recorder()
    async with network(a) as one, network(Recorder()) as two:
        one.remember(two.addresses())
        await a.until(lambda: a.connected)
        stream = await open_stream(stack(one).host, two.peer_id, IDENTIFY)
        await agreement(stream, IDENTIFY)
        found = parse_identify_response(await read_all(stream.read))
        assert found.agent_version == agent_version() and found.agent_version.startswith("manyhands/")
        assert found.protocol_version == "manyhands/1"
        assert not [protocol for protocol in found.protocols if "push" in protocol]


async def read_all(read: Callable[[], object]) -> bytes:
    data = b""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                more = await read()  # type: ignore[misc]
            except Exception:  # noqa: BLE001 - the end of a stream is one of several exceptions
                return data
            data += more
