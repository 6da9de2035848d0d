"""The peer before its node runs."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from peer.joining.lobby import Lobby
from protocol.transport.interface import Refused
from protocol.wire.identity import Identity
from tests.protocol.transport.recorder import Recorder


def test_a_greeting_waits_for_the_node_and_other_questions_are_refused() -> None:
    async def main() -> None:
        lobby, somebody = Lobby(), Identity.generate().peer_id
        answers: list[bytes] = []

        async def greet() -> None:
            answers.append(await lobby.on_request(somebody, "hello", b"I am here"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(greet)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Refused, match="still starting"):
                await lobby.on_request(somebody, "tips", b"")
            assert not answers
            lobby.admit(Recorder())
        assert answers == [b"I am here"]

    trio.run(main)
