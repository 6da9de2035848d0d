"""Keys on the wire with no node behind them, which say whatever they are told to: one, with a history, or a crowd."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import trio

from kernels.layout import Layout
from protocol.blobs.blob import BlobReply, BlobRequest, ChunkHeader, ChunksReply, ChunksRequest, to_bitmap
from protocol.chain.records import genesis_tip, record_hash
from protocol.node.node import Node
from protocol.transport.interface import Acceptance, Landing, NetworkError, Refused
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, decode_body
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Commit, Ready, pack, unpack
from protocol.wire.presence import Heartbeat, Phase
from protocol.wire.questions import CommitsReply, CommitsRequest, HaveReply, TipsReply, TipsRequest
from tests.attacks.forgeries import LATE_INCARNATION, Invention, keys, ready
from tests.attacks.forgers import Memory
from tests.protocol.peers import a_heartbeat
from tests.simulation.network import MemoryNetwork
from tests.simulation.world import World


class Ghost:
    """An identity on the wire with no node behind it, which may be that of a peer that is gone; a liar to the judge.

    readys: the newest READY that it heard of each peer, and its signature.
    """

    def __init__(self, world: World, identity: Identity) -> None:
        self.identity = identity
        self._world = world
        world.judge.liars[self.peer] = None
        self.network = MemoryNetwork(world.wire, self.peer, self)
        self._serial = 0
        self.answers: dict[str, bytes] = {"round": b""}
        self.readys: dict[PeerId, tuple[Ready, bytes]] = {}
        world.wire.join(self.network)
        world.spawn(self.network.run)

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    async def gossip(self, body: Body) -> None:
        await self.network.publish(pack(self.identity, self._world.signed.run, body).raw)

    async def tell(self, peer: PeerId, body: Body) -> None:
        """Send a round statement, whatever comes of it."""
        with suppress(NetworkError, Malformed):
            await self.network.request(peer, "round", pack(self.identity, self._world.signed.run, body).raw, timeout_s=5)

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


class Historian(Ghost):
    """Shows others a chain of records, and the results that it has; its heartbeats say how long the chain is."""

    chain: Sequence[Commit] = ()
    inventions: Sequence[Invention] = ()

    async def beat_on(self, every_s: float = 2.0) -> None:
        """Claim the end of the chain, once there is one, until cancelled."""
        seq = 10**6
        while True:
            if self.chain:
                seq += 1
                tip = record_hash(self.chain[-1].record)
                beat = self.beat(seq, len(self.chain), tip).model_copy(update={"incarnation": LATE_INCARNATION})
                await self.gossip(beat)
            await trio.sleep(every_s)

    async def on_request(self, peer: PeerId, kind: str, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        if kind == "tips":
            question = decode_body(TipsRequest, data)
            tips: list[bytes] = [genesis_tip(self._world.signed.run), *(record_hash(commit.record) for commit in self.chain)]
            return TipsReply(length=len(self.chain), tips=tips[question.start : question.start + question.count]).encode()
        if kind == "commits":
            asked = decode_body(CommitsRequest, data)
            shown = self.chain[asked.start : asked.start + asked.count]
            return CommitsReply(commits=[commit.encode() for commit in shown]).encode()
        if kind == "have":
            return HaveReply(length=len(self.chain), oldest_result=0, checkpoints=[]).encode()
        if kind == "blob":
            count = len(self._layout) if self._bytes_of(decode_body(BlobRequest, data).blob) is not None else 0
            return BlobReply(chunks=to_bitmap((1 << count) - 1, count), more=True, apart=False, neighbours=[]).encode()
        if kind == "want":
            self._world.spawn(self._push, peer, decode_body(ChunksRequest, data))
            return ChunksReply(chunks=[], busy=[]).encode()
        return await super().on_request(peer, kind, data)

    @property
    def _layout(self) -> Layout:
        return self._world.signed.manifest.layouts.result

    def _bytes_of(self, root: bytes) -> memoryview | None:
        return next((each.data for each in self.inventions if each.record.result_root == root), None)

    async def _push(self, peer: PeerId, wanted: ChunksRequest) -> None:
        data = self._bytes_of(wanted.blob)
        for chunk in wanted.chunks:
            if data is not None and chunk < len(self._layout):
                header = ChunkHeader(blob=wanted.blob, chunk=chunk).encode()
                with suppress(NetworkError):
                    await self.network.push(peer, header, memoryview(data)[self._layout[chunk].encoded], timeout_s=60)


class Strangers:
    """Any number of keys behind one connection, that of `speaker`; all say the same.  The judge takes them for liars."""

    def __init__(self, world: World, count: int, mark: str = "crowd", speaker: Ghost | None = None) -> None:
        self.keys: list[Identity] = keys(count, mark)
        self._world, self._seq = world, 0
        self.speaker = speaker or Ghost(world, Identity.from_seed(b"\x6e" * 32))
        for key in self.keys:
            world.judge.liars[key.peer_id] = None

    def connect(self) -> None:
        """Each key has shown a connection of its own to every peer, so that it counts as alive while its heartbeats come.

        It takes no question and no push there.
        """
        for seat in self._world.up():
            end = self._world.wire.end(seat.peer)
            if end is not None:
                for key in self.keys:
                    end.handlers.on_peer_connected(key.peer_id)

    async def say(self, body: Body) -> None:
        """Gossip this as each of them."""
        for key in self.keys:
            await self.speaker.network.publish(pack(key, self._world.signed.run, body).raw)

    async def beat(self, round: int, tip: bytes, phase: Phase = Phase.COMPUTING) -> None:
        """Each of them is here, and stands on this tip."""
        self._seq += 1
        await self.say(self.speaker.beat(self._seq, round, tip).model_copy(update={"phase": phase}))

    async def be_ready(self, node: Node, digest: bytes | None = None) -> None:
        """A READY of each for the round after the newest record of `node`.  digest: of another state than its."""
        base = node._history.base
        stands_on = node._replica.state.digest() if digest is None else digest
        await self.say(ready(base, stands_on, serial=base.round))


async def harass(world: World, crowd: Strangers, memory: Memory, random: Random) -> None:
    """The crowd comes and says something else every few seconds, until the liars fall silent."""
    moods = ("waits", "is ready", "stands elsewhere", "is ahead")
    while not memory.silent:
        await trio.sleep(2.0)
        nodes = [seat.node for seat in world.up() if seat.node is not None]
        if not nodes:
            continue
        node, mood = max(nodes, key=lambda node: node.rounds), random.choice(moods)
        crowd.connect()
        if mood == "is ahead":
            await crowd.beat(node.rounds + random.randint(1, 10**6), random.randbytes(32))
        else:
            await crowd.beat(node.rounds, node.tip)
        if mood in ("is ready", "stands elsewhere"):
            await crowd.be_ready(node, random.randbytes(32) if mood == "stands elsewhere" else None)
    for key in crowd.keys:
        for seat in world.up():
            end = world.wire.end(seat.peer)
            if end is not None:
                end.handlers.on_peer_disconnected(key.peer_id)
