"""What a bad client of the control socket costs: its own connection, and never the peer.

All clients live in the server's event loop with a virtual clock, so that deadlines pass when everybody waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from peer.control.client import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    SOCKET_NAME,
    pack_frame,
    take_frame,
)
from peer.control.event_log import EventLog
from peer.control.ledger import MAX_MEMBERS_TOLD, ledger_of
from peer.control.server import IDLE_DEADLINE_S, MAX_CONNECTIONS, SEND_DEADLINE_S, ControlServer
from protocol.chain.credit import Credit
from protocol.events.events import Notice
from protocol.events.status import PeerStatus
from protocol.wire.identity import PeerId
from tests.protocol.example_status import status

QUESTION = pack_frame({"do": "echo", "word": "here"}, max_bytes=MAX_REQUEST_BYTES)


async def _echo(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


async def _huge(fields: dict[str, Any]) -> dict[str, Any]:
    return {"much": "x" * (MAX_ANSWER_BYTES + 1)}


async def _large(fields: dict[str, Any]) -> dict[str, Any]:
    return {"much": "x" * (MAX_ANSWER_BYTES - 100)}


async def _broken(fields: dict[str, Any]) -> dict[str, Any]:
    return {"missing": fields["missing"]}


async def _unpackable(fields: dict[str, Any]) -> dict[str, Any]:
    return {"number": 1 << 100}


def attacked(
    data_dir: Path, attack: Callable[[EventLog], Awaitable[None]], status: Callable[[], PeerStatus] = status
) -> None:
    """Run `attack` against a server of `data_dir`; afterwards the server must still answer."""
    commands = {"echo": _echo, "huge": _huge, "large": _large, "broken": _broken, "unpackable": _unpackable}

    async def main() -> None:
        log = EventLog()
        server = ControlServer(data_dir, log, commands, status)
        await server.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            await attack(log)
            async with await connected(data_dir) as stream:
                assert await asked(stream, {"do": "echo", "word": "after"}) == {"ok": True, "word": "after"}
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.1))


async def connected(data_dir: Path) -> trio.SocketStream:
    return await trio.open_unix_socket(str(data_dir / SOCKET_NAME))


async def answer(stream: trio.SocketStream) -> dict[str, Any] | None:
    """The next frame; None at the end of the connection."""
    buffer = bytearray()
    while (message := take_frame(buffer, max_bytes=MAX_ANSWER_BYTES)) is None:
        try:
            data = await stream.receive_some(1 << 16)
        except trio.BrokenResourceError:
            return None
        if not data:
            return None
        buffer += data
    return message


async def asked(stream: trio.SocketStream, question: dict[str, Any]) -> dict[str, Any] | None:
    await stream.send_all(pack_frame(question, max_bytes=MAX_REQUEST_BYTES))
    return await answer(stream)


@pytest.mark.parametrize(
    ("command", "said"),
    [("huge", "larger than the 8.4 MB"), ("broken", "unexpected KeyError"), ("unpackable", "unexpected Overf")],
)
def test_an_answer_that_cannot_be_given_ends_at_most_its_connection(tmp_path: Path, command: str, said: str) -> None:
    async def attack(log: EventLog) -> None:
        async with await connected(tmp_path) as stream:
            got = await asked(stream, {"do": command})
            assert got is not None and got["ok"] is False and said in got["error"]
            assert await asked(stream, {"do": "echo"}) == {"ok": True}

    attacked(tmp_path, attack)


def test_a_snapshot_that_is_too_large_or_cannot_be_made_is_refused(tmp_path: Path) -> None:
    def failing() -> PeerStatus:
        raise RuntimeError("no status")

    async def attack(log: EventLog) -> None:
        async with await connected(tmp_path) as stream:
            got = await asked(stream, {"do": "events"})
            assert got is None or got["ok"] is False

    attacked(tmp_path, attack, lambda: status(why_detail="x" * MAX_ANSWER_BYTES))
    attacked(tmp_path, attack, failing)


def test_an_event_that_is_too_large_is_left_out_of_the_stream(tmp_path: Path) -> None:
    async def attack(log: EventLog) -> None:
        async with await connected(tmp_path) as stream:
            assert await asked(stream, {"do": "events"}) is not None
            log.emit(Notice("info", "x" * (MAX_ANSWER_BYTES + 1)))
            log.emit(Notice("info", "small"))
            got = [await answer(stream), await answer(stream)]
            assert got[0] is not None and "event" not in got[0] and got[1] is not None and got[1]["text"] == "small"

    attacked(tmp_path, attack)


def test_garbage_in_every_form_is_survived(tmp_path: Path) -> None:
    random = Random(7)

    def garbage() -> bytes:
        match random.randrange(5):
            case 0:
                return random.randbytes(random.randrange(1, 200))
            case 1:  # a frame of noise
                noise = random.randbytes(random.randrange(60))
                return len(noise).to_bytes(4, "big") + noise
            case 2:  # a question cut short
                return QUESTION[: random.randrange(1, len(QUESTION))]
            case 3:  # a question with a flipped bit
                place = random.randrange(len(QUESTION))
                return QUESTION[:place] + bytes([QUESTION[place] ^ 1 << random.randrange(8)]) + QUESTION[place + 1 :]
            case _:  # nested so deep that a reader without a limit runs out of stack
                return (5000).to_bytes(4, "big") + b"\x81\xa2do" + b"\x91" * 4996

    async def attack(log: EventLog) -> None:
        for _ in range(300):
            async with await connected(tmp_path) as stream:
                await stream.send_all(garbage())
                if random.random() < 0.5:
                    await stream.send_eof()
                    await answer(stream)

    attacked(tmp_path, attack)


def test_half_a_question_is_dropped_after_its_deadline(tmp_path: Path) -> None:
    async def attack(log: EventLog) -> None:
        async with await connected(tmp_path) as stream:
            began = trio.current_time()
            await stream.send_all(QUESTION[:-1])
            assert await answer(stream) is None
            assert trio.current_time() - began == pytest.approx(IDLE_DEADLINE_S, abs=0.2)

    attacked(tmp_path, attack)


def test_a_client_that_takes_no_answer_is_dropped_after_its_deadline(tmp_path: Path) -> None:
    async def attack(log: EventLog) -> None:
        async with await connected(tmp_path) as stream:
            await stream.send_all(pack_frame({"do": "large"}, max_bytes=MAX_REQUEST_BYTES))
            await trio.sleep(SEND_DEADLINE_S + 1)
            received = 0
            while data := await _some(stream):
                received += len(data)
            assert received < MAX_ANSWER_BYTES - 100

    attacked(tmp_path, attack)


async def _some(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some(1 << 20))
    except trio.BrokenResourceError:
        return b""


def test_connections_that_ask_nothing_make_room_for_one_that_asks(tmp_path: Path) -> None:
    async def attack(log: EventLog) -> None:
        idle = [await connected(tmp_path) for _ in range(3 * MAX_CONNECTIONS)]
        async with await connected(tmp_path) as stream:
            assert await asked(stream, {"do": "echo"}) == {"ok": True}
        for other in idle:
            await other.aclose()

    attacked(tmp_path, attack)


@pytest.mark.slow
def test_the_ledger_of_very_many_members_is_told_in_part() -> None:
    """An answer over the limit used to end the server, and the peer with it."""
    credits = {PeerId(f"{number:052}"): Credit(1, number) for number in range(150_000)}
    told = ledger_of(credits, 1, MAX_MEMBERS_TOLD)
    assert (len(told["members"]), told["untold"]) == (MAX_MEMBERS_TOLD, 150_000 - MAX_MEMBERS_TOLD)
    assert told["members"][0]["tokens"] == 149_999 and len(pack_frame(told, max_bytes=MAX_ANSWER_BYTES)) < MAX_ANSWER_BYTES
    assert ledger_of(credits, 1)["untold"] == 0
