"""The control socket over the network: the owner comes in, and nobody else."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from peer.control import remote
from peer.control.client import ControlClient, ControlError
from peer.control.event_log import EventLog
from peer.control.remote import CALLER_SAYS, Door, bridge, call, parts_of
from peer.control.server import ControlServer
from protocol.transport.limits import MAX_ON_DOORSTEP
from protocol.wire.identity import SIGNATURE_BYTES, Identity
from tests.protocol.example_status import status

PATIENCE_S = 300.0
PEER, OWNER, STRANGER = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3))


@dataclass
class Place:
    """A peer with a door, listening at `address`."""

    address: str
    port: int
    door: Door


async def _echo(fields: dict[str, Any]) -> dict[str, Any]:
    return {"fields": fields}


def with_door(data_dir: Path, body: Callable[[Place], Awaitable[None]], answering: Identity = PEER) -> None:
    """Run `body` beside a control server and a door to it.  answering: who answers at the address of PEER."""

    async def main() -> None:
        server = ControlServer(data_dir, EventLog(), {"echo": _echo}, status)
        door = Door(answering, [OWNER.peer_id], data_dir)

        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                await door.serve(stream.socket, "127.0.0.1")

        async with trio.open_nursery() as nursery:
            await server.open()
            nursery.start_soon(server.run)
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            port = listener.socket.getsockname()[1]
            with trio.fail_after(PATIENCE_S):
                await body(Place(f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER.peer_id}", port, door))
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_owner_asks_through_a_folder_of_its_own(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()

    async def body(place: Place) -> None:
        client = ControlClient(here)
        async with bridge(here, place.address, OWNER):
            for number in range(3):
                assert await trio.to_thread.run_sync(lambda n=number: client.request("echo", n=n)) == {
                    "fields": {"n": number}
                }

    with_door(there, body)


def test_a_stranger_is_told_what_is_missing_and_gets_nothing(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        with pytest.raises(ControlError, match=f"peer config owner {STRANGER.peer_id}"):
            await call(place.address, STRANGER)

    with_door(tmp_path, body)


def test_whoever_answers_in_the_place_of_the_peer_is_not_told_who_calls(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        with pytest.raises(ControlError, match=f"not {PEER.peer_id}"):
            await call(place.address, OWNER)

    with_door(tmp_path, body, answering=STRANGER)


def test_a_proof_for_another_connection_is_worth_nothing(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        stream = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", place.port), remote._calling())
        await stream.do_handshake()
        await remote.receive(stream, remote.NONCE_BYTES + SIGNATURE_BYTES)
        await stream.send_all(OWNER.public_key + OWNER.sign(CALLER_SAYS + bytes(32) + bytes(remote.NONCE_BYTES)))
        with pytest.raises((trio.BrokenResourceError, remote.NotOurs)):
            await remote.receive(stream, 1)
        await trio.aclose_forcefully(stream)

    with_door(tmp_path, body)


@pytest.mark.parametrize("said", [b"\x16", b"\x16\x03\x01\xff\xff" + bytes(70_000), b"GET / HTTP/1.0\r\n\r\n"])
def test_what_is_no_handshake_ends_its_own_connection_alone(tmp_path: Path, said: bytes) -> None:
    async def body(place: Place) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", place.port)
        async with stream:
            try:
                await stream.send_all(said)
                await stream.send_eof()
                assert await stream.receive_some(1 << 16) is not None
            except trio.BrokenResourceError:
                pass
        async with aclosing(await call(place.address, OWNER)):
            pass

    with_door(tmp_path, body)


def test_a_crowd_that_says_nothing_does_not_keep_the_owner_out(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        crowd = [await trio.open_tcp_stream("127.0.0.1", place.port) for _ in range(MAX_ON_DOORSTEP + 10)]
        while len(place.door._handshakes) < MAX_ON_DOORSTEP:
            await trio.lowlevel.checkpoint()
        async with aclosing(await call(place.address, OWNER)):
            assert len(place.door._handshakes) <= MAX_ON_DOORSTEP
        for stream in crowd:
            await stream.aclose()

    with_door(tmp_path, body)


def test_a_crowd_from_one_address_ends_its_own_handshakes_alone(tmp_path: Path) -> None:
    """However fast it comes: the owner's may take some round trips."""

    async def body(place: Place) -> None:
        async with trio.open_nursery() as nursery:
            ends = [socket.socketpair() for _ in range(3 * MAX_ON_DOORSTEP)]
            socks = [trio.socket.from_stdlib_socket(ours) for ours, _ in ends]
            nursery.start_soon(place.door.serve, socks[0], "192.0.2.1")
            await trio.testing.wait_all_tasks_blocked()
            for sock in socks[1:]:
                nursery.start_soon(place.door.serve, sock, "198.51.100.1")
            while len(place.door._handshakes) < MAX_ON_DOORSTEP:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert [sock.fileno() == -1 for sock in socks].count(False) == MAX_ON_DOORSTEP and socks[0].fileno() != -1
            nursery.cancel_scope.cancel()
        for (_, other), sock in zip(ends, socks, strict=True):
            sock.close()
            other.close()

    with_door(tmp_path, body)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "gpu:4001",
        "/ip4/1.2.3.4/tcp/4001",
        "/ip4/1.2.3.4/udp/4001/p2p/x",
        f"/ip4/1.2.3.4/tcp/70000/p2p/{PEER.peer_id}",
        "/ip4/1.2.3.4/tcp/4001/p2p/12D3Koo",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ControlError, match="give an address from its `peer status`"):
        parts_of(address)


def test_only_the_newest_tls_is_spoken(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        stream = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", place.port), context)
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()
        await trio.aclose_forcefully(stream)

    with_door(tmp_path, body)
