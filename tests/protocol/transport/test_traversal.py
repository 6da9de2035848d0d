"""Ways to peers that cannot be dialled, on loopback: what a relay does and refuses, what a meeting finds, what is forged."""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from protocol.transport.addresses import END, CircuitAddress, circuit_address, direct_address, may_be_dialled
from protocol.transport.host import protocol_of
from protocol.transport.interface import Unreachable
from protocol.transport.library import library_id
from protocol.transport.limits import MAX_ON_DOORSTEP, Doorstep
from protocol.transport.nat import punching, relay
from protocol.transport.nat.punching import (
    CANDIDATES_BYTES,
    NONCE_BYTES,
    OFFER_BYTES,
    DialCandidate,
    Race,
    at_its_addresses,
    read_candidates,
    token_of,
    write_candidates,
)
from protocol.transport.nat.reachability import AddressVerdict, Reachability
from protocol.transport.nat.traversal import begin_connection
from protocol.transport.network import Libp2pNetwork
from protocol.transport.sockets import DIRECT, End, LinkKind, receive, send, way_of
from protocol.transport.streams import ask
from protocol.wire.identity import Identity, PeerId
from tests.protocol.peers import TheseMembers
from tests.protocol.transport.recorder import RUN, Recorder, network, pair, stack, until

A, B = (Identity.generate().peer_id for _ in range(2))
HERE: End = ("127.0.0.1", 0)


@asynccontextmanager
async def through_a_relay() -> AsyncIterator[tuple[Libp2pNetwork, Libp2pNetwork, Libp2pNetwork, Recorder]]:
    """One and two, which know the relay alone; two has a place there.  The recorder is that of two."""
    a, b, r = Recorder(), Recorder(), Recorder()
    async with network(r) as between, network(a) as one, network(b) as two:
        for end in (one, two):
            end.remember(between.addresses())
        await r.until(lambda: len(set(r.connected)) == 2)
        stack(two).traversal.circuits._reached = lambda: AddressVerdict.UNREACHABLE
        await until(lambda: stack(two).traversal.circuits.addresses(two.peer_id), 10)
        yield one, between, two, b


def test_addresses_behind_a_relay_are_read_as_they_are_written() -> None:
    address = CircuitAddress("/ip4/192.0.2.1/tcp/4001", A, B)
    assert circuit_address(str(address)) == address
    assert direct_address(address.relay_address) == ("/ip4/192.0.2.1/tcp/4001", A)
    direct = f"/ip4/192.0.2.1/tcp/4001/p2p/{A}"
    ends = ["", "/p2p-circuit", f"/p2p-circuit/p2p/{A}", "/p2p-circuit/p2p/x", f"/p2p-circuit/p2p/{B}/p2p-circuit/p2p/{A}"]
    assert [circuit_address(text) for text in ["", "/p2p-circuit", *(direct + end for end in ends)]] == [None] * 7
    assert direct_address(str(address)) is None and direct_address(f"/unix/x/p2p/{A}") is None


def test_candidates_are_read_as_they_are_written_and_anything_else_is_survived() -> None:
    found = [
        DialCandidate(("192.0.2.1", 4001)),
        DialCandidate(("2001:db8::1", 65535)),
        DialCandidate(("198.51.100.7", 30000), True),
    ]
    written = write_candidates(found)
    assert len(written) == CANDIDATES_BYTES and read_candidates(written) == found
    generator = random.Random(1)
    for _ in range(2000):
        found = read_candidates(generator.randbytes(CANDIDATES_BYTES))
        assert len([each for each in found if may_be_dialled(each.end, list)]) <= punching.MAX_CANDIDATES


async def test_a_reflector_shows_where_a_socket_is_seen() -> None:
    async with network(Recorder()) as there:
        port = int(there.addresses()[0].split("/")[4])
        sock = punching.reusable_socket()
        with sock:
            inside = sock.getsockname()[1]
            assert await punching.seen_at(sock, ("127.0.0.1", port)) == ("127.0.0.1", inside)


