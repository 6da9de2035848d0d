"""Sockets of what is given up are closed at once, and not when Python comes by."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import trio

from protocol.transport.nat import punching
from protocol.transport.nat.punching import DialCandidate, Race
from protocol.transport.sockets import receive, send


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_race_that_is_given_up_when_it_is_won_closes_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wanted it is not there any more."""

    async def main() -> None:
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

    trio.run(main)
