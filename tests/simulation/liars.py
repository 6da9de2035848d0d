"""Peers that break the protocol: real nodes with one thing changed, and ghosts that say whatever they are told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import trio

from protocol.exchange import averaging
from protocol.exchange.assignment import plan_hash
from protocol.network.interface import Landing, NetworkError, Refused, Verdict
from protocol.network.simulated.network import MemoryNetwork
from protocol.offload import Offload
from protocol.state.chain import index_root
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import ZERO_HASH, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.masks import mask_of
from protocol.wire.messages import (
    Body,
    ChunkEntry,
    ChunkResult,
    Heartbeat,
    Member,
    Motion,
    Phase,
    Plan,
    Provenance,
    Ready,
    Record,
    Role,
    WhyIdle,
    pack,
)
from tests.simulation.determinism import inline
from tests.simulation.seat import Seat
from tests.simulation.world import World

Corrupt = Callable[[Any], None]


def blow_up(data: Any) -> None:
    """Every value of an average times 1000."""
    scales = np.frombuffer(data, np.float32, count=len(data) // 260)
    scales *= np.float32(1000)


def flip_one(data: Any) -> None:
    """One value of an average, a little."""
    codes = np.frombuffer(data, np.int8)
    codes[-1] = codes[-1] - 1 if codes[-1] > 0 else codes[-1] + 1


def averaging_wrong(corrupt: Corrupt) -> Offload:
    """For a seat: what it averages as an owner is spoilt before it is signed."""

    async def offload(function: Any, *arguments: Any) -> Any:
        answer = await inline(function, *arguments)
        if function is averaging.average:
            corrupt(arguments[-1])
            return chunk_hash(arguments[-1])
        return answer

    return offload


def turn(world: World, seat: Seat, corrupt: Corrupt) -> None:
    """`seat` will lie as an owner from its next start on."""
    seat.offload = averaging_wrong(corrupt)
    world.judge.liars[seat.peer] = None


class Ghost:
    """An identity on the wire with no node behind it."""

    def __init__(self, world: World, seed: bytes) -> None:
        self.identity = Identity.from_seed(seed * 32)
        self._world = world
        self.network = MemoryNetwork(world.wire, self.peer, self)
        self.asked: list[tuple[str, bytes]] = []
        self._serial = 0
        self.answers: dict[str, bytes] = {}
        world.wire.join(self.network)
        world.spawn(self.network.run)

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    async def gossip(self, body: Body) -> None:
        await self.network.publish(pack(self.identity, self._world.signed.run, body).raw)

    async def tell(self, peer: PeerId, body: Body) -> str:
        """Send a round statement; what came of it."""
        try:
            await self.network.request(peer, "round", pack(self.identity, self._world.signed.run, body).raw, timeout_s=5)
        except (NetworkError, Malformed) as error:
            return str(error)
        return ""

    def beat(self, seq: int, round: int, tip: bytes = ZERO_HASH) -> Heartbeat:
        return Heartbeat(
            incarnation=1,
            seq=seq,
            name="ghost",
            role=Role.TRAINER,
            phase=Phase.COMPUTING,
            why_idle=WhyIdle.BUSY,
            why_detail="",
            round=round,
            tip=tip,
            steps=0,
            loss=0.0,
            tokens_per_s=0.0,
            up_bytes_per_s=0.0,
            down_bytes_per_s=0.0,
            addresses=[],
            version="0",
        )

    def made_up_motion(self, readys: dict[PeerId, Ready], signed: bool) -> Motion:
        """A record of the running round with these members and the ghost, and averages that nobody made."""
        example = next(iter(readys.values()))
        members = [Member(peer=peer, tokens=ready.tokens, root=ready.root) for peer, ready in readys.items()]
        members.append(Member(peer=self.peer, tokens=8, root=ZERO_HASH))
        members.sort(key=lambda member: member.peer)
        me, chunks = [member.peer for member in members].index(self.peer), self._world.signed.manifest.chunks
        mask = mask_of(range(len(members)), len(members))
        index = [ChunkEntry(hash=chunk_hash(bytes([chunk])), mask=mask) for chunk in range(chunks)]
        record = Record(
            round=example.round,
            fragment=0,
            attempt=0,
            proposer=self.peer,
            previous=example.base,
            members=members,
            codec="int8",
            result_root=index_root(index),
            state_digest=example.state_digest,
            loss=1.0,
        )
        owners = bytes([me]) * chunks
        plan = Plan(
            round=record.round,
            fragment=0,
            base=record.previous,
            members=members,
            owners=owners,
            state_digest=record.state_digest,
            loss=record.loss,
        )
        results = [ChunkResult(plan=plan_hash(plan), chunk=chunk, entry=index[chunk]) for chunk in range(chunks)]
        signatures = [
            pack(self.identity, self._world.signed.run, result).signature if signed else bytes(64) for result in results
        ]
        provenance = Provenance(owners=owners, signers=owners, signatures=signatures)
        return Motion(attempt=0, proposer=self.peer, evicted=[], record=record, index=index, provenance=provenance)

    def ready_for(self, motion: Motion) -> Ready:
        """The READY that makes the ghost a member."""
        record = motion.record
        self._serial += 1
        return Ready(
            round=record.round,
            fragment=0,
            base=record.previous,
            incarnation=1,
            serial=self._serial,
            tokens=8,
            steps=1,
            loss=1.0,
            norm=1.0,
            root=ZERO_HASH,
            state_digest=record.state_digest,
        )

    # -- what the network calls ---------------------------------------------------------------------------------------

    def has_member(self, peer: PeerId) -> bool:
        return False

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Verdict:
        return Verdict.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked.append((kind, data))
        if kind not in self.answers:
            raise Refused("a ghost answers nothing")
        return self.answers[kind]

    async def open_push(self, peer: PeerId, header: bytes, size: int) -> Landing | None:
        await trio.lowlevel.checkpoint()
        return None

    async def finish_push(self, peer: PeerId, header: bytes, landing: Landing | None) -> None:
        await trio.lowlevel.checkpoint()

    def on_peer_connected(self, peer: PeerId) -> None: ...

    def on_peer_disconnected(self, peer: PeerId) -> None: ...
