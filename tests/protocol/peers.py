"""Small stand-ins for the tables: heartbeats, READYs, and a network of functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from protocol.events.events import Event
from protocol.events.status import WhyIdle
from protocol.transport.interface import LinkMeasurement, Session, Unreachable
from protocol.wire.hashes import ZERO_HASH, Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Ready
from protocol.wire.presence import Heartbeat, Phase, Role
from tests.protocol.council import a_ready

ME, ANN, BOB = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
Answer = Callable[[str, bytes], Awaitable[bytes]]
"""Of a peer: to a question of this kind."""


def a_heartbeat(**changes: Any) -> Heartbeat:
    """The first one of a trainer at genesis."""
    fields: dict[str, Any] = {
        "incarnation": 1,
        "seq": 1,
        "name": "ann",
        "role": Role.TRAINER,
        "phase": Phase.COMPUTING,
        "why_idle": WhyIdle.BUSY,
        "round": 0,
        "tip": ZERO_HASH,
        "steps": 0,
        "loss": 0.0,
        "tokens_per_s": 0.0,
        "up_bytes_per_s": 0.0,
        "down_bytes_per_s": 0.0,
        "addresses": [],
        "version": "0",
    }
    return Heartbeat(**{**fields, **changes})


def a_first_ready(**changes: Any) -> Ready:
    """The first one of a trainer at genesis, of a contribution that does not exist."""
    genesis = {"round": 0, "base": ZERO_HASH, "serial": 0, "tokens": 8, "steps": 1, "loss": 1.0, "state_digest": ZERO_HASH}
    return a_ready(**{**genesis, **changes})


class TheseMembers:
    """A `protocol.transport.interface.Members`: these peers and no others."""

    def __init__(self, *peers: PeerId) -> None:
        self.peers = set(peers)

    def has_member(self, peer: PeerId) -> bool:
        return peer in self.peers


class TableNetwork:
    """Requests are answered by `answers`; a peer that has none is unreachable.  published, forgotten: in order."""

    def __init__(self) -> None:
        self.peer_id = ME.peer_id
        self.answers: dict[PeerId, Answer] = {}
        self.published: list[bytes] = []
        self.forgotten: list[PeerId] = []

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        await trio.lowlevel.checkpoint()
        if peer not in self.answers:
            raise Unreachable("nobody there")
        return await self.answers[peer](kind, data)

    async def publish(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.published.append(data)

    def connected(self) -> list[PeerId]:
        return [*self.answers]

    def known_addresses(self) -> list[str]:
        return []

    def is_moving(self) -> bool:
        return False

    def link(self, peer: PeerId) -> str:
        return "direct" if peer in self.answers else ""

    def measured_link(self, peer: PeerId) -> LinkMeasurement:
        return LinkMeasurement()

    def forget(self, peer: PeerId) -> None:
        self.forgotten.append(peer)


def a_session(run: Hash, network: TableNetwork, events: list[Event]) -> Session:
    """Ours; `events` gets what it emits."""
    as_network: Any = network
    return Session(ME, run, as_network, events.append)


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """In place of a worker thread."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)
