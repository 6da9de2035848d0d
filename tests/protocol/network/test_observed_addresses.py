"""What came of dialling, and by which addresses peers were reached, on loopback sockets."""

from __future__ import annotations

import errno
import socket
import threading

import pytest
import trio

from protocol.network.interface import Unreachable
from protocol.network.libp2p import Libp2pNetwork, open_network
from protocol.network.libp2p.attempts import (
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
from protocol.network.libp2p.observed_addresses import MAX_CLAIMS, ObservedAddresses, is_public_form
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId
from tests.protocol.network.recorder import LOOPBACK, PATIENCE_S, Recorder, network

ME = Identity.generate().peer_id


async def dialled(net: Libp2pNetwork, address: str) -> Attempt:
    """Remember an address, and see what came of it."""
    net.remember([address])
    with trio.fail_after(PATIENCE_S):
        while not (found := [attempt for attempt in net.attempts() if attempt.address == address]):
            await trio.sleep(0.01)
    return found[0]


def test_an_address_that_does_not_answer_says_why() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as web, socket.create_server(("127.0.0.1", 0)) as closed:
            ports = web.getsockname()[1], closed.getsockname()[1]
            threading.Thread(target=speak_http, args=(web,), daemon=True).start()
            closed.close()
            async with network(Recorder()) as one, network(Recorder()) as two:
                there = two.addresses()[0].split("/p2p/")[0]
                for where, why in ((f"/ip4/127.0.0.1/tcp/{ports[1]}", REFUSED), (there, WRONG_PEER),
                                   (f"/ip4/127.0.0.1/tcp/{ports[0]}", NO_PEER), ("/ip4/127.0.0.1/tcp/99999", ODD)):
                    address = f"{where}/p2p/{Identity.generate().peer_id}"
                    assert await dialled(one, address) == Attempt(address, 1, why)

    trio.run(main)


def under(cause: BaseException) -> BaseException:
    """As the library wraps what went wrong."""
    from libp2p.exceptions import MultiError

    outer, middle = RuntimeError("all dials failed"), RuntimeError("fail to open connection")
    middle.__cause__ = ExceptionGroup("all attempts", [cause]) if isinstance(cause, OSError) else cause
    outer.__cause__ = MultiError([middle])
    return outer


def test_the_first_cause_decides_what_is_said() -> None:
    for number, said in ((errno.ECONNREFUSED, REFUSED), (errno.ENETUNREACH, NO_ROUTE), (errno.EHOSTUNREACH, NO_ROUTE),
                         (errno.ETIMEDOUT, SILENT), (errno.EIO, ODD)):
        assert problem_of(under(OSError(number, "the system's words"))) == said
    assert problem_of(under(RuntimeError("Failed to connect to any resolved address for /dns4/x"))) == NO_NAME
    assert problem_of(RuntimeError("anything")) == ODD
    endless = RuntimeError("anything")
    endless.__cause__ = other = RuntimeError("else")
    other.__cause__ = endless
    assert problem_of(endless) == ODD


def speak_http(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_both_ends_know_the_address_that_was_dialled_and_only_a_live_one_answers() -> None:
    async def main() -> None:
        b = Recorder()
        async with network(Recorder()) as one, network(b) as two:
            address = two.addresses()[0]
            assert not two.reached_here(lambda peer: True)
            assert (await dialled(one, address)).problem == ""
            await b.until(lambda: b.connected)
            assert two.reached_here(lambda peer: False) == [address] and one.reached_there() == [address]
            assert not one.reached_here(lambda peer: True) and not two.reached_there(), "who was dialled did not dial"
            assert await two.answers(one.addresses()[0]), "connected the other way round already"
            for dead in (f"/ip4/127.0.0.1/tcp/1/p2p/{one.peer_id}", address.split("/p2p/")[0] + f"/p2p/{ME}", "nothing"):
                assert not await two.answers(dead)
            assert await one.request(two.peer_id, "echo", b"x", timeout_s=5) == b"x"

    trio.run(main)


def test_a_peer_of_another_run_is_told_apart() -> None:
    async def main() -> None:
        other = hash_bytes("manifest", b"another run")
        foreign = open_network(Identity.generate(), other, Recorder(), LOOPBACK)
        async with network(Recorder()) as one, foreign as two:
            await dialled(one, two.addresses()[0])
            with pytest.raises(Unreachable, match="another run"):
                await one.request(two.peer_id, "manifest", b"", timeout_s=PATIENCE_S)
            assert [attempt.problem for attempt in one.attempts()] == [OTHER_RUN] and not one.reached_there()

    trio.run(main)


class Connection:
    """As the library shows one; it is its own multiplexed connection and peer ID."""

    is_closed = False

    def __init__(self, peer: PeerId, direction: str = "inbound") -> None:
        self.direction = direction
        self._peer = peer

    @property
    def muxed_conn(self) -> Connection:
        return self

    @property
    def peer_id(self) -> Connection:
        return self

    def to_base58(self) -> str:
        return self._peer

    def get_remote_address(self) -> tuple[str, int] | None:
        return None

    async def close(self) -> None:
        return


def test_claims_count_as_whoever_asks_says_one_for_each_peer_and_have_an_end() -> None:
    reached, peers = ObservedAddresses(), [PeerId(f"peer {number}") for number in range(MAX_CLAIMS + 9)]
    for number, peer in enumerate(peers):
        for port in (1, 2):
            reached.on_claim(Connection(peer), f"/ip4/203.0.113.{number % 200}/tcp/{port}")
    reached.on_claim(Connection(peers[-1], "outbound"), "/ip4/203.0.113.1/tcp/9")
    assert len(reached.addresses(lambda peer: True)) <= MAX_CLAIMS and not reached.addresses(lambda peer: False)
    assert reached.addresses(lambda peer: peer == peers[-1]) == [f"/ip4/203.0.113.{(len(peers) - 1) % 200}/tcp/2"]
    trusted = peers[-4:-1]
    for peer in trusted[:2]:
        reached.on_claim(Connection(peer), "/ip4/198.51.100.1/tcp/4001")
    assert reached.addresses(lambda peer: peer in trusted)[0] == "/ip4/198.51.100.1/tcp/4001"


@pytest.mark.parametrize("address", [
    "", "/",
    "/ip4/127.0.0.1/tcp/1", "/ip4/0.0.0.0/tcp/1", "/ip4/224.0.0.1/tcp/1", "/ip6/fe80::1/tcp/1", "/ip4/1.2.3.4/tcp/0",
    "/ip4/1.2.3.4/udp/1", "/ip4/1.2.3.4/tcp/x", "/dns4/example/tcp/1", "/ip4/1.2.3.4/tcp/1/p2p/x", "/ip4/" + "1" * 5000])
def test_odd_claims_are_none(address: str) -> None:
    assert not is_public_form(address)