async def test_sockets_that_prove_nothing_are_few_and_the_busiest_address_loses_one() -> None:
    doorstep, pairs = Doorstep(), [socket.socketpair() for _ in range(MAX_ON_DOORSTEP + 1)]
    socks = [trio.socket.from_stdlib_socket(ours) for ours, _ in pairs]
    with ExitStack() as stack:
        for number, sock in enumerate(socks):
            stack.enter_context(doorstep.waits(sock, "alone" if number == 0 else "crowd"))
        assert len(doorstep) == MAX_ON_DOORSTEP
        assert [sock.fileno() == -1 for sock in socks[:3]] == [False, True, False], "the oldest of the crowd"
    for sock, (_, other) in zip(socks, pairs, strict=True):
        sock.close()
        other.close()


@pytest.mark.slow
async def test_peers_that_reach_a_third_one_are_joined_there_and_then_find_a_way_of_their_own() -> None:
    async with through_a_relay() as (one, between, two, b):
        assert one.link(two.peer_id) == ""
        one.remember(stack(two).traversal.circuits.addresses(two.peer_id), claimed=True)
        await b.until(lambda: one.peer_id in b.connected)
        await until(lambda: one.link(two.peer_id) not in ("", "relayed"), 10)
        assert one.link(two.peer_id) in ("direct", "reversed", "punched")
        connections = stack(one).host.get_network().connections[library_id(two.peer_id)]
        await until(lambda: not any(way_of(each).relay is not None and not each.is_closed for each in connections), 10)
        assert await one.request(two.peer_id, "echo", b"still there", timeout_s=60) == b"still there"


@pytest.mark.slow
@pytest.mark.parametrize("asker_listens", [True, False])
async def test_whoever_was_dialled_in_a_meeting_may_relay_for_the_other_whichever_asked(asker_listens: bool) -> None:
    """One asks for the meeting; the socket goes to the one of the two that can be dialled."""
    async with through_a_relay() as (one, _, two, b):
        dialled, other = (one, two) if asker_listens else (two, one)
        stack(other).traversal._meetings._candidates = lambda outside: []  # type: ignore[method-assign]
        one.remember(stack(two).traversal.circuits.addresses(two.peer_id), claimed=True)
        await b.until(lambda: one.peer_id in b.connected)
        await until(lambda: "relayed" not in (one.link(two.peer_id), two.link(one.peer_id)), 60)
        assert one.link(two.peer_id) == ("reversed" if asker_listens else "direct")
        where = ("127.0.0.1", dialled.own.port)
        assert stack(other).traversal._dialled()[dialled.peer_id] == where
        assert other.peer_id not in stack(dialled).traversal._dialled()
        assert await stack(other).traversal.circuits._gets_place(dialled.peer_id)


@pytest.mark.slow
async def test_pushes_go_through_the_relay_where_there_is_no_other_way() -> None:
    async with through_a_relay() as (one, between, two, b):
        for end in (one, two):
            stack(end).traversal._meetings._candidates = lambda outside: []  # type: ignore[method-assign]
        one.remember(stack(two).traversal.circuits.addresses(two.peer_id), claimed=True)
        await b.until(lambda: one.peer_id in b.connected)
        assert one.link(two.peer_id) == "relayed" and stack(between).traversal.relay.circuits > 0
        stack(one).traversal._no_way.failed(two.peer_id, trio.current_time() + 1000)  # it has looked for one
        data, before = os.urandom(300_000), stack(between).traversal.relay.carried_bytes
        await one.push(two.peer_id, b"chunk", memoryview(data), timeout_s=60)
        assert bytes(b.buffers[b"chunk"]) == data
        assert stack(between).traversal.relay.carried_bytes - before >= len(data)
        limit = stack(one).traversal.way(two.peer_id).bytes_per_s
        assert one.bandwidth().up_bytes_per_s == 0 and limit == 1.25e6


