"""Hostile peers with real sockets: genuine libp2p identities that keep no rule, against one peer of a running swarm.

Each attack is a function that goes on until it can no longer, or has done what it does.  The network under it is ours,
used past its own limits.  `assault` runs all of them against a swarm that trains, and tells what came of each.
`python -m tests.e2e.hostile` prints it as a table.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio

from protocol import events as ev
from protocol.exchange.messages import ExchangeAsk
from protocol.network.interface import NetworkError, Refused
from protocol.network.libp2p import Libp2pNetwork, open_network
from protocol.network.libp2p.link import NONCE_BYTES, FrameKind, Link
from protocol.network.libp2p.requests import encode_question
from protocol.run.admission import make_hello
from protocol.run.manifest import open_manifest
from protocol.wire.envelope import seal
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.messages import Goodbye, Heartbeat, Phase, Role, WhyIdle, pack
from protocol.wire.questions import TipsRequest
from tests.e2e.swarm import PATIENCE_S, Peer, Swarm
from tests.fuzz.mutations import BOMBS
from tests.protocol.network.recorder import LOOPBACK, Recorder, stack

MEMORY_BYTES = 160 << 20
"""What a peer's memory may grow by under all of this."""
FLOOD = 20_000
"""Messages, questions or frames of a flood: far more than the allowance."""


class Cast(Recorder):
    """A hostile peer: its network, and what it can reach under it."""

    def __init__(self, run: Hash, target: PeerId) -> None:
        super().__init__()
        self.identity, self.run, self.target = Identity.generate(), run, target
        self.sent = 0
        self.network: Libp2pNetwork | None = None

    def take(self, network: Libp2pNetwork, nursery: trio.Nursery) -> None:
        """Use this network, and penalise nobody."""
        self.network, self.nursery = network, nursery
        reputation: Any = stack(network).reputation
        reputation.spend, reputation.penalise = lambda *anything: True, lambda *anything: None

    async def greet(self, peer: PeerId) -> None:
        """As everybody may in an open run: it is a member that attacks."""
        assert self.network is not None
        hello = make_hello(Hash(self.run), Role.SEED, None, "1").encode()
        await _until_broken(partial(self.network.request, peer, "hello", hello, timeout_s=PATIENCE_S))

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
        beat = Heartbeat(
            incarnation=1,
            seq=seq,
            name="flood",
            role=Role.SEED,
            phase=Phase.SEEDING,
            why_idle=WhyIdle.BUSY,
            why_detail="",
            round=0,
            tip=bytes(32),
            steps=0,
            loss=0.0,
            tokens_per_s=0.0,
            up_bytes_per_s=0.0,
            down_bytes_per_s=0.0,
            addresses=[],
            version="1",
        )
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
        await _until_broken(partial(_ask_raw, cast, data))


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
            try:
                await cast.network.request(cast.target, "round", data, timeout_s=10)
            except Refused:
                pass
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
                nursery.start_soon(_until_broken, drip)


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
        await _until_broken(link.receive_small)
        link.close()


async def half_open(cast: Cast) -> None:
    """Sockets that never say who they are, at both doors, and handshakes whose socket never comes."""
    address = cast.connection().get_remote_address()
    grant = await cast.stream("bulk")
    await grant.write(os.urandom(NONCE_BYTES))
    answer = await grant.read(64)
    bulk_port = struct.unpack(">H", answer[:2])[0]
    sockets = []
    try:
        for number in range(300):
            sock = trio.socket.socket()
            sockets.append(sock)
            await sock.connect((address[0], bulk_port if number % 2 else address[1]))
            await sock.send(b"\x13" if number % 3 else b"")
            cast.sent += 1
        await trio.sleep(6)
    finally:
        for sock in sockets:
            sock.close()


async def _until_broken(work: Callable[[], Awaitable[Any]]) -> None:
    try:
        await work()
    except Exception:  # noqa: BLE001 - whatever the library raises when the other end has had enough
        return


BANNED: dict[str, Attack] = {
    "pushes out of order": unfinished_pushes,
    "valid heartbeats": heartbeats,
    "malformed gossip": garbage,
    "oversized gossip": oversized_gossip,
    "questions": questions,
    "bombs and oversized questions": bombs,
    "forged and replayed statements": forgeries,
    "questions that drip": dripping_questions,
    "data beyond the window": window,
    "frames": frames,
    "streams": streams,
}
"""Attacks whose end is a ban."""
HARMLESS: dict[str, Attack] = {"half-open sockets": half_open}
"""Attacks that nobody can be named for; they must come to nothing."""


