"""Dialling back on real sockets: what is found out, whom nobody can make us dial, and what all askers together can cost."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from protocol.events.events import Event, ReachabilityChanged
from protocol.transport.addresses import LEAST_PORT
from protocol.transport.interface import nothing
from protocol.transport.limits import Allowance, Channel
from protocol.transport.nat.reachability import (
    ASKED,
    FOR_ALL,
    MAX_AT_ONCE,
    AddressVerdict,
    DialBack,
    DialBackAnswer,
    Inquiry,
    Reachability,
    ReachabilityReport,
    chosen,
    judge,
    read_answer,
)
from protocol.transport.network import Libp2pNetwork
from protocol.transport.streams import BadFrame, discard, open_stream
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.recorder import Recorder, network, pair, stack, until

A, B, C, D = (Identity.generate().peer_id for _ in range(4))
HERE, THERE, PRIVATE = "/ip4/11.1.1.1/tcp/4001", "/ip4/11.1.1.1/tcp/5001", "/ip4/192.168.1.2/tcp/4001"
YES, NO, PERHAPS = AddressVerdict.REACHABLE, AddressVerdict.UNREACHABLE, AddressVerdict.UNKNOWN


def back(end: Libp2pNetwork) -> DialBack:
    return stack(end).dial_back


def port_of(end: Libp2pNetwork) -> int:
    return int(end.addresses()[0].split("/")[4])


@asynccontextmanager
async def quiet() -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork]]:
    """A pair that asks nothing by itself."""
    a, b = Recorder(), Recorder()
    async with network(a) as one, network(b) as two:
        for end in (one, two):
            stack(end).inquiry.met_somebody = nothing  # type: ignore[method-assign]
        one.remember(two.addresses())
        await b.until(lambda: b.connected)
        await a.until(lambda: a.connected)
        yield one, two


@asynccontextmanager
async def counted() -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork, list[str], trio.Event]]:
    """A pair; the addresses that the second one dials back, and what lets the dials end."""
    dialled: list[str] = []
    go_on = trio.Event()

    async def answers(address: str) -> bool:
        dialled.append(address)
        await go_on.wait()
        return False

    async with quiet() as (one, two):
        back(two)._answers = answers
        yield one, two, dialled, go_on


async def test_a_peer_that_listens_is_reached_and_at_another_port_it_is_not() -> None:
    async with pair(Recorder(), Recorder()) as (one, two):
        assert await back(one).ask(two.peer_id, port_of(one)) == DialBackAnswer("127.0.0.1", YES)
        assert await back(two).ask(one.peer_id, port_of(two)) == DialBackAnswer("127.0.0.1", YES)
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
            assert await back(one).ask(two.peer_id, bound.getsockname()[1]) == DialBackAnswer("127.0.0.1", NO)
        assert await back(one).ask(two.peer_id, port_of(two)) == DialBackAnswer("127.0.0.1", NO), (
            "somebody else listens there"
        )
        assert await back(one).ask(A, port_of(one)) is None, "not connected"


async def test_an_inquiry_tells_once_what_it_found_and_it_is_then_announced_to_guests() -> None:
    events: list[Event] = []
    async with quiet() as (one, _):
        inquiry, address = stack(one).inquiry, one.addresses()[0].rpartition("/p2p/")[0]
        inquiry._emit = events.append
        await inquiry.inquire()
        await inquiry.inquire()
        assert events == [ReachabilityChanged("reachable", {address: "reachable"})]
        assert one.reachability() == Reachability({address: YES})
        assert one.reached_here(lambda peer: False)[0] == one.addresses()[0]


async def test_only_the_address_that_the_question_comes_from_is_dialled() -> None:
    async with counted() as (one, two, dialled, go_on):
        go_on.set()
        assert await back(one).ask(two.peer_id, 5000) == DialBackAnswer("127.0.0.1", NO)
        assert dialled == [f"/ip4/127.0.0.1/tcp/5000/p2p/{one.peer_id}"]
        assert await back(one).ask(two.peer_id, LEAST_PORT - 1) == DialBackAnswer("127.0.0.1", PERHAPS)
        back(two)._connected = lambda peer: False
        assert await back(one).ask(two.peer_id, 5000) == DialBackAnswer("127.0.0.1", PERHAPS)
        assert len(dialled) == 1


async def test_so_many_dials_run_at_once_for_all_strangers_and_members_have_their_own() -> None:
    async with counted() as (one, two, dialled, go_on), trio.open_nursery() as nursery:
        answers: list[DialBackAnswer | None] = []

        async def ask(port: int) -> None:
            answers.append(await back(one).ask(two.peer_id, port))

        for port in range(5000, 5000 + MAX_AT_ONCE):
            nursery.start_soon(ask, port)
        await until(lambda: len(dialled) >= MAX_AT_ONCE)
        assert await back(one).ask(two.peer_id, 6000) == DialBackAnswer("127.0.0.1", PERHAPS)
        recorder = stack(two)._handlers
        assert isinstance(recorder, Recorder)
        recorder.members.add(one.peer_id)
        nursery.start_soon(ask, 7000)
        await until(lambda: len(dialled) > MAX_AT_ONCE)
        go_on.set()


@pytest.mark.slow
async def test_all_askers_together_get_so_many_in_the_long_run_and_each_has_an_allowance() -> None:
    async with counted() as (one, two, dialled, go_on):
        go_on.set()
        allowance, began = Channel.DIAL_BACK.value, trio.current_time()

        def most(of: Allowance) -> float:
            return of.per_s * (of.burst_s + trio.current_time() - began) + 2

        for port in range(5000, 5030):
            await back(one).ask(two.peer_id, port)
        assert len(dialled) <= most(allowance)
        assert allowance.per_s * allowance.burst_s < FOR_ALL.per_s * FOR_ALL.burst_s

        class Generous:
            def spend(self, peer: PeerId, channel: Channel, size: int = 0) -> bool:
                return True

        back(two)._reputation = Generous()  # type: ignore[assignment]
        for port in range(5100, 5140):
            await back(one).ask(two.peer_id, port)
        assert len(dialled) <= most(FOR_ALL)


async def test_a_broken_question_ends_its_stream_and_nothing_else() -> None:
    async with pair(Recorder(), Recorder()) as (one, two):
        host = stack(one).host
        stream = await open_stream(host, two.peer_id, back(one)._protocol, b"\x13")
        await discard(stream)
        assert await back(one).ask(two.peer_id, port_of(one)) == DialBackAnswer("127.0.0.1", YES)


@pytest.mark.parametrize("data", [b"\x03" + bytes(15) + b"\x01", b"\xff" * 17])
def test_an_answer_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        read_answer(data)


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        ([], PERHAPS),
        ([ReachabilityReport(A, HERE, PERHAPS)], PERHAPS),
        ([ReachabilityReport(A, HERE, NO), ReachabilityReport(B, HERE, PERHAPS)], NO),
        ([ReachabilityReport(A, HERE, NO), ReachabilityReport(B, HERE, YES)], YES),
        ([ReachabilityReport(A, HERE, NO), ReachabilityReport(B, HERE, NO), ReachabilityReport(C, HERE, YES)], NO),
        ([ReachabilityReport(A, HERE, NO), ReachabilityReport(B, HERE, NO), ReachabilityReport(D, HERE, YES)], YES),
        ([ReachabilityReport(A, HERE, YES), ReachabilityReport(B, HERE, YES), ReachabilityReport(D, HERE, NO)], NO),
        ([ReachabilityReport(A, PRIVATE, YES)], YES),
        ([ReachabilityReport(A, PRIVATE, YES), ReachabilityReport(B, HERE, NO)], NO),
        ([ReachabilityReport(A, HERE, NO), ReachabilityReport(A, THERE, YES)], YES),
    ],
)
def test_what_follows_from_answers(reports: list[ReachabilityReport], verdict: AddressVerdict) -> None:
    assert judge(reports, TheseMembers(D)).overall is verdict


ELSEWHERE, IPV6, OTHER_IPV6 = "/ip4/8.8.8.8/tcp/4001", "/ip6/2a0e::1/tcp/4001", "/ip6/2a0e::2/tcp/4001"


@pytest.mark.parametrize(
    ("reports", "reached"),
    [
        (
            [ReachabilityReport(D, HERE, NO), ReachabilityReport(A, ELSEWHERE, YES), ReachabilityReport(B, ELSEWHERE, YES)],
            [],
        ),
        ([ReachabilityReport(D, HERE, YES), ReachabilityReport(A, ELSEWHERE, YES)], [HERE]),
        ([ReachabilityReport(D, HERE, PERHAPS), ReachabilityReport(A, ELSEWHERE, YES)], [ELSEWHERE]),
        ([ReachabilityReport(A, HERE, NO), ReachabilityReport(B, HERE, NO), ReachabilityReport(C, ELSEWHERE, YES)], []),
        (
            [ReachabilityReport(A, IPV6, YES), ReachabilityReport(B, OTHER_IPV6, YES), ReachabilityReport(C, HERE, NO)],
            [IPV6, OTHER_IPV6],
        ),
    ],
)
def test_an_address_that_one_liar_alone_sees_is_not_believed(reports: list[ReachabilityReport], reached: list[str]) -> None:
    """D is the member."""
    assert judge(reports, TheseMembers(D)).reached == reached


def test_a_peer_that_is_reached_at_an_ipv6_address_alone_is_not_reached_by_everybody() -> None:
    at_ipv6 = "/ip6/2a0e::1/tcp/4001"
    assert judge([ReachabilityReport(A, HERE, NO), ReachabilityReport(B, at_ipv6, YES)], TheseMembers()).by_ipv4 is NO
    assert judge([ReachabilityReport(A, HERE, YES), ReachabilityReport(B, at_ipv6, NO)], TheseMembers()).by_ipv4 is YES
    assert judge([ReachabilityReport(B, at_ipv6, YES)], TheseMembers()).by_ipv4 is PERHAPS


def test_few_are_asked_and_a_crowd_behind_one_address_is_one() -> None:
    crowd = {Identity.generate().peer_id: "11.9.9.9" for _ in range(20)}
    others = {A: "11.1.1.1", B: "2a0e::/64"}
    asked = chosen(crowd | others)
    assert {A, B} <= set(asked) and len(asked) == 3
    many = {Identity.generate().peer_id: f"11.0.0.{number}" for number in range(20)}
    assert len(chosen(many)) == ASKED


async def test_an_answer_that_names_no_computer_does_not_count() -> None:
    async def ask(peer: PeerId, port: int) -> DialBackAnswer | None:
        return None if peer == A else DialBackAnswer({B: "0.0.0.0", C: "224.0.0.1"}.get(peer, "11.1.1.1"), YES)

    connected = {A: "11.1.1.1", B: "11.1.1.2", C: "11.1.1.3"}
    inquiry = Inquiry(ask, lambda: connected, lambda: [80, 4001, 4001], TheseMembers(), lambda event: None)
    await inquiry.inquire()
    assert inquiry.now == Reachability({})
    connected[D] = connected.pop(A)
    await inquiry.inquire()
    assert inquiry.now == Reachability({"/ip4/11.1.1.1/tcp/4001": YES})
