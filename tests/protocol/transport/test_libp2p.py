"""Two and more hosts on loopback sockets: connecting, gossip, requests, and the results of dialling."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import psutil
import pytest
import trio

from protocol.transport.addresses import ForbiddenAddress, UnknownName
from protocol.transport.dialer import (
    FORBIDDEN,
    NO_NAME,
    NO_PEER,
    NO_ROUTE,
    ODD,
    OTHER_RUN,
    REFUSED,
    SILENT,
    WRONG_PEER,
    Attempt,
    problem_of,
)
from protocol.transport.host import PortBusy
from protocol.transport.interface import MAX_REQUEST_BYTES, Acceptance, NetworkError, Refused, Unreachable
from protocol.transport.library import library_id
from protocol.transport.network import open_network
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import Identity, PeerId
from tests.protocol.transport.recorder import LOOPBACK, PATIENCE_S, RUN, Recorder, dialled, network, pair, stack, until


async def gossip_until(sender, recorder: Recorder, data: bytes, copies: int = 1) -> None:  # type: ignore[no-untyped-def]
    """The mesh forms within a heartbeat; a message sent before that is lost, so repeat it as heartbeats are."""
    with trio.fail_after(PATIENCE_S):
        while recorder.gossip.count(data) < copies:
            await sender.publish(data)
            with trio.move_on_after(0.5):
                await recorder.until(lambda: recorder.gossip.count(data) >= copies)


@pytest.mark.slow
async def test_two_hosts_connect_gossip_ask_refuse_and_survive_a_failing_handler() -> None:
    a, b = Recorder(), Recorder()
    async with network(a) as one, network(b) as two:
        one.remember(two.addresses())
        await a.until(lambda: a.connected == [two.peer_id])
        await b.until(lambda: b.connected == [one.peer_id])
        with pytest.raises(Unreachable):
            await one.request(two.peer_id, "wrong", b"", timeout_s=PATIENCE_S)
        assert await one.request(two.peer_id, "echo", b"hello", timeout_s=PATIENCE_S) == b"hello"
        assert await two.request(one.peer_id, "echo", bytes(MAX_REQUEST_BYTES), timeout_s=PATIENCE_S) == bytes(
            MAX_REQUEST_BYTES
        )
        with pytest.raises(Refused, match="not today"):
            await one.request(two.peer_id, "no", b"", timeout_s=PATIENCE_S)
        with pytest.raises(Unreachable, match="did not answer"):
            await one.request(two.peer_id, "never", b"", timeout_s=0.2)
        with pytest.raises(NetworkError, match="limit"):
            await one.request(two.peer_id, "echo", bytes(MAX_REQUEST_BYTES + 1), timeout_s=PATIENCE_S)
        await gossip_until(one, b, b"news")
        await gossip_until(two, a, b"olds")
        assert a.connected == [two.peer_id] and not a.disconnected
        assert one.traffic().up_bytes >= 5 and two.traffic().down_bytes >= 5


async def test_gossip_goes_both_ways_after_a_stream_of_it_has_ended_at_one_end() -> None:
    """As when a peer has connected anew: the other end has said hello by then, and says it once."""
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        await gossip_until(one, b, b"before")
        await gossip_until(two, a, b"before, the other way")
        stack(two).gossip._pubsub._handle_dead_peer(library_id(one.peer_id))
        await gossip_until(two, a, b"after")
        await gossip_until(one, b, b"after, the other way")


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["timed out", "reset", "of another kind"])
async def test_a_peer_whose_streams_for_gossip_failed_once_gossips_over_the_same_connections(failure: str) -> None:
    """As on a computer that is too busy to agree to a stream in time: both ends stay connected, so nobody dials again."""
    from libp2p.host.exceptions import StreamFailure
    from libp2p.network.stream.exceptions import StreamReset

    problem = {"timed out": StreamFailure("timed out"), "reset": StreamReset(), "of another kind": RuntimeError()}[failure]
    a, b = Recorder(), Recorder()
    async with network(a) as one, network(b) as two:
        host, failed = cast(Any, stack(two).host), list[object]()
        open_stream = host.new_stream

        async def fails_once(peer: object, protocols: Sequence[str]) -> object:
            if "/meshsub/1.1.0" in protocols and not failed:
                failed.append(peer)
                b.changed()
                raise problem
            return await open_stream(peer, protocols)

        host.new_stream = fails_once
        two.remember(one.addresses())
        await b.until(lambda: b.connected and failed)
        await gossip_until(two, a, b"from it")
        await gossip_until(one, b, b"to it")
        assert not a.disconnected and not b.disconnected


async def test_of_messages_that_were_sent_and_passed_on_nothing_is_kept_for_good() -> None:
    a, b = Recorder(), Recorder()
    async with pair(a, b) as (one, two):
        for each in range(8):
            await gossip_until(one, b, b"news %d" % each)
        for end in (one, two):
            router = stack(end).gossip._router
            assert router.recent_message_deliveries == {} and router.equivocation_detection == {}


@pytest.mark.slow
async def test_rejected_gossip_goes_no_further() -> None:
    a, b, c = Recorder(), Recorder(), Recorder()
    b.acceptance = lambda data: Acceptance.REJECT if data == b"bad" else Acceptance.ACCEPT
    async with network(a) as one, network(b) as two, network(c) as three:
        one.remember(two.addresses())
        three.remember(two.addresses())
        await b.until(lambda: len(b.connected) == 2)
        await gossip_until(one, c, b"good 1")
        await one.publish(b"bad")
        await b.until(lambda: b"bad" in b.gossip)
        await gossip_until(one, c, b"good 2")
        assert b"bad" not in c.gossip


@pytest.mark.slow
async def test_a_peer_that_comes_back_elsewhere_is_found_again() -> None:
    a, identity = Recorder(), Identity.generate()
    async with network(a) as one:
        async with network(Recorder(), identity) as two:
            one.remember(two.addresses())
            await a.until(lambda: len(a.connected) == 1)
        await a.until(lambda: a.disconnected == [identity.peer_id])
        async with network(Recorder(), identity) as again:
            one.remember(again.addresses())
            await a.until(lambda: len(a.connected) == 2)
            assert await one.request(identity.peer_id, "echo", b"x", timeout_s=PATIENCE_S) == b"x"


@pytest.mark.slow
async def test_closed_networks_leave_no_socket_task_or_thread_and_their_ports_to_the_next() -> None:
    """As when a peer leaves its run for a while, and joins anew: the process goes on."""

    def left() -> tuple[int, int, list[str]]:
        threads = [thread.name for thread in threading.enumerate() if not thread.name.startswith("Trio")]  # those it keeps
        return trio.lowlevel.current_statistics().tasks_living, psutil.Process().num_fds(), threads

    before, ports = left(), (0, 0)
    for _ in range(2):
        a, b = Recorder(), Recorder()
        async with network(a, port=ports[0]) as one, network(b, port=ports[1]) as two:
            one.remember(two.addresses())
            await a.until(lambda a=a: a.connected)  # type: ignore[misc]
            await b.until(lambda b=b: b.connected)  # type: ignore[misc]
            ports = one.own.port, two.own.port
        assert left() == before


async def test_a_busy_port_is_said_plainly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortBusy, match=f"port {port} is in use"):
            async with open_network(Identity.generate(), RUN, Recorder(), replace(LOOPBACK, listen_port=port)):
                raise AssertionError("it listens on a busy port")


async def test_peers_found_nearby_are_dialled_and_the_search_ends_with_the_network() -> None:
    identity, a, b = Identity.generate(), Recorder(), Recorder()
    told: list[tuple[Hash, PeerId, list[str]]] = []
    theirs: list[str] = []

    async def discover(
        run: Hash, me: PeerId, addresses: Callable[[], Sequence[str]], found: Callable[[Sequence[str]], None]
    ) -> None:
        try:
            found(theirs)
            await trio.sleep_forever()
        finally:
            told.append((run, me, list(addresses())))

    async with network(b) as other:
        theirs.extend(other.addresses())
        async with open_network(identity, RUN, a, replace(LOOPBACK, discover=discover)) as end:
            await until(lambda: other.peer_id in end.connected())
            nearby = end.own.nearby()
        assert told == [(RUN, identity.peer_id, nearby)]


async def test_an_address_that_does_not_answer_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as web, socket.create_server(("127.0.0.1", 0)) as closed:
        ports = web.getsockname()[1], closed.getsockname()[1]
        threading.Thread(target=speak_http, args=(web,), daemon=True).start()
        closed.close()
        async with network(Recorder()) as one, network(Recorder()) as two:
            there = two.addresses()[0].split("/p2p/")[0]
            for where, why in (
                (f"/ip4/127.0.0.1/tcp/{ports[1]}", REFUSED),
                (there, WRONG_PEER),
                (f"/ip4/127.0.0.1/tcp/{ports[0]}", NO_PEER),
                ("/ip4/127.0.0.1/tcp/99999", ODD),
            ):
                address = f"{where}/p2p/{Identity.generate().peer_id}"
                assert await dialled(one, address) == Attempt(address, 1, why)


def under(cause: BaseException) -> BaseException:
    """As the library wraps what went wrong."""
    from libp2p.exceptions import MultiError

    outer, middle = RuntimeError("all dials failed"), RuntimeError("fail to open connection")
    middle.__cause__ = ExceptionGroup("all attempts", [cause]) if isinstance(cause, OSError) else cause
    outer.__cause__ = MultiError([middle])
    return outer


def test_the_first_cause_decides_what_is_said() -> None:
    for number, said in (
        (errno.ECONNREFUSED, REFUSED),
        (errno.ENETUNREACH, NO_ROUTE),
        (errno.EHOSTUNREACH, NO_ROUTE),
        (errno.ETIMEDOUT, SILENT),
        (errno.EIO, ODD),
    ):
        assert problem_of(under(OSError(number, "the system's words"))) == said
    assert problem_of(UnknownName("x has no address")) == NO_NAME
    assert problem_of(ForbiddenAddress("x leads to 10.0.0.1")) == FORBIDDEN
    assert problem_of(RuntimeError("anything")) == ODD
    endless = RuntimeError("anything")
    endless.__cause__ = other = RuntimeError("else")
    other.__cause__ = endless
    assert problem_of(endless) == ODD


def speak_http(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def test_a_peer_of_another_run_is_told_apart() -> None:
    other = hash_bytes("manifest", b"another run")
    foreign = open_network(Identity.generate(), other, Recorder(), LOOPBACK)
    async with network(Recorder()) as one, foreign as two:
        await dialled(one, two.addresses()[0])
        with pytest.raises(Unreachable, match="another run"):
            await one.request(two.peer_id, "manifest", b"", timeout_s=PATIENCE_S)
        assert [attempt.problem for attempt in one.attempts()] == [OTHER_RUN] and not one.reached_there()
