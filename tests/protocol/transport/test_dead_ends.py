"""Connections whose end nobody has announced: addresses that are gone, and peers that answer no more."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import psutil
import pytest
import trio

from protocol.transport.addresses import ANY_IPV4, Address, address_of, own_addresses
from protocol.transport.connections import REPLACED_S, SILENT_S, DeadEnds, Silences
from protocol.transport.library import library_id
from protocol.transport.sockets import local_end
from protocol.wire.identity import PeerId
from tests.protocol.transport.recorder import PATIENCE_S, Recorder, network, pair, stack, until


@pytest.fixture(autouse=True)
def _many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often: how long a connection has to be silent stays as it is."""
    monkeypatch.setattr("protocol.transport.connections.LOOK_S", OFTEN_S)


OFTEN_S = 0.05
MOVED = "127.0.0.2"
OTHERS: set[Address] = {IPv4Address("192.0.2.1")}
HERE: set[Address] = {IPv4Address("127.0.0.1")}


def test_a_connection_is_silent_while_something_is_on_its_way_and_nothing_is_acknowledged() -> None:
    known = Silences()
    assert [known.silent_s("a", 10, unacked, now) for unacked, now in ((0, 0.0), (0, 50.0), (3, 60.0), (4, 65.0))] == [
        0.0,
        0.0,
        10.0,
        15.0,
    ]
    assert known.silent_s("a", 11, 4, 66.0) == 0.0, "some of it was"
    assert known.silent_s("b", 0, 1, 70.0) == 0.0
    known.keep(["b"])
    assert known.silent_s("a", 11, 4, 80.0) == 0.0 and known.silent_s("b", 0, 1, 80.0) == 10.0


def test_addresses_of_this_computer_are_known_in_each_form() -> None:
    here = own_addresses()
    assert {address_of("127.0.0.1"), address_of("::ffff:127.0.0.1")} <= here
    assert not here & {address_of("192.0.2.1"), address_of("2001:db8::1")}
    assert address_of("fe80::1%eth0") == address_of("fe80::1")
    assert address_of("02:42:ac:11:00:02") is None and None not in here


def test_a_system_that_does_not_list_its_addresses_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError

    monkeypatch.setattr(psutil, "net_if_addrs", refuse)
    assert own_addresses() == set()


@pytest.mark.parametrize("first", [OTHERS, HERE], ids=["never listed", "then no list can be read"])
async def test_only_an_address_that_was_listed_and_is_missing_in_a_later_list_is_gone(first: set[Address]) -> None:
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        looks = Looks(stack(two).dead_ends, first, OTHERS if first is OTHERS else set())
        await looks.made(3)
        assert [len(stack(end).host.get_network().connections) for end in (one, two)] == [1, 1]
        assert not looks.ends._ending


class Looks:
    """What `ends` finds listed at its first look, and afterwards."""

    def __init__(self, ends: DeadEnds, first: set[Address], later: set[Address]) -> None:
        self.ends, self._first, self._later, self._made = ends, first, later, 0
        ends.addresses = self._next
        ends._ours = set()  # it has looked before

    def _next(self) -> set[Address]:
        self._made += 1
        return self._first if self._made == 1 else self._later

    async def made(self, looks: int) -> None:
        """So many looks were taken."""
        await until(lambda: self._made >= looks)


async def test_a_connection_is_asked_for_a_sign_of_life_when_its_peer_has_connected_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If nothing were under way on it, it would never count as dead, and the peer's bulk sockets would stay as they are."""
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        connections = stack(one).host.get_network().connections
        [old] = connections[library_id(two.peer_id)]
        muxed: Any = old.muxed_conn
        asked, open_stream = trio.Event(), muxed.open_stream

        async def opened() -> object:
            asked.set()
            return await open_stream()

        monkeypatch.setattr(muxed, "open_stream", opened)
        two.remember(one.addresses())
        assert await stack(two).dialer.renew(one.peer_id)
        with trio.fail_after(PATIENCE_S):
            await asked.wait()
        ends = stack(one).dead_ends
        assert ends._replaced() == [], "it is asked once"
        assert old in connections[library_id(two.peer_id)]


@pytest.mark.slow
async def test_a_peer_whose_address_is_gone_connects_anew_and_is_never_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    assert REPLACED_S < SILENT_S
    a, b = Recorder(), Recorder()
    async with network(a) as one, network(b, host=ANY_IPV4) as two:
        port = two.addresses()[0].split("/tcp/")[1].split("/")[0]
        one.remember([f"/ip4/{MOVED}/tcp/{port}/p2p/{two.peer_id}"])
        await b.until(lambda: b.connected)
        await a.until(lambda: a.connected)
        two.remember(one.addresses())
        [old] = stack(two).host.get_network().connections[library_id(one.peer_id)]
        assert local_end(old) == (MOVED, int(port))
        gone = address_of(MOVED)
        assert gone is not None
        ends, moving = stack(two).dead_ends, [two.is_moving()]
        renew = ends._renew

        async def renewed(peer: PeerId) -> bool:
            moving.append(two.is_moving())
            return await renew(peer)

        monkeypatch.setattr(ends, "_renew", renewed)
        Looks(ends, {gone}, OTHERS)
        with trio.fail_after(PATIENCE_S):
            while old in stack(two).host.get_network().connections[library_id(one.peer_id)]:
                await trio.sleep(OFTEN_S / 10)
            while len(stack(one).host.get_network().connections[library_id(two.peer_id)]) > 1:
                await trio.sleep(OFTEN_S / 10)
            while stack(two).dead_ends._ending:  # what ran over the old connection ends after it
                await trio.sleep(OFTEN_S / 10)
        for end, other in ((one, two), (two, one)):
            assert await end.request(other.peer_id, "echo", b"still here", timeout_s=PATIENCE_S) == b"still here"
            await end.push(other.peer_id, b"a part", memoryview(b"bytes"), timeout_s=PATIENCE_S)
        await one.publish(b"from one")
        await two.publish(b"from two")
        await a.until(lambda: b"from two" in a.gossip)
        await b.until(lambda: b"from one" in b.gossip)
        assert [*moving, two.is_moving()] == [False, True, False]
        assert (len(a.connected), b.connected, a.disconnected, b.disconnected) == (1, [one.peer_id] * 2, [], [])
