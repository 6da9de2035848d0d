"""Peers that break the protocol: real nodes with one thing changed, and ghosts that say whatever they are told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import trio

from kernels.codecs.format import HEADER_BYTES, from_bf16, to_bf16
from kernels.codecs.ladder import INT4
from protocol.allreduce import runner
from protocol.allreduce.assignment import plan_hash
from protocol.chain.records import index_root, record_hash
from protocol.offload import Offload
from protocol.transport.interface import Acceptance, Landing, NetworkError, Refused
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body
from protocol.wire.hashes import ZERO_HASH, chunk_hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import (
    Certificate,
    ChunkEntry,
    ChunkResult,
    Plan,
    Provenance,
    Ready,
    Record,
    RecordProposal,
    Signature,
    Step,
    ViewChange,
    Vote,
    mask_of,
    member_of,
    pack,
    unpack,
)
from protocol.wire.presence import Heartbeat
from tests.protocol.peers import a_heartbeat
from tests.simulation.determinism import inline
from tests.simulation.network import MemoryNetwork
from tests.simulation.seat import Seat
from tests.simulation.world import World

Corrupt = Callable[[Any], None]


def blow_up(data: Any) -> None:
    """Every value of an average in int4 times 1000."""
    blocks = -(-(len(data) - HEADER_BYTES) // (2 + INT4.block // 2))
    scales = np.frombuffer(data, np.uint16, count=blocks, offset=HEADER_BYTES)
    scales[:] = to_bf16(np.minimum(from_bf16(scales) * np.float32(1000), INT4.LARGEST_SCALE))


def flip_one(data: Any) -> None:
    """One value of an average, a little."""
    codes = np.frombuffer(data, np.int8)
    codes[-1] = codes[-1] - 1 if codes[-1] > 0 else codes[-1] + 1


def averaging_wrong(corrupt: Corrupt) -> Offload:
    """For a seat: what it averages as an owner is spoilt before it is signed."""

    async def offload(function: Any, *arguments: Any) -> Any:
        answer = await inline(function, *arguments)
        if function is runner.average:
            corrupt(arguments[-1])
            return chunk_hash(arguments[-1])
        return answer

    return offload


def turn(world: World, seat: Seat, corrupt: Corrupt) -> None:
    """`seat` will lie as an owner from its next start on."""
    seat.offload = averaging_wrong(corrupt)
    world.judge.liars[seat.peer] = None


def record_of(plan: Plan, index: list[ChunkEntry]) -> Record:
    """The record that the exchange of this plan would have made."""
    return Record(
        round=plan.round,
        fragment=plan.fragment,
        previous=plan.base,
        members=plan.members,
        codec="int4",
        result_root=index_root(index),
        state_digest=plan.state_digest,
    )


class Ghost:
    """An identity on the wire with no node behind it."""

    def __init__(self, world: World, seed: bytes) -> None:
        self.identity = Identity.from_seed(seed * 32)
        self._world = world
        self.network = MemoryNetwork(world.wire, self.peer, self)
        self.asked: list[tuple[str, bytes]] = []
        self._serial = 0
        self.answers: dict[str, bytes] = {"round": b""}
        self.readys: dict[PeerId, tuple[Ready, bytes]] = {}
        """The newest READY that it heard of each peer, and its signature."""
        self.rolls: dict[PeerId, tuple[ViewChange, bytes]] = {}
        """The newest roll that each peer told it, and the envelope."""
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
        return a_heartbeat(seq=seq, name="ghost", round=round, tip=tip)

    async def live(self) -> None:
        """Heartbeats of a trainer at work on the newest tip, until the world ends."""
        seq = 0
        while True:
            nodes = [seat.node for seat in self._world.seats if seat.node is not None]
            newest = max(nodes, key=lambda node: node.rounds)
            seq += 1
            await self.gossip(self.beat(seq, newest.rounds, newest.tip))
            await trio.sleep(2.0)

    def ready_for(self, example: Ready) -> Ready:
        """The READY that makes the ghost a member of the same round, with a contribution that nobody has."""
        self._serial += 1
        return example.model_copy(
            update={"incarnation": 1, "serial": self._serial, "tokens": 8, "steps": 1, "root": ZERO_HASH, "admission": b""}
        )

    def newest_ready(self) -> Ready:
        """Of those that others have said."""
        return max((ready for ready, _ in self.readys.values()), key=lambda ready: ready.round)

    def rolls_for(self, example: ViewChange) -> list[bytes]:
        """The rolls of all who called this ballot, and its own, which names nothing."""
        own = example.model_copy(update={"held": bytes(len(example.held)), "plan": None, "lock": None, "reduced": None})
        called = {self.peer: pack(self.identity, self._world.signed.run, own).raw}
        for sender, (roll, raw) in self.rolls.items():
            if (roll.base, roll.attempt, roll.absent) == (example.base, example.attempt, example.absent):
                called[sender] = raw
        return [called[peer] for peer in sorted(called)]

    def made_up_motion(self, rolls: list[bytes], signed: bool) -> RecordProposal:
        """A record of the running round with all who are ready and the ghost, and averages that nobody made.

        signed: whether the ghost signs for having made them.
        """
        _, roll, _ = unpack(rolls[0], self._world.signed.run)
        assert isinstance(roll, ViewChange)
        said = {peer: heard for peer, heard in self.readys.items() if heard[0].base == roll.base}
        example = next(iter(said.values()))[0]
        own = self.ready_for(example)
        said[self.peer] = own, pack(self.identity, self._world.signed.run, own).signature
        members = [member_of(peer, *said[peer]) for peer in sorted(said)]
        chunks, mask = self._world.signed.manifest.chunks, mask_of(range(len(members)), len(members))
        index = [ChunkEntry(hash=chunk_hash(bytes([chunk])), mask=mask) for chunk in range(chunks)]
        plan = Plan(
            round=roll.round,
            fragment=example.fragment,
            base=roll.base,
            members=members,
            owners=bytes((sorted(said).index(self.peer) + chunk) % len(members) for chunk in range(chunks)),
            state_digest=example.state_digest,
        )
        return RecordProposal(
            attempt=roll.attempt,
            absent=roll.absent,
            record=record_of(plan, index),
            index=index,
            provenance=self._provenance(plan, index, signed),
            rolls=rolls,
            proof=None,
        )

    def _provenance(self, plan: Plan, index: list[ChunkEntry], signed: bool) -> Provenance:
        results = [ChunkResult(plan=plan_hash(plan), chunk=chunk, entry=entry) for chunk, entry in enumerate(index)]
        run = self._world.signed.run
        signatures = [pack(self.identity, run, result).signature if signed else bytes(64) for result in results]
        return Provenance(owners=plan.owners, signers=plan.owners, signatures=signatures)

    def forged_votes(self, record: Record, voters: list[PeerId], step: Step) -> Certificate:
        """Votes of all these, every one signed by the ghost."""
        vote = Vote(
            round=record.round, base=record.previous, attempt=0, step=step, absent=[], record_hash=record_hash(record)
        )
        signature = pack(self.identity, self._world.signed.run, vote).signature
        votes = [Signature(peer=peer, signature=signature) for peer in sorted(voters)]
        return Certificate(attempt=0, absent=[], votes=votes)

    # -- what the network calls ---------------------------------------------------------------------------------------

    def has_member(self, peer: PeerId) -> bool:
        return False

    def has_allowance(self, peer: PeerId) -> bool:
        return False

    def on_gossip(self, forwarder: PeerId, data: bytes) -> Acceptance:
        sender, body, envelope = unpack(data, self._world.signed.run)
        if isinstance(body, Ready):
            self.readys[sender] = body, envelope.signature
        return Acceptance.IGNORE

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked.append((kind, data))
        if kind == "round":
            sender, body, _ = unpack(data, self._world.signed.run)
            if isinstance(body, ViewChange):
                self.rolls[sender] = body, data
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
