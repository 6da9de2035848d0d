"""What a hostile peer does to another one, and with what part of the protocol."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from protocol.allreduce.runner import ExchangeAsk
from protocol.run.admission import make_hello
from protocol.transport.bulk import FIRST_BYTE
from protocol.transport.bulk_link import NONCE_BYTES, FrameKind, Link
from protocol.transport.interface import NetworkError, Refused
from protocol.transport.network import Libp2pNetwork, open_network
from protocol.transport.requests import encode_question
from protocol.wire.envelope import seal
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import pack
from protocol.wire.presence import Goodbye, Phase, Role
from protocol.wire.questions import TipsRequest
from tests.e2e.swarm import PATIENCE_S
from tests.fuzz.mutations import BOMBS
from tests.protocol.peers import a_heartbeat
from tests.protocol.transport.recorder import LOOPBACK, Recorder, stack

FLOOD = 20_000
"""Messages, questions or frames of a flood: far more than the allowance."""


class Cast(Recorder):
    """A hostile peer: its network, and what it can reach under it."""

    def __init__(self, run: Hash, target: PeerId) -> None:
        super().__init__()
        self.identity, self.run, self.target = Identity.generate(), run, target
        self.sent = 0
        self.network: Libp2pNetwork | None = None

    async def play(self, addresses: list[str], task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Be there until cancelled; started once the target has greeted us and takes our gossip."""
        async with open_network(self.identity, self.run, self, LOOPBACK) as network, trio.open_nursery() as nursery:
            self.network, self.nursery = network, nursery
            reputation: Any = stack(network).reputation  # of its own, by which it would penalise its target
            reputation.spend, reputation.penalise = lambda *anything: True, lambda *anything: None
            network.remember(addresses)
            pubsub: Any = stack(network).gossip._pubsub
            with trio.fail_after(PATIENCE_S):
                while self.target not in self.connected or self.target not in {peer.to_base58() for peer in pubsub.peers}:
                    await trio.sleep(0.05)
            task_status.started()
            await trio.sleep_forever()

    async def greet(self, peer: PeerId) -> None:
        """As everybody may in an open run: it is a member that attacks."""
        assert self.network is not None
        hello = make_hello(Hash(self.run), Role.SEED, b"", "1").encode()
        await until_broken(partial(self.network.request, peer, "hello", hello, timeout_s=PATIENCE_S))

    @property
    def out(self) -> bool:
        """Whether the target has ended the connection."""
        return self.target in self.disconnected

    @property
    def host(self) -> Any:
        assert self.network is not None
        return stack(self.network).host

    def connection(self) -> Any:
        from libp2p.peer.id import ID

        return self.host.get_network().connections[ID.from_string(self.target)][0].muxed_conn

    async def stream(self, channel: str) -> Any:
        from libp2p.custom_types import TProtocol
        from libp2p.peer.id import ID

        protocol = TProtocol(f"/manyhands/1/{bytes(self.run).hex()[:16]}/{channel}")
        return await self.host.new_stream(ID.from_string(self.target), [protocol])

    async def say(self, messages: list[bytes]) -> None:
        """In one write, past our own limits."""
        from libp2p.peer.id import ID
        from libp2p.pubsub.pb import rpc_pb2
        from libp2p.pubsub.pubsub import PUBSUB_SIGNING_PREFIX  # type: ignore[attr-defined]

        assert self.network is not None
        gossip = stack(self.network).gossip
        pubsub: Any = gossip._pubsub
        rpc = rpc_pb2.RPC()
        for data in messages:
            message = rpc_pb2.Message(
                data=data, topicIDs=[gossip._topic], from_id=pubsub.my_id.to_bytes(), seqno=pubsub._next_seqno()
            )
            message.signature = pubsub.sign_key.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
            message.key = self.host.get_public_key().serialize()
            rpc.publish.append(message)
        await pubsub.write_msg(pubsub.peers[ID.from_string(self.target)], rpc)
        self.sent += len(messages)

    def heartbeat(self, seq: int) -> bytes:
        beat = a_heartbeat(seq=seq, name="flood", role=Role.SEED, phase=Phase.SEEDING)
        return pack(self.identity, self.run, beat).raw


Attack = Callable[[Cast], Awaitable[None]]


async def heartbeats(cast: Cast) -> None:
    """Valid ones, signed, thousands a second."""
    for first in range(1, FLOOD, 50):
        await cast.say([cast.heartbeat(seq) for seq in range(first, first + 50)])


