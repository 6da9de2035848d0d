"""The results of dialling, on loopback sockets."""

from __future__ import annotations

import errno
import socket
import threading

import pytest

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
from protocol.transport.interface import Unreachable
from protocol.transport.network import open_network
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity
from tests.protocol.transport.recorder import LOOPBACK, PATIENCE_S, Recorder, dialled, network


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
