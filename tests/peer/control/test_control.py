"""The control socket: what a client may say, what it gets, and what a bad one costs."""

from __future__ import annotations

import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from peer.control.client import (
    MAX_REQUEST_BYTES,
    SOCKET_NAME,
    BadControlFrame,
    ControlClient,
    ControlError,
    EventStream,
    NotRunning,
    pack_frame,
    take_frame,
)
from peer.control.event_log import EventLog
from peer.control.server import ControlServer
from protocol.events.events import ComputeProgress, Notice, PhaseChanged
from tests.protocol.example_status import status

PATIENCE_S = 300.0
"""Only ends a test that hangs."""


async def _echo(fields: dict[str, Any]) -> dict[str, Any]:
    return {"fields": fields}


async def _refuse(fields: dict[str, Any]) -> dict[str, Any]:
    raise ControlError("not now")


def with_server(data_dir: Path, body: Callable[[EventLog], Awaitable[None]]) -> None:
    """Run `body` while a control server serves `data_dir`."""

    async def main() -> None:
        log = EventLog()
        server = ControlServer(data_dir, log, {"echo": _echo, "refuse": _refuse}, status)
        async with trio.open_nursery() as nursery:
            await server.open()
            nursery.start_soon(server.run)
            with trio.fail_after(PATIENCE_S):
                await body(log)
            nursery.cancel_scope.cancel()

    trio.run(main)


def raw_connection(data_dir: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(data_dir / SOCKET_NAME))
    return connection


def read_frame(connection: socket.socket) -> dict[str, Any] | None:
    buffer = bytearray()
    while (message := take_frame(buffer, max_bytes=1 << 20)) is None:
        data = connection.recv(1)
        if not data:
            return None
        buffer += data
    return message


def test_a_question_gets_its_answer_and_a_refusal_its_sentence(tmp_path: Path) -> None:
    async def body(log: EventLog) -> None:
        client = ControlClient(tmp_path)
        assert await trio.to_thread.run_sync(lambda: client.request("echo", seconds=3)) == {"fields": {"seconds": 3}}
        with pytest.raises(ControlError, match="not now"):
            await trio.to_thread.run_sync(client.request, "refuse")
        with pytest.raises(ControlError, match="does not know this command"):
            await trio.to_thread.run_sync(client.request, "dance")

    with_server(tmp_path, body)


def test_only_the_owner_may_connect_and_the_socket_goes_with_the_server(tmp_path: Path) -> None:
    async def body(log: EventLog) -> None:
        assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600

    with_server(tmp_path, body)
    assert not (tmp_path / SOCKET_NAME).exists()
    with pytest.raises(NotRunning):
        ControlClient(tmp_path).request("echo")


def test_a_socket_left_by_a_killed_peer_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / SOCKET_NAME))
    left.close()
    with pytest.raises(NotRunning):
        ControlClient(tmp_path).request("echo")

    async def body(log: EventLog) -> None:
        assert await trio.to_thread.run_sync(ControlClient(tmp_path).request, "echo") == {"fields": {}}

    with_server(tmp_path, body)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",  # a length bomb
        (MAX_REQUEST_BYTES + 1).to_bytes(4, "big") + b"x",
        b"\x00\x00\x00\x01\xc1",  # no msgpack
        b"\x00\x00\x00\x03abc",  # trailing bytes
        b"\x00\x00\x00\x01\x01",  # no map
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x03\x81\x01\x01",  # a key that is no string
    ],
)
def test_a_malformed_frame_ends_its_connection_only(tmp_path: Path, sent: bytes) -> None:
    async def body(log: EventLog) -> None:
        connection = raw_connection(tmp_path)
        with connection:
            connection.sendall(sent)
            answer = await trio.to_thread.run_sync(read_frame, connection)
            assert answer is not None and answer["ok"] is False and "frame" in answer["error"]
            assert await trio.to_thread.run_sync(read_frame, connection) is None
        assert await trio.to_thread.run_sync(ControlClient(tmp_path).request, "echo") == {"fields": {}}

    with_server(tmp_path, body)


def test_an_oversize_question_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def body(log: EventLog) -> None:
        with pytest.raises(BadControlFrame, match="over the limit"):
            await trio.to_thread.run_sync(lambda: ControlClient(tmp_path).request("echo", much="x" * 70_000))

    with_server(tmp_path, body)
    with pytest.raises(BadControlFrame):
        pack_frame({"a": "x" * 100}, max_bytes=50)


def test_the_event_stream_begins_with_a_snapshot(tmp_path: Path) -> None:
    async def body(log: EventLog) -> None:
        log.emit(Notice("info", "before"))
        log.emit(ComputeProgress(3, 1, 10, 2.5, 100.0, 9.0))
        log.emit(ComputeProgress(3, 2, 10, 2.4, 100.0, 9.0))
        stream = await trio.to_thread.run_sync(ControlClient(tmp_path).events)
        assert stream.status == status()
        assert [stamped.event for stamped in stream.recent] == [
            Notice("info", "before"),
            ComputeProgress(3, 2, 10, 2.4, 100.0, 9.0),
        ]
        log.emit(PhaseChanged("ready", "", ""))
        stamped = await trio.to_thread.run_sync(stream.next, PATIENCE_S)
        assert stamped is not None and stamped.event == PhaseChanged("ready", "", "")
        log.flush()
        assert await trio.to_thread.run_sync(stream.next, PATIENCE_S) is None
        assert stream.end == "the peer stopped"
        stream.close()

    with_server(tmp_path, body)


@pytest.mark.parametrize("lacking", [{"status": None}, {"status": {"phase": "computing"}}, {"status": {"swarm": [1]}}])
def test_a_snapshot_without_a_status_is_a_sentence(lacking: dict[str, Any]) -> None:
    with socket.socket() as connection, pytest.raises(ControlError, match="restart the peer with this version"):
        EventStream(connection, bytearray(), lacking)


def test_a_listener_that_does_not_read_is_dropped_and_the_daemon_goes_on(tmp_path: Path) -> None:
    async def body(log: EventLog) -> None:
        stream = await trio.to_thread.run_sync(ControlClient(tmp_path).events)
        for number in range(10_000):
            log.emit(Notice("info", f"{number} " + "x" * 200))
        assert log.listeners_dropped == 1
        assert await trio.to_thread.run_sync(ControlClient(tmp_path).request, "echo") == {"fields": {}}
        got = await trio.to_thread.run_sync(lambda: list(stream))
        assert 0 < len(got) < 10_000
        assert stream.end == "too slow to follow"
        stream.close()

    with_server(tmp_path, body)
