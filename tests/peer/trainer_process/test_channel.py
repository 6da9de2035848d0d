"""The conversation with a trainer, without one: what is sent, who hears the answer, and what ends the process."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio

from peer.trainer_process.channel import TrainerChannel
from protocol.trainer_link import LimitsExceeded, TrainerDied
from trainer.service import frames


class Process:
    """Counts how often it is killed."""

    pid = 17

    def __init__(self) -> None:
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1


class Far:
    """The trainer's end of the socket."""

    def __init__(self, connection: trio.SocketStream) -> None:
        self._connection, self._buffer = connection, bytearray()

    async def next(self) -> dict[str, Any]:
        while (message := frames.take(self._buffer)) is None:
            self._buffer += await self._connection.receive_some(1 << 16)
        return message

    async def say(self, **fields: Any) -> None:
        await self._connection.send_all(frames.pack(fields))

    async def say_bytes(self, data: bytes) -> None:
        await self._connection.send_all(data)


def conversed(scenario: Callable[[TrainerChannel, Process, Far], Awaitable[None]]) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        process = Process()
        with ours:
            channel = TrainerChannel(ours, cast(trio.Process, process))
            async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream, trio.open_nursery() as nursery:
                nursery.start_soon(channel.listen)
                with trio.fail_after(60):
                    await scenario(channel, process, Far(stream))
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_progress_and_answer_reach_the_one_who_asked() -> None:
    async def scenario(channel: TrainerChannel, process: Process, far: Far) -> None:
        heard: list[int] = []

        async def answer() -> None:
            asked = await far.next()
            assert (asked["do"], asked["round"]) == ("compute", 3)
            await far.say(id=asked["id"], **{"is": "progress"}, steps=1)
            await far.say(id=99, **{"is": "progress"}, steps=2)  # of something abandoned
            await far.say(id=asked["id"], **{"is": "done"}, loss=2.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            got = await channel.ask("compute", lambda message: heard.append(message["steps"]), round=3)
        assert (got["loss"], heard, channel.busy, process.kills) == (2.5, [1], False, 0)

    conversed(scenario)


def test_a_cancelled_command_is_abandoned() -> None:
    async def scenario(channel: TrainerChannel, process: Process, far: Far) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.ask, "evaluate")
                asked = await far.next()
                scope.cancel()
        assert await far.next() == {"do": "abandon", "id": asked["id"]} and not channel.busy

    conversed(scenario)


def test_the_end_of_the_process_ends_every_call_with_the_reason() -> None:
    async def scenario(channel: TrainerChannel, process: Process, far: Far) -> None:
        async def ask() -> None:
            with pytest.raises(TrainerDied, match="out of memory"):
                await channel.ask("compute")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await far.next(), await far.next()
            channel.fail("out of memory")

    conversed(scenario)


@pytest.mark.parametrize("beyond_limits", [False, True])
def test_a_round_beyond_its_limits_is_told_from_every_other_failure(beyond_limits: bool) -> None:
    async def scenario(channel: TrainerChannel, process: Process, far: Far) -> None:
        async def ask() -> None:
            with pytest.raises(TrainerDied) as death:
                await channel.ask("compute")
            assert isinstance(death.value, LimitsExceeded) is beyond_limits

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            asked = await far.next()
            await far.say(id=asked["id"], **{"is": "failed"}, reason="it failed", beyond_limits=beyond_limits)
            while not channel.fault:
                await trio.lowlevel.checkpoint()
            channel.fail(channel.fault)

    conversed(scenario)


@pytest.mark.parametrize(
    "said", [b"\xff\xff\xff\xff", frames.pack({"is": "done"}), b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x01x"]
)
def test_nonsense_ends_the_process(said: bytes) -> None:
    async def scenario(channel: TrainerChannel, process: Process, far: Far) -> None:
        await far.say_bytes(said)
        while not process.kills:
            await trio.lowlevel.checkpoint()
        assert channel.fault.startswith("the trainer sent an invalid message")

    conversed(scenario)


def test_a_process_that_does_not_read_is_killed_and_a_closed_channel_says_nothing() -> None:
    async def scenario(channel: TrainerChannel, process: Process, far: Far) -> None:
        for _ in range(1 << 20):
            channel.send({"do": "threads", "threads": 1, "why": "x" * 1000})
            if process.kills:
                break
        assert process.kills == 1

    conversed(scenario)
    process, (ours, theirs) = Process(), socket.socketpair()

    async def closed() -> None:
        channel = TrainerChannel(ours, cast(trio.Process, process))
        ours.close()
        channel.send({"do": "pause"})

    trio.run(closed)
    theirs.close()
    assert process.kills == 0
