"""Small stand-ins for the tables: heartbeats, a network of functions, and chains that one peer certified alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from protocol.events import Event
from protocol.network.interface import Unreachable
from protocol.network.session import Session
from protocol.run.manifest import SignedManifest
from protocol.state.base import Base
from protocol.state.chain import index_root, record_hash
from protocol.wire.hashes import ZERO_HASH, Hash, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    Commit,
    Heartbeat,
    Member,
    Phase,
    Record,
    Role,
    Signature,
    Vote,
    WhyIdle,
    pack,
)

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
        "why_detail": "",
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


class TheseMembers:
    """A `protocol.network.interface.Members`: these peers and no others."""

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


def extended(signed: SignedManifest, base: Base, author: Identity, tokens: int = 8) -> tuple[Commit, Base]:
    """A round on `base` of which `author` is the only member and elector, and what the next one stands on."""
    index = [ChunkEntry(hash=chunk_hash(bytes([chunk])), mask=b"\1") for chunk in range(signed.manifest.chunks)]
    record = Record(
        round=base.round,
        fragment=0,
        attempt=0,
        proposer=author.peer_id,
        previous=base.tip,
        members=[Member(peer=author.peer_id, tokens=tokens, root=ZERO_HASH)],
        codec=signed.manifest.codec,
        result_root=index_root(index),
        state_digest=ZERO_HASH,
        loss=1.0,
    )
    vote = Vote(round=record.round, attempt=0, proposer=author.peer_id, evicted=[], record_hash=record_hash(record))
    signature = Signature(peer=author.peer_id, signature=pack(author, signed.run, vote).signature)
    certificate = Certificate(attempt=0, proposer=author.peer_id, evicted=[], votes=[signature])
    return (
        Commit(record=record, index=index, certificate=certificate),
        Base(base.round + 1, 0, record_hash(record), record),
    )