async def test_a_handshake_that_is_cancelled_leaves_no_socket_open() -> None:
    async with network(Recorder()) as end:
        near, far = trio.socket.socketpair()
        with far, trio.CancelScope() as scope:
            scope.cancel()
            await begin_connection(stack(end).host.get_network(), near, DIRECT, A)
        assert scope.cancelled_caught and near.fileno() == -1


@pytest.mark.slow
async def test_a_relay_leads_to_nobody_without_a_place_and_gives_none_when_its_owner_wants_none() -> None:
    async with through_a_relay() as (one, between, two, _):
        circuits = stack(two).traversal.circuits
        with pytest.raises(Unreachable, match="does not lead"):
            await circuits.open(between.peer_id, one.peer_id)
        stack(between).traversal.relay._rate = 0
        with pytest.raises(Unreachable, match="does not lead"):
            await stack(one).traversal.circuits.open(between.peer_id, two.peer_id)


async def test_a_peer_that_is_reached_at_an_ipv6_address_alone_keeps_its_places_at_relays() -> None:
    async with network(Recorder()) as end:
        parts, verdicts = (
            stack(end),
            {"/ip4/11.1.1.1/tcp/1": AddressVerdict.UNREACHABLE, "/ip6/2a0e::1/tcp/1": AddressVerdict.REACHABLE},
        )
        parts.inquiry.now = Reachability(verdicts)
        assert parts.inquiry.now.overall is AddressVerdict.REACHABLE
        assert parts.traversal.circuits._reached() is AddressVerdict.UNREACHABLE


@pytest.mark.slow
async def test_a_relay_answers_nonsense_with_no_and_goes_on() -> None:
    async with through_a_relay() as (one, between, two, _):
        generator, where = random.Random(2), protocol_of(RUN, relay.RELAY_PROTOCOL)
        for _ in range(20):
            question = bytes([2]) + generator.randbytes(relay.QUESTION.size - 1)
            answer, _ = await ask(stack(one).host, between.peer_id, where, question, relay.ANSWER.size, 60)
            assert answer[0] == 0
        sock, way = await stack(one).traversal.circuits.open(between.peer_id, two.peer_id)
        sock.close()
        assert way.kind is LinkKind.RELAYED and way.relay == between.peer_id


@pytest.mark.slow
async def test_what_one_peer_and_all_strangers_can_take_of_a_relay_is_limited() -> None:
    async with through_a_relay() as (one, between, two, _):
        one_end, given = stack(one).traversal.circuits, []
        with pytest.raises(Unreachable):
            for _ in range(relay.MAX_STRANGERS_CIRCUITS + 1):
                given.append(await one_end.open(between.peer_id, two.peer_id))
        assert len(given) == relay.MAX_STRANGERS_CIRCUITS
        for sock, _ in given:
            sock.close()


async def test_a_race_is_won_by_one_socket_and_the_others_are_closed() -> None:
    """The one that leads dials two places of the one that follows; punching needs two routers (tests/e2e/test_homes.py)."""
    token, won = b"t" * punching.TOKEN_BYTES, dict[str, tuple[trio.socket.SocketType, LinkKind] | None]()
    lead, follow = Race(token, True, None), Race(token, False, None)
    came: list[trio.socket.SocketType] = []

    async def accept(listening: trio.SocketListener) -> None:
        while True:
            sock = (await listening.accept()).socket
            assert await receive(sock, punching.HELLO_BYTES) == punching.RACE_FIRST_BYTE + token + punching.LEADS
            assert follow.has_come(sock)
            came.append(sock)

    async def run(name: str, one: Race, theirs: list[DialCandidate]) -> None:
        won[name] = await one.run(theirs)

    async with trio.open_nursery() as nursery:
        listeners = [listener for _ in range(2) for listener in await trio.open_tcp_listeners(0, host="127.0.0.1")]
        for listener in listeners:
            nursery.start_soon(accept, listener)
        async with trio.open_nursery() as racing:
            racing.start_soon(run, "lead", lead, [DialCandidate(each.socket.getsockname()) for each in listeners])
            racing.start_soon(run, "follow", follow, [])
        nursery.cancel_scope.cancel()
    for listener in listeners:
        await listener.aclose()
    assert won["lead"] is not None and won["follow"] is not None
    (ours, kind), (theirs, _) = won["lead"], won["follow"]
    assert kind is LinkKind.DIRECT and ours.getsockname() == theirs.getpeername()
    assert [sock.fileno() for sock in came if sock is not theirs] in ([], [-1])
    ours.close()
    theirs.close()


