"""`peer`, with one thing added: asked through its control socket, it pushes bytes to another such peer as fast as they go.

They go as its own chunks go: over the bulk sockets that it opens to that peer, by whatever way it finds, encrypted, within
all limits.  The other peer throws them away.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import trio

from peer.cli import main
from peer.control.client import ControlError
from peer.control.server import Command
from peer.daemon.daemon import Daemon
from peer.daemon.requests import Controls
from protocol.node.router import MessageRouter
from protocol.transport.interface import Landing, Network, NetworkError
from protocol.transport.library import MuxedConnection
from protocol.transport.nat.punching import Meetings
from protocol.transport.nat.relay import Circuits
from protocol.transport.nat.traversal import Traversal
from protocol.transport.sockets import DIRECT, Way
from protocol.wire.identity import PeerId

COMMAND = "push-bytes"
HEADER = b"bytes to be thrown away"
PUSH_BYTES = 1 << 20
"""About as much as a chunk of an exchange."""
AT_ONCE = 4
PUSH_S = 60.0
"""For one push; a relay that serves nobody else takes four at once in 4 s."""


@dataclass(frozen=True)
class Pushed:
    """size: bytes that the other peer had after `seconds`.  first_s: until it had the very first push, which does not count:
    it opens the socket, for which a way has to be found, and uses up what rate limits have saved."""

    size: int
    seconds: float
    first_s: float


async def push_for(network: Network, peer: PeerId, seconds: float) -> Pushed:
    """Push for about so long, `AT_ONCE` pushes at a time.  Raises `NetworkError`."""
    data, numbers = memoryview(bytes(PUSH_BYTES)), list[int]()

    async def push() -> None:
        await network.push(peer, HEADER, data, timeout_s=PUSH_S)

    async def go_on() -> None:
        while trio.current_time() < begun_at + seconds:
            await push()
            numbers.append(len(numbers))

    asked_at = trio.current_time()
    await push()
    begun_at = trio.current_time()
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(go_on)
    except* NetworkError as group:
        raise NetworkError(str(group.exceptions[0])) from group
    return Pushed(len(numbers) * PUSH_BYTES, trio.current_time() - begun_at, begun_at - asked_at)


_way: ContextVar[Way] = ContextVar("_way", default=DIRECT)
"""That of the socket which the present task is opening."""
_ways: dict[PeerId, Way] = {}
"""Of the bulk socket that was last opened to each peer."""
_commands, _open_push = Controls.commands, MessageRouter.open_push
_socket, _meet, _open_circuit = Traversal.socket, Meetings.meet, Circuits.open


def _more_commands(controls: Controls) -> dict[str, Command]:
    return {**_commands(controls), COMMAND: partial(_push_when_asked, controls)}


async def _push_when_asked(controls: Controls, fields: dict[str, Any]) -> dict[str, Any]:
    """peer, seconds -> the fields of `Pushed`, and the way of the socket."""
    peer, daemon = PeerId(fields["peer"]), controls._peer
    assert isinstance(daemon, Daemon)
    network = daemon.part.network
    assert network is not None, "it listens before others can name it"
    try:
        pushed = await push_for(network, peer, fields["seconds"])
    except NetworkError as error:
        raise ControlError(str(error)) from error
    return {**asdict(pushed), "way": _ways[peer].kind.value}


async def _open_push_or_nothing(router: MessageRouter, peer: PeerId, header: bytes, size: int) -> Landing | None:
    if header == HEADER:
        return Landing(memoryview(bytearray(size)))
    return await _open_push(router, peer, header, size)


async def _noted_socket(
    traversal: Traversal, peer: PeerId, connection: MuxedConnection, port: int
) -> trio.socket.SocketType:
    _way.set(DIRECT)
    sock = await _socket(traversal, peer, connection, port)
    _ways[peer] = _way.get()
    return sock


async def _noted_meeting(meetings: Meetings, peer: PeerId) -> tuple[trio.socket.SocketType, Way]:
    sock, way = await _meet(meetings, peer)
    _way.set(way)
    return sock, way


async def _noted_circuit(circuits: Circuits, relay: PeerId, peer: PeerId) -> tuple[trio.socket.SocketType, Way]:
    sock, way = await _open_circuit(circuits, relay, peer)
    _way.set(way)
    return sock, way


if __name__ == "__main__":
    Controls.commands = _more_commands  # type: ignore[method-assign,assignment]
    MessageRouter.open_push = _open_push_or_nothing  # type: ignore[method-assign,assignment]
    Traversal.socket = _noted_socket  # type: ignore[method-assign,assignment]
    Meetings.meet = _noted_meeting  # type: ignore[method-assign,assignment]
    Circuits.open = _noted_circuit  # type: ignore[method-assign,assignment]
    sys.exit(main())
