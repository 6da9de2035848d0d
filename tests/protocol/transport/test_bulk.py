"""The bulk data plane between two hosts on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from protocol.transport import bulk as bulk_module
from protocol.transport import bulk_flows as flows_module
from protocol.transport import bulk_link as link_module
from protocol.transport.addresses import ANY_IPV4, has_ipv6
from protocol.transport.bulk_link import FrameKind, Link
from protocol.transport.interface import (
    MAX_PUSH_BYTES,
    Landing,
    LinkMeasurement,
    NetworkError,
    Offence,
    Refused,
    Unreachable,
)
from protocol.transport.library import library_id
from protocol.transport.limits import displaced
from protocol.transport.network import Libp2pNetwork
from protocol.wire.identity import PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.recorder import PATIENCE_S, Recorder, network, pair, stack

DATA = os.urandom(3 << 20)


async def test_pushes_arrive_whole_and_a_refusal_does_not_end_the_connection() -> None:
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        await one.push(two.peer_id, b"first", memoryview(DATA), timeout_s=PATIENCE_S)
        assert b.buffers[b"first"] == DATA and b.finished == [(b"first", True)]
        with pytest.raises(Refused):
            await one.push(two.peer_id, b"no", memoryview(DATA * 8), timeout_s=PATIENCE_S)
        async with trio.open_nursery() as nursery:
            for number in range(4):
                header = b"more %d" % number
                nursery.start_soon(lambda h=header: one.push(two.peer_id, h, memoryview(DATA + h), timeout_s=PATIENCE_S))
        for number in range(4):
            header = b"more %d" % number
            assert b.buffers[header] == DATA + header
        await two.push(one.peer_id, b"empty", memoryview(b""), timeout_s=PATIENCE_S)
        assert a.buffers[b"empty"] == b""
        assert one.traffic().up_bytes >= 5 * len(DATA) and two.traffic().down_bytes >= 5 * len(DATA)
        out, back = one.measured_link(two.peer_id), two.measured_link(one.peer_id)
        assert out.reach == back.reach == "this computer" and out.round_trip_s is not None and out.round_trip_s < 1
        assert out.up_bytes >= 5 * len(DATA) and back.down_bytes >= 5 * len(DATA)
        assert one.measured_link(one.peer_id) == LinkMeasurement(), "not connected"
        with pytest.raises(NetworkError, match="limit"):
            await one.push(two.peer_id, b"", memoryview(bytes(MAX_PUSH_BYTES + 1)), timeout_s=PATIENCE_S)


async def test_a_push_may_be_given_up_while_it_waits_for_the_answer_to_another() -> None:
    class Slow(Recorder):
        """Answers the push "slow" when it is let."""

        def __init__(self) -> None:
            super().__init__()
            self.let = trio.Event()

        async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
            await super().finish_push(peer, header, landing)
            if header == b"slow":
                await self.let.wait()

    a, b = Recorder(), Slow()
    async with pair(a, b) as (one, two):

        async def push(header: bytes) -> None:
            await one.push(two.peer_id, header, memoryview(DATA), timeout_s=PATIENCE_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push, b"slow")
            await b.until(lambda: b.finished)
            async with trio.open_nursery() as given_up:
                given_up.start_soon(push, b"given up")
                await trio.testing.wait_all_tasks_blocked(0.05)
                given_up.cancel_scope.cancel()
            b.let.set()
        await push(b"next")
        assert [header for header, _ in b.finished] == [b"slow", b"next"]


async def test_pushes_for_a_socket_that_is_refused_go_over_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_module, "MAX_LINKS_PER_PEER", 1)
    monkeypatch.setattr(flows_module, "LONG_WAY_S", 0.0)
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        headers = [b"push %d" % number for number in range(8)]
        await one.push(two.peer_id, b"first", memoryview(DATA), timeout_s=PATIENCE_S)
        async with trio.open_nursery() as nursery:
            for header in headers:
                nursery.start_soon(lambda h=header: one.push(two.peer_id, h, memoryview(DATA), timeout_s=PATIENCE_S))
        assert sorted(b.finished) == [(header, True) for header in (b"first", *headers)]
        assert len(stack(one).bulk._sending.links()) == 1


async def test_who_pushes_what_is_wrong_is_refused_and_after_a_while_banned() -> None:
    class Judging(Recorder):
        async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
            await super().finish_push(peer, header, landing)
            raise Offence("not what it was said to be")

    a, b = Recorder(), Judging()
    async with pair(a, b) as (one, two):
        with pytest.raises(Refused):
            await one.push(two.peer_id, b"wrong", memoryview(b"bytes"), timeout_s=PATIENCE_S)
        with pytest.raises(Unreachable):
            for _ in range(100):
                with suppress(Refused):
                    await one.push(two.peer_id, b"wrong", memoryview(b"bytes"), timeout_s=PATIENCE_S)
        assert 5 < len(b.finished) < 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "harm",
    [lambda link: link.abort("killed"), lambda link: link._out.next_nonce()],
    ids=["the sender gives up", "nothing authenticates from here on"],
)
async def test_a_push_that_breaks_half_way_is_reported_and_the_next_one_dials_again(
    monkeypatch: pytest.MonkeyPatch, harm: Callable[[Link], object]
) -> None:
    original, seen = Link.put, list[FrameKind]()

    def put(self: Link, kind: FrameKind, value: int, data: Any) -> None:
        seen.append(kind)
        if seen.count(FrameKind.DATA) == 2 and kind is FrameKind.DATA:
            harm(self)
        original(self, kind, value, data)

    monkeypatch.setattr(Link, "put", put)
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        with pytest.raises(Unreachable):
            await one.push(two.peer_id, b"broken", memoryview(DATA), timeout_s=PATIENCE_S)
        await b.until(lambda: b.finished == [(b"broken", False)])
        await one.push(two.peer_id, b"whole", memoryview(DATA), timeout_s=PATIENCE_S)
        assert b.buffers[b"whole"] == DATA and b.finished[-1] == (b"whole", True)


async def test_grants_that_are_asked_for_without_end_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        bulk, connection = stack(two).bulk, stack(two).host.get_network().connections[library_id(one.peer_id)][0]
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(200):
            await bulk._grant(one.peer_id, connection.muxed_conn, bytes(link_module.NONCE_BYTES))
            bulk._granted.clear()  # as used up
        assert trio.lowlevel.current_statistics().tasks_living <= before + 20  # the network has tasks of its own
        await bulk._grant(one.peer_id, connection.muxed_conn, bytes(link_module.NONCE_BYTES))
        monkeypatch.setattr(bulk_module, "GRANT_S", -1.0)
        for _ in range(3):
            await bulk._grant(one.peer_id, connection.muxed_conn, bytes(link_module.NONCE_BYTES))
        assert len(bulk._granted) == 2, "the good one, and the last of those that are good no more"
        with pytest.raises(Unreachable):
            await one.push(two.peer_id, b"late", memoryview(DATA), timeout_s=PATIENCE_S)


async def test_everything_goes_through_the_one_port_that_is_announced() -> None:
    """Whoever forwards that port at a router has forwarded all there is."""
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        await one.push(two.peer_id, b"there", memoryview(DATA), timeout_s=PATIENCE_S)
        await two.push(one.peer_id, b"back", memoryview(DATA), timeout_s=PATIENCE_S)
        announced = {int(end.addresses()[0].split("/")[4]) for end in (one, two)}
        ours = psutil.Process().net_connections("tcp")
        assert {link.laddr.port for link in ours if link.status == psutil.CONN_LISTEN} == announced


@pytest.mark.parametrize(("family", "loopback"), [("ip4", "127.0.0.1"), *([("ip6", "::1")] if has_ipv6() else [])])
async def test_peers_meet_and_push_at_ipv4_and_ipv6_addresses_of_one_port(family: str, loopback: str) -> None:
    """At those that this computer has: everybody listens at all of them."""
    a, b = Recorder(), Recorder()
    async with network(a, host=ANY_IPV4) as one, network(b, host=ANY_IPV4) as two:
        port = two.addresses()[0].split("/")[4]
        one.remember([f"/{family}/{loopback}/tcp/{port}/p2p/{two.peer_id}"])
        await b.until(lambda: b.connected)
        await a.until(lambda: a.connected)
        await one.push(two.peer_id, b"there", memoryview(DATA), timeout_s=PATIENCE_S)
        assert b.buffers[b"there"] == DATA
        [link] = stack(two).bulk._links[one.peer_id]
        assert link._sock.getpeername()[0] == loopback


async def test_a_member_takes_the_place_of_a_strangers_link_and_no_stranger_takes_a_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_module, "MAX_LINKS", 1)
    a, b, hub = Recorder(), Recorder(), Recorder()
    async with network(a) as stranger, network(b) as member, network(hub) as listener:
        hub.members = {member.peer_id}
        stranger.remember(listener.addresses())
        member.remember(listener.addresses())
        await hub.until(lambda: len(hub.connected) == 2)
        await a.until(lambda: a.connected)
        await b.until(lambda: b.connected)

        async def push(end: Libp2pNetwork, header: bytes) -> None:
            await end.push(listener.peer_id, header, memoryview(DATA), timeout_s=PATIENCE_S)

        await push(stranger, b"stranger's")
        await push(member, b"member's")
        assert list(stack(listener).bulk._links) == [member.peer_id]
        with pytest.raises(Unreachable):
            await push(stranger, b"no room")
        await push(member, b"member's again")
        assert [header for header, _ in hub.finished] == [b"stranger's", b"member's", b"member's again"]


@pytest.mark.parametrize(
    "asker, links, loser",
    [
        ("member", {"x": 1, "y": 1, "other member": 8}, "x"),
        ("member", {"x": 1, "y": 3}, "y"),
        ("member", {"member": 7, "x": 1}, "x"),
        ("member", {"other member": 2}, "other member"),
        ("member", {"other member": 1}, None),
        ("member", {"member": 1, "other member": 2}, None),
        ("stranger", {"x": 8, "member": 8}, "x"),
        ("stranger", {"x": 1, "y": 1}, None),
        ("stranger", {"stranger": 7, "x": 8}, None),
        ("stranger", {"member": 8, "other member": 8}, None),
    ],
)
def test_members_displace_strangers_and_else_who_has_more_gives_way(
    asker: str, links: dict[str, int], loser: str | None
) -> None:
    members = TheseMembers(PeerId("member"), PeerId("other member"))
    assert displaced(PeerId(asker), {PeerId(peer): count for peer, count in links.items()}, members) == loser