@pytest.mark.usefixtures("virtual_time")
async def test_a_race_with_nobody_is_lost_in_time() -> None:
    assert await Race(b"t" * punching.TOKEN_BYTES, True, None).run([]) is None


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_a_race_that_is_given_up_when_it_is_won_closes_its_socket(
    monkeypatch: pytest.MonkeyPatch, no_collection: None
) -> None:
    """At once, and not when Python comes by: whoever wanted it is not there any more."""
    token, lead = b"t" * punching.TOKEN_BYTES, Race(b"t" * punching.TOKEN_BYTES, True, None)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, trio.open_nursery() as nursery:

        async def send_and_give_up(sock: trio.socket.SocketType, data: bytes) -> None:
            await send(sock, data)
            if data == punching.TAKEN:
                nursery.cancel_scope.cancel()

        monkeypatch.setattr("protocol.transport.nat.punching.send", send_and_give_up)
        nursery.start_soon(lead.run, [DialCandidate(listener.socket.getsockname())])
        with trio.CancelScope(shield=True), trio.fail_after(60):
            async with await listener.accept() as there:
                await receive(there.socket, punching.HELLO_BYTES)
                await there.send_all(punching.RACE_FIRST_BYTE + token + punching.FOLLOWS)
                assert await receive(there.socket, 1) == punching.TAKEN
                assert not await there.receive_some(1), "closed"


async def test_a_socket_that_is_reset_as_soon_as_it_has_won_ends_nothing_else() -> None:
    """The other end resets it when it likes, so even asking where it led may fail."""
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        meetings = stack(two).traversal._meetings
        over = trio.Event()

        async def won_and_reset(self: Race, theirs: Sequence[DialCandidate]) -> tuple[trio.socket.SocketType, LinkKind]:
            ours, other = await connected_sockets()
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            other.close()
            await trio.lowlevel.wait_readable(ours.fileno())  # the reset is here
            over.set()
            return ours, LinkKind.DIRECT

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Race, "run", won_and_reset)
            await ask(stack(one).host, two.peer_id, meetings._protocol, bytes(OFFER_BYTES), OFFER_BYTES, 60)
            await over.wait()
            await until(lambda: meetings._shares[False].places.value == punching.MAX_AT_ONCE, 60)
        assert await one.request(two.peer_id, "echo", b"still there", timeout_s=60) == b"still there"


async def connected_sockets() -> tuple[trio.socket.SocketType, trio.socket.SocketType]:
    """Two ends of one TCP connection."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        ours = trio.socket.socket()
        await ours.connect(listener.socket.getsockname())
        return ours, (await listener.accept()).socket


@pytest.mark.usefixtures("virtual_time")
async def test_an_endpoint_that_refuses_is_dialled_six_times_in_a_race_and_a_silent_one_four_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each dial of a silent one is two packets: the kernel repeats the first after a second."""
    dials: Counter[End] = Counter()

    class Dialled:
        async def connect(self, end: End) -> None:
            dials[end] += 1
            if end[1] % 2:
                raise ConnectionRefusedError
            await trio.sleep_forever()

        def close(self) -> None: ...

    monkeypatch.setattr(Race, "_new_socket", lambda self, candidate: Dialled())
    ends = [DialCandidate(("192.0.2.1", port)) for port in range(4001, 4001 + punching.MAX_CANDIDATES)]
    assert await Race(b"t" * punching.TOKEN_BYTES, False, None).run(ends) is None
    assert [dials[each.end] for each in ends] == [6, 4, 6, 4, 6, 4]


