"""What neighbours gossip: how it is taken in, whatever they send."""

from __future__ import annotations

import itertools
import select
from typing import TYPE_CHECKING, Any

import pytest
import trio

from protocol.transport.gossip import MAX_CONTROL, MAX_IDS, MAX_RPC_BYTES
from protocol.transport.interface import Acceptance
from protocol.transport.library import library_id
from protocol.transport.limits import Channel
from protocol.transport.network import Libp2pNetwork
from protocol.wire.identity import Identity, PeerId
from tests.protocol.transport.recorder import Recorder, network, stack, until
from tests.protocol.transport.test_libp2p import gossip_until

if TYPE_CHECKING:
    from libp2p.pubsub.pb.rpc_pb2 import RPC, Message

_serial = itertools.count(1)


def said_by(key: Identity, data: bytes, topic: str) -> Message:
    """A message that a peer has signed."""
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID
    from libp2p.pubsub.pb.rpc_pb2 import Message
    from libp2p.pubsub.validators import PUBSUB_SIGNING_PREFIX

    pair = create_new_key_pair(key.seed)
    message = Message(
        data=data,
        topicIDs=[topic],
        from_id=ID.from_pubkey(pair.public_key).to_bytes(),
        seqno=next(_serial).to_bytes(8, "big"),
    )
    message.signature = pair.private_key.sign(PUBSUB_SIGNING_PREFIX.encode() + message.SerializeToString())
    message.key = pair.public_key.serialize()
    return message


def said_by_many(number: int, size: int, topic: str) -> RPC:
    """One RPC with a message of each of so many keys."""
    from libp2p.pubsub.pb.rpc_pb2 import RPC

    return RPC(publish=[said_by(Identity.generate(), bytes([each]) * size, topic) for each in range(number)])


def topic_of(end: Libp2pNetwork) -> str:
    return stack(end).gossip._topic


async def stream_to(end: Libp2pNetwork, target: PeerId) -> Any:
    """The stream on which `end` gossips to its neighbour, as soon as there is one."""
    streams: Any = stack(end).gossip._pubsub.peers
    await until(lambda: library_id(target) in streams)
    return streams[library_id(target)]


async def write(end: Libp2pNetwork, target: PeerId, rpc: RPC) -> None:
    await stack(end).gossip._pubsub.write_msg(await stream_to(end, target), rpc)


def offences(end: Libp2pNetwork, monkeypatch: pytest.MonkeyPatch) -> list[PeerId]:
    """Who is penalised from now on, once for each time."""
    found: list[PeerId] = []
    monkeypatch.setattr(stack(end).reputation, "penalise", lambda peer, penalty, why: found.append(peer))
    return found


class LoopTurns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.now = 0

    def before_io_wait(self, timeout: float) -> None:
        self.now += 1


@pytest.mark.slow
def test_of_a_burst_from_many_strangers_one_message_is_taken_in_per_turn_of_the_loop() -> None:
    loop, turns = LoopTurns(), list[int]()

    def judge(data: bytes) -> Acceptance:
        turns.append(loop.now)
        return Acceptance.IGNORE

    async def main() -> None:
        a, b, c = (Recorder() for _ in range(3))
        a.acceptance = judge
        async with network(a) as target, network(b) as one, network(c) as other, trio.open_nursery() as nursery:
            for stranger in (one, other):
                stranger.remember(target.addresses())
                await stream_to(stranger, target.peer_id)
            for stranger in (one, other):
                nursery.start_soon(write, stranger, target.peer_id, said_by_many(40, 100, topic_of(target)))
            await a.until(lambda: len(turns) == 80)
        assert len(set(turns)) == 80

    trio.run(main, instruments=[loop])


@pytest.mark.slow
async def test_gossip_goes_on_after_messages_that_nobody_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from libp2p.pubsub.pb.rpc_pb2 import RPC, Message

    a, b, c = (Recorder() for _ in range(3))
    async with network(a) as target, network(b) as hostile, network(c) as honest:
        for stranger in (hostile, honest):
            stranger.remember(target.addresses())
        topic, found = topic_of(target), offences(target, monkeypatch)
        junk = Message(data=b"x", topicIDs=[topic], from_id=b"nobody", seqno=b"1", signature=b"none", key=b"no key")
        crowded = RPC()
        for _ in range(MAX_CONTROL + 1):
            crowded.control.graft.add(topicID=topic)
        await write(hostile, target.peer_id, RPC(publish=[junk]))
        await write(hostile, target.peer_id, crowded)
        offers = RPC()
        offers.control.ihave.add(topicID=topic, messageIDs=[b"x"] * (MAX_IDS + 1))
        await write(hostile, target.peer_id, offers)
        await write(hostile, target.peer_id, said_by_many(1, 100, topic))
        await a.until(lambda: bytes(100) in a.gossip)
        assert found == [hostile.peer_id] * 3
        await (await stream_to(hostile, target.peer_id)).write(b"\x05junk!")
        await until(lambda: len(found) >= 4)
        await gossip_until(honest, a, b"news")
        assert found == [hostile.peer_id] * 4


