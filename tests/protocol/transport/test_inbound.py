"""Inbound connections of a real network on loopback: thousands open and close, some stay silent, and members get in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest
import trio

from protocol.events.events import Event, Notice
from protocol.transport.inbound import address_group
from protocol.transport.inbound_policy import InboundLimits, Stage
from protocol.transport.library import agent_version
from protocol.transport.network import Libp2pNetwork, open_network
from protocol.transport.rate_limit import Allowance
from protocol.transport.streams import agreement, open_stream
from protocol.wire.identity import Identity
from tests.protocol.transport.outsiders import HALF_A_HANDSHAKE, socket_to, stranger_to
from tests.protocol.transport.recorder import LOOPBACK, PATIENCE_S, RUN, Recorder, network, stack, until

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


async def stay_silent(address: str) -> None:
    """For as long as it is let."""
    try:
        async with stranger_to(address) as stranger:
            await stranger.closed()
    except Exception:  # noqa: BLE001 - closed in the middle of the handshake, by which the library raises anything
        return


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


async def test_connections_without_a_greeting_are_closed_and_reported_and_a_member_stays() -> None:
    a, told, member = Recorder(), list[Event](), Identity.generate()
    short = replace(AT_ANY_PACE, greeting_s=1.0, first_byte_s=1.0)
    opening = open_network(Identity.generate(), RUN, a, replace(LOOPBACK, inbound=short), emit=told.append)
    async with opening as one, network(Recorder(), member) as two:
        a.end = one
        two.remember(one.addresses())
        await a.until(lambda: len(a.connected) > len(a.disconnected))  # it may take several tries on a busy machine
        before, address = len(a.disconnected), one.addresses()[0]
        async with socket_to(address) as silent, socket_to(address) as handshaking:
            await handshaking.send_all(HALF_A_HANDSHAKE)
            with trio.fail_after(PATIENCE_S):
                await stay_silent(address)
                for sock in (silent, handshaking):
                    await until_closed(sock)
                while not (closed := [event for event in told if isinstance(event, Notice)]):
                    await trio.sleep(0.01)
        assert closed[0].details["silent"] >= 1 and closed[0].details["busiest"] == "127.0.0.1"
        assert one.connected() == [member.peer_id] and len(a.disconnected) == before
        assert await two.request(one.peer_id, "echo", b"still", timeout_s=PATIENCE_S) == b"still"


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


async def until_closed(sock: trio.SocketStream) -> None:
    try:
        while await sock.receive_some(4096):
            pass
    except trio.BrokenResourceError:
        return