@dataclass
class Outcome:
    """Of one attack.  reason: of the ban.  rounds: committed by all meanwhile.  grown: memory of the target, so far."""

    name: str
    sent: int
    seconds: float
    reason: str
    rounds: int
    grown: int


@dataclass
class Assault:
    """Attacks one after the other on `target`, while `swarm` trains.  patient: wait for a round of all after each one."""

    swarm: Swarm
    target: Peer
    outcomes: list[Outcome] = field(default_factory=list)
    patient: bool = True
    attacks: dict[str, Attack] = field(default_factory=lambda: {**BANNED, **HARMLESS})
    on_outcome: Callable[[Outcome], None] = lambda outcome: None

    async def run(self) -> None:
        await self._in_thread(lambda: self.swarm.whole(*self.swarm.peers))
        signed = open_manifest(self.swarm.manifest.read_bytes())
        status = self.target.status()
        process = psutil.Process(self.target.pid)
        before = process.memory_info().rss
        async with trio.open_nursery() as nursery:
            casts = {name: Cast(signed.run, PeerId(status["peer"])) for name in self.attacks}
            async with trio.open_nursery() as entrance:  # all at once: an address that a ban fell on has to wait
                for cast in casts.values():
                    entrance.start_soon(nursery.start, self._play, cast, status["addresses"])
            for name, attack in self.attacks.items():
                cast = casts[name]
                outcome = await self._one(cast, name, attack)
                outcome.grown = process.memory_info().rss - before
                self.outcomes.append(outcome)
                self.on_outcome(outcome)
            nursery.cancel_scope.cancel()

    async def _play(self, cast: Cast, addresses: list[str], task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async with open_network(cast.identity, cast.run, cast, LOOPBACK) as network, trio.open_nursery() as nursery:
            cast.take(network, nursery)
            network.remember(addresses)
            with trio.fail_after(PATIENCE_S):
                while cast.target not in cast.connected or not self._meshed(cast):
                    await trio.sleep(0.05)
            task_status.started()
            await trio.sleep_forever()

    def _meshed(self, cast: Cast) -> bool:
        gossip = stack(cast.network).gossip if cast.network is not None else None
        return gossip is not None and cast.target in {peer.to_base58() for peer in gossip._pubsub.peers}

    async def _one(self, cast: Cast, name: str, attack: Attack) -> Outcome:
        began, rounds = trio.current_time(), self._rounds()
        with trio.move_on_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_broken, partial(attack, cast))
                while name in BANNED and not cast.out:
                    await trio.sleep(0.05)
                if name in BANNED:
                    nursery.cancel_scope.cancel()
        seconds = trio.current_time() - began
        reason = ""
        if name in BANNED:
            await self._in_thread(lambda: self.swarm.until(f"a ban for {name}", lambda: self._ban_of(cast)))
            reason = self._ban_of(cast)
        if self.patient:
            await self._in_thread(lambda: self._a_round_after(name, rounds))
        return Outcome(name, cast.sent, seconds, reason, self._rounds() - rounds, 0)

    def _a_round_after(self, name: str, rounds: int) -> None:
        self.swarm.until(f"a round of all after {name}", lambda: self._rounds() > rounds)

    def _rounds(self) -> int:
        return min(peer.committed for peer in self.swarm.peers)

    def _ban_of(self, cast: Cast) -> str:
        bans = [ban for ban in self.target.heard(ev.PeerBanned) if ban.peer == cast.identity.peer_id]
        return str(bans[0].reason) if bans else ""

    async def _in_thread(self, work: Callable[[], Any]) -> None:
        await trio.to_thread.run_sync(work)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder)) as swarm:
        swarm.create_run()
        for name in ("one", "two", "three"):
            swarm.peer(name).start()
        every = {**BANNED, **HARMLESS}
        chosen = {name: every[name] for name in sys.argv[1:] or every}
        assault = Assault(swarm, swarm.peers[0], attacks=chosen, on_outcome=_print)
        print("| attack | sent | until it was out (s) | why, as its target said | rounds meanwhile | memory of the target |")
        print("|---|---|---|---|---|---|")
        trio.run(assault.run)
    return 0


def _print(outcome: Outcome) -> None:
    why = outcome.reason or "nobody to name"
    print(
        f"| {outcome.name} | {outcome.sent} | {outcome.seconds:.1f} | {why} | {outcome.rounds} "
        f"| {outcome.grown / 1e6:+.0f} MB |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