async def test_what_is_too_long_for_one_rpc_is_sent_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    a = Recorder()
    async with network(a) as target, network(Recorder()) as sender:
        found = offences(target, monkeypatch)
        sender.remember(target.addresses())
        await stream_to(sender, target.peer_id)
        long = said_by_many(100, 2000, topic_of(target))
        assert long.ByteSize() > MAX_RPC_BYTES
        router: Any = stack(sender).gossip._router
        router.send_rpc(library_id(target.peer_id), long)
        await a.until(lambda: len(a.gossip) == 100)
        assert not found


async def test_control_messages_have_us_dial_nobody_and_remember_no_other_topic() -> None:
    from libp2p.pubsub.pb.rpc_pb2 import RPC

    a, b = Recorder(), Recorder()
    (elsewhere,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with elsewhere, network(a) as target, network(b) as hostile:
        hostile.remember(target.addresses())
        router, topic, rpc = stack(target).gossip._router, topic_of(target), RPC()
        router.prune_back_off = 1  # seconds, not 60
        for number in range(100):
            rpc.control.prune.add(topicID=f"another {number}")
            rpc.control.graft.add(topicID=f"a third {number}") if number < 20 else None
        named, record = a_signed_record(f"/ip4/127.0.0.1/tcp/{elsewhere.socket.getsockname()[1]}")
        rpc.control.prune.add(topicID=topic).peers.add(peerID=named, signedPeerRecord=record)
        rpc.senderRecord = b"whatever" * 1000  # it is not looked at
        await write(hostile, target.peer_id, rpc)
        await write(hostile, target.peer_id, said_by_many(1, 100, topic))
        await a.until(lambda: bytes(100) in a.gossip)  # what came before is done
        assert set(router.back_off) | set(router.graft_flood_tracking[library_id(hostile.peer_id)]) == {topic}
        await stack(hostile).connections.close_all()
        await a.until(lambda: a.disconnected)
        await until(lambda: library_id(hostile.peer_id) not in router.back_off.get(topic, {}))
        assert not select.select([elsewhere.socket.fileno()], [], [], 0)[0], "somebody has dialled what the record says"


def a_signed_record(address: str) -> tuple[bytes, bytes]:
    """The name of a new peer, and what it signs about its address."""
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.envelope import seal_record
    from libp2p.peer.id import ID
    from libp2p.peer.peer_record import PeerRecord
    from multiaddr import Multiaddr

    keys = create_new_key_pair(Identity.generate().seed)
    name = ID.from_pubkey(keys.public_key)
    return name.to_bytes(), seal_record(PeerRecord(name, [Multiaddr(address)]), keys.private_key).marshal_envelope()


async def test_a_message_is_sent_again_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from libp2p.pubsub.pb.rpc_pb2 import RPC

    a, b = Recorder(), Recorder()
    async with network(a) as target, network(b) as hostile:
        hostile.remember(target.addresses())
        await stream_to(target, hostile.peer_id)
        router, sent, now = stack(target).gossip._router, list[RPC](), trio.current_time()
        stack(target).reputation._clock = lambda: now
        monkeypatch.setattr(router, "send_rpc", lambda peer_id, rpc, priority=False: sent.append(rpc))
        messages = said_by_many(100, 50_000, topic_of(target)).publish
        for message in messages:
            router.mcache.put(message)
        asked = [name.hex().encode() for name in router.mcache.msgs] * 3
        for _ in range(5):
            rpc = RPC()
            rpc.control.iwant.add(messageIDs=asked)
            await router.handle_rpc(rpc, library_id(hostile.peer_id))
        again = [message.data for rpc in sent for message in rpc.publish]
        assert len(sent[0].publish) == len({message.data for message in sent[0].publish}) == len(messages)
        allowance = Channel.GOSSIP.value
        assert sum(map(len, again)) <= allowance.bytes_per_s * allowance.burst_s