HOME, LAN, ELSEWHERE = "203.0.113.7", "192.168.1.7", "198.51.100.9"
"""Addresses as of documents: they count as on the internet here."""


@pytest.mark.parametrize(
    ("seen", "named", "dialled"),
    [
        (HOME, [HOME, HOME, LAN, ELSEWHERE, "2001:db8::1"], [HOME, HOME]),
        (LAN, [HOME, LAN], [LAN]),
        (f"::ffff:{HOME}", [ELSEWHERE, HOME], [HOME]),
        (HOME, [f"::ffff:{HOME}"], [f"::ffff:{HOME}"]),
        ("2001:db8:0:1::1", ["2001:db8:0:1::2", "2001:db8:0:2::1", HOME], ["2001:db8:0:1::2"]),
        (
            None,
            [HOME, HOME, ELSEWHERE, LAN, "192.168.1.1", "2001:db8::1", "2001:db8:1::1"],
            [HOME, HOME, LAN, "2001:db8::1"],
        ),
        (None, ["10.0.0.1", "10.0.0.2", "172.16.0.1"], ["10.0.0.1"]),
        (HOME, [], []),
    ],
)
def test_a_peer_is_dialled_where_it_is_seen_and_a_relayed_member_at_one_address_of_each_kind(
    seen: str | None, named: list[str], dialled: list[str]
) -> None:
    candidates = [DialCandidate((ip, 4001 + number)) for number, ip in enumerate(named)]
    found = at_its_addresses(candidates, (seen, 50000) if seen is not None else None)
    assert [each.end[0] for each in found] == dialled


async def test_a_peer_that_names_other_computers_in_a_meeting_has_us_dial_none_of_them() -> None:
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        meetings = stack(two).traversal._meetings
        (connection,) = stack(two).host.get_network().connections[library_id(one.peer_id)]
        victims = [DialCandidate((f"93.184.216.{number}", 4001), number % 2 > 0) for number in range(5)]
        offer = bytes(NONCE_BYTES) + write_candidates([*victims, DialCandidate(("127.0.0.1", 4001))])
        found = meetings._to_dial(one.peer_id, connection.muxed_conn, offer)
        assert [each.end for each in found] == [("127.0.0.1", 4001)]


@pytest.mark.slow
@pytest.mark.parametrize("is_member", [False, True])
async def test_a_stranger_behind_a_relay_is_dialled_only_where_the_relay_sees_it(is_member: bool) -> None:
    """From both ends of the circuit; a member also at one address of each kind that it names."""
    async with through_a_relay() as (one, _, two, b):
        for end in (one, two):
            stack(end).traversal._meetings._candidates = lambda outside: []  # type: ignore[method-assign]
        one.remember(stack(two).traversal.circuits.addresses(two.peer_id), claimed=True)
        await b.until(lambda: one.peer_id in b.connected)
        named = ["93.184.216.34", "127.0.0.1", "192.168.77.1", "2606:4700::1", "fd00::1", "93.184.216.35"]
        offer = bytes(NONCE_BYTES) + write_candidates([DialCandidate((ip, 4001)) for ip in named])
        dialled = list[list[str]]()
        for here, there in ((one, two), (two, one)):
            meetings = stack(here).traversal._meetings
            meetings._members = TheseMembers(there.peer_id) if is_member else TheseMembers()  # type: ignore[assignment]
            (connection,) = stack(here).host.get_network().connections[library_id(there.peer_id)]
            assert way_of(connection).relay is not None
            found = meetings._to_dial(there.peer_id, connection.muxed_conn, offer)
            dialled.append([each.end[0] for each in found])
        assert dialled == [named[:5] if is_member else ["127.0.0.1"]] * 2