async def garbage(cast: Cast) -> None:
    for _ in range(FLOOD // 100):
        await cast.say([os.urandom(100)])


async def oversized_gossip(cast: Cast) -> None:
    for _ in range(100):
        await cast.say([bytes(300_000)])


async def questions(cast: Cast) -> None:
    """As many at a time as go out."""

    async def ask() -> None:
        question = TipsRequest(start=0, count=64).encode()
        for _ in range(FLOOD // 64):
            try:
                assert cast.network is not None
                await cast.network.request(cast.target, "tips", question, timeout_s=10)
            except Refused:
                pass
            except NetworkError:
                if cast.out:
                    return
            cast.sent += 1

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(ask)


async def bombs(cast: Cast) -> None:
    """Questions that announce more than they are, or unfold to more than they say."""
    announced = struct.pack(">I", (1 << 32) - 1)
    unfolding = b"\xdd" + struct.pack(">I", 1_000_000) + b"\x80" * 1_000_000
    for data in [announced, *(struct.pack(">I", len(bomb)) + bomb for bomb in (*BOMBS, unfolding))] * 3:
        await until_broken(partial(_ask_raw, cast, data))


async def _ask_raw(cast: Cast, data: bytes) -> None:
    stream = await cast.stream("request")
    cast.sent += 1
    await stream.write(data)
    await stream.read(1)


async def forgeries(cast: Cast) -> None:
    """Statements of others, replayed and forged, and statements of ours that are none."""
    assert cast.network is not None
    await cast.until(lambda: cast.gossip)
    for number in range(FLOOD):
        heard = cast.gossip[number % len(cast.gossip)]
        other = Identity.generate()
        statement = pack(other, cast.run, Goodbye(incarnation=1 << 40, seq=1)).raw
        for data in (heard, statement, seal(cast.identity, cast.run, "commit", b"\x80").raw, heard[:-1] + b"\0"):
            with contextlib.suppress(Refused):
                await cast.network.request(cast.target, "round", data, timeout_s=10)
            cast.sent += 1


async def dripping_questions(cast: Cast) -> None:
    """Streams that are opened and never say what they are for: a byte a second."""

    async def drip() -> None:
        stream = await cast.stream("request")
        cast.sent += 1
        for byte in struct.pack(">I", 1000) + bytes(1000):
            await stream.write(bytes([byte]))
            await trio.sleep(1)

    while not cast.out:
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(until_broken, drip)


async def window(cast: Cast) -> None:
    """More data than the receiver has room for, on a stream whose question it is still thinking about."""
    stream = await cast.stream("request")
    question = encode_question("exchange", ExchangeAsk(plan=os.urandom(32), fragment=0, chunk=0).encode(), 60_000)
    await stream.write(struct.pack(">I", len(question)) + question)
    frame = struct.pack(">BBHII", 0, 0, 0, stream.muxed_stream.stream_id, 1 << 16) + bytes(1 << 16)
    for _ in range(FLOOD // 10):
        await cast.connection()._write_frame(frame)
        cast.sent += 1


async def frames(cast: Cast) -> None:
    """Pings of the layer under everything, as fast as they go."""
    connection = cast.connection()
    pings = b"".join(struct.pack(">BBHII", 0, 2, 1, 0, number) for number in range(1000))
    for _ in range(FLOOD // 100):
        await connection._write_frame(pings)
        cast.sent += 1000


async def streams(cast: Cast) -> None:
    """Streams without end, none ever used."""
    connection = cast.connection()
    for number in range(FLOOD):
        await connection._write_frame(struct.pack(">BBHII", 0, 1, 1, 100_001 + 2 * number, 0))
        cast.sent += 1


async def unfinished_pushes(cast: Cast) -> None:
    """Bulk sockets that begin one push after the other out of order."""
    assert cast.network is not None
    while not cast.out:
        link: Link = await stack(cast.network).bulk._dial(cast.target)

        link.put(FrameKind.OPEN, 0, struct.pack(">Q", 1 << 20) + b"header")
        link.put(FrameKind.DATA, 12345, bytes(1000))
        await link.flush()
        cast.sent += 1
        await until_broken(link.receive_small)
        link.close()


async def half_open(cast: Cast) -> None:
    """Sockets that never say who they are, of both kinds, and handshakes whose socket never comes."""
    address = cast.connection().get_remote_address()
    grant = await cast.stream("bulk")
    await grant.write(os.urandom(NONCE_BYTES))
    await grant.read(64)
    sockets = []
    try:
        for number in range(300):
            sock = trio.socket.socket()
            sockets.append(sock)
            await sock.connect((address[0], address[1]))
            await sock.send((FIRST_BYTE if number % 2 else b"\x13") if number % 3 else b"")
            cast.sent += 1
        await trio.sleep(6)
    finally:
        for sock in sockets:
            sock.close()


async def until_broken(work: Callable[[], Awaitable[Any]]) -> None:
    """Go on until the other end has had enough."""
    try:
        await work()
    except Exception:  # noqa: BLE001 - whatever the library raises when the other end has had enough
        return


BANNED: dict[str, Attack] = {
    "pushes out of order": unfinished_pushes,
    "valid heartbeats": heartbeats,
    "malformed gossip": garbage,
    "oversized gossip": oversized_gossip,
    "bombs and oversized questions": bombs,
    "forged and replayed statements": forgeries,
    "questions that drip": dripping_questions,
    "data beyond the window": window,
    "frames": frames,
    "streams": streams,
}
"""Attacks whose end is a ban."""
FLOODS: dict[str, Attack] = {"questions": questions}
"""Attacks whose end is a ban if this machine can ask more quickly than the allowance permits; if not, they are no attack."""
HARMLESS: dict[str, Attack] = {"half-open sockets": half_open}
"""Attacks that nobody can be named for; they must come to nothing."""