@pytest.mark.parametrize("seen", ["::", "0.0.0.0", "224.0.0.1"])
def test_a_relay_that_sees_a_stranger_nowhere_has_us_dial_nobody(seen: str) -> None:
    named = [DialCandidate((ip, 4001)) for ip in ("93.184.216.34", "127.0.0.1", "192.168.77.1")]
    assert at_its_addresses(named, (seen, 0)) == []


@pytest.mark.slow
async def test_what_all_strangers_have_us_dial_in_meetings_is_bounded_together_and_takes_nothing_from_members() -> None:
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        meetings, members = stack(two).traversal._meetings, {PeerId("member")}
        b.has_member = lambda peer: peer in members  # type: ignore[method-assign]
        (connection,) = stack(two).host.get_network().connections[library_id(one.peer_id)]
        ends = [DialCandidate(("127.0.0.1", 4001 + number)) for number in range(punching.MAX_CANDIDATES)]
        offer = bytes(NONCE_BYTES) + write_candidates(ends)
        began = trio.current_time()

        def dialled(peer: PeerId) -> int:
            return len(meetings._to_dial(peer, connection.muxed_conn, offer))

        by_strangers = sum(dialled(PeerId(f"key {number}")) for number in range(1000))
        allowed = punching.DIALLED_FOR_STRANGERS
        passed_s = trio.current_time() - began
        assert by_strangers <= allowed.per_s * (allowed.burst_s + passed_s)
        assert by_strangers >= allowed.per_s * allowed.burst_s
        assert dialled(PeerId("member")) == len(ends)


async def test_what_we_say_to_those_whom_another_peer_has_us_dial_is_not_of_its_choice() -> None:
    """A database that takes commands line by line would carry out what stands between two line feeds."""
    command = b"\nFLUSHALL\n".ljust(NONCE_BYTES, b"\n")
    a, b = Recorder(), Recorder()
    (database,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with database, pair(a, b) as (one, two):
        ours = command + write_candidates([DialCandidate(database.socket.getsockname())])
        where = stack(two).traversal._meetings._protocol
        theirs, _ = await ask(stack(one).host, two.peer_id, where, ours, OFFER_BYTES, 60)
        async with await database.accept() as dialled:
            said = await receive(dialled.socket, punching.HELLO_BYTES)
    assert said == punching.RACE_FIRST_BYTE + token_of(ours, theirs) + punching.FOLLOWS
    assert command not in said and len(theirs) == OFFER_BYTES


async def test_only_a_few_sockets_that_know_the_token_are_looked_at() -> None:
    one, pairs = Race(b"t" * punching.TOKEN_BYTES, False, None), [await connected_sockets() for _ in range(20)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run, [])
        taken = 0
        for ours, _ in pairs:
            taken += one.has_come(ours)
            await trio.testing.wait_all_tasks_blocked()
        assert taken == punching.MAX_CANDIDATES
        pairs[0][1].close()
        with trio.fail_after(60):
            while not one.has_come(pairs[-1][0]):  # until the one that has gone is noticed
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    for sock in (sock for both in pairs for sock in both):
        sock.close()


@pytest.mark.slow
async def test_a_relay_that_summons_without_end_has_us_open_few_sockets() -> None:
    async with through_a_relay() as (_, between, two, _r):
        circuits, opening = stack(two).traversal.circuits, trio.Event()

        async def never(relay: End, token: bytes) -> trio.socket.SocketType:
            await opening.wait()
            raise OSError("nobody is there")

        circuits._come = never  # type: ignore[method-assign]
        where, answers = protocol_of(RUN, relay.SUMMONS_PROTOCOL), list[bytes]()
        for number in range(relay.MAX_CIRCUITS_PER_PEER + 5):
            summons = relay.SUMMONS.pack(number.to_bytes(relay.TOKEN_BYTES, "big"), b"", 0, bytes(END.size))
            answers.append((await ask(stack(between).host, two.peer_id, where, summons, 1, 60))[0])
        assert answers == [b"\1"] * relay.MAX_CIRCUITS_PER_PEER + [b"\0"] * 5
        opening.set()
        await until(lambda: not circuits._coming, 60)
