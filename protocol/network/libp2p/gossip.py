"""Gossip: one gossipsub topic per run; every message is judged by the handlers before it is forwarded.

Three allowances keep a flood from spreading: of each neighbour (what is over it is dropped before its signature is
checked), of each origin (one identity's messages, whoever brings them), and our own of what we hand on, which is smaller
than a neighbour's: so whoever keeps the rules never brings others more than they take.

The library would open a stream to whoever connects, and try again for as long as it is not taken; here it is told of peers
that are no strangers (`met`).

What we say ourselves goes to every neighbour, not to the mesh alone: strangers who come in numbers can fill a mesh of a
few places, and nobody else would hear us any more (the flood publishing of gossipsub 1.1).
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any

import trio

from protocol.network.interface import Handlers, NetworkError, Verdict
from protocol.network.libp2p.conduct import WRONG, Allowance, Bucket, Channel, Conduct
from protocol.wire.envelope import MAX_GOSSIP_BYTES
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

HEARTBEAT_S = 1
DEGREE, DEGREE_LOW, DEGREE_HIGH = 4, 3, 6
FORWARDED = Allowance(100, 1e6, 5)
"""What we hand on, all neighbours together.  What is over it is still heard here."""

log = logging.getLogger(__name__)


class Gossip:
    def __init__(self, host: Any, run: Hash, handlers: Handlers, conduct: Conduct) -> None:
        from libp2p.custom_types import TProtocol
        from libp2p.pubsub.gossipsub import GossipSub
        from libp2p.pubsub.pubsub import Pubsub
        from libp2p.pubsub.pubsub_notifee import PubsubNotifee

        gossip = self

        class FloodPublish(GossipSub):
            def _get_peers_to_send(self, topic_ids: Any, msg_forwarder: Any, origin: Any, msg_id: Any = None) -> Any:
                peers = set(super()._get_peers_to_send(topic_ids, msg_forwarder, origin, msg_id))
                if origin == gossip._me:
                    peers |= gossip._pubsub.peer_topics.get(gossip._topic, set()) - {origin}
                return peers

        class JudgedPubsub(Pubsub):
            async def push_msg(self, msg_forwarder: Any, msg: Any) -> None:
                if gossip._may_bring(msg_forwarder, msg):
                    await super().push_msg(msg_forwarder, msg)

        self._me = host.get_id()
        self._handlers = handlers
        self._conduct = conduct
        self._forwarded = Bucket(FORWARDED.burst_s, FORWARDED.burst_s, trio.current_time())
        self._topic = f"manyhands/1/{bytes(run).hex()}"
        self.up_bytes = 0
        self.down_bytes = 0
        # The library's adaptive interval slowed 1 s to 60 s after deaths, its spam limit counts our own messages, and
        # its eclipse protection prunes peers that share an address, as on one computer: all three are off.
        self._router = FloodPublish(
            protocols=[TProtocol("/meshsub/1.1.0")],
            degree=DEGREE,
            degree_low=DEGREE_LOW,
            degree_high=DEGREE_HIGH,
            heartbeat_interval=HEARTBEAT_S,
            adaptive_gossip_enabled=False,
            spam_protection_enabled=False,
            eclipse_protection_enabled=False,
        )
        self._pubsub = JudgedPubsub(host, self._router, allowed_topics=frozenset({self._topic}))
        swarm: Any = host.get_network()
        self._queues = next(notifee for notifee in swarm.notifees if isinstance(notifee, PubsubNotifee))
        swarm.remove_notifee(self._queues)
        self._pubsub.set_topic_validator(self._topic, self._validate, False)

    async def start(self, stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        from libp2p.tools.anyio_service import background_trio_service

        await stack.enter_async_context(background_trio_service(self._pubsub))
        await stack.enter_async_context(background_trio_service(self._router))
        await self._pubsub.wait_until_ready()
        subscription = await self._pubsub.subscribe(self._topic)
        nursery.start_soon(self._drain, subscription)

    async def met(self, identity: Any) -> None:
        """Gossip with a peer from now on."""
        await _put(self._queues.initiator_peers_queue, identity)

    async def lost(self, identity: Any) -> None:
        """The last connection of a peer has ended."""
        await _put(self._queues.dead_peers_queue, identity)

    async def _drain(self, subscription: Any) -> None:
        """The validator has already handed the message over; a full subscription would only log and drop."""
        while True:
            await subscription.get()

    async def publish(self, data: bytes) -> None:
        if len(data) > MAX_GOSSIP_BYTES:
            raise NetworkError(f"a gossip message of {len(data)} bytes is over the limit of {MAX_GOSSIP_BYTES}")
        await self._pubsub.publish(self._topic, data)
        self.up_bytes += len(data)

    def _may_bring(self, forwarder: Any, message: Any) -> bool:
        """Before anything else is done about a message: whether its bringer may, and it is of a size that may be."""
        if forwarder == self._me:
            return True
        peer = PeerId(forwarder.to_base58())
        if len(message.data) > MAX_GOSSIP_BYTES:
            self._conduct.offend(peer, WRONG, "an oversized message")
            return False
        return self._conduct.spend(peer, Channel.GOSSIP, len(message.data))

    def _validate(self, forwarder: Any, message: Any) -> bool:
        """libp2p's topic validator, after it has checked the origin's signature: True forwards the message."""
        from libp2p.peer.id import ID

        if forwarder == self._me:
            return True
        peer, origin = PeerId(forwarder.to_base58()), PeerId(ID(message.from_id).to_base58())
        if not self._conduct.spend(origin, Channel.ORIGIN, len(message.data)):
            return False
        self.down_bytes += len(message.data)
        try:
            verdict = self._handlers.on_gossip(peer, message.data)
        except Exception:
            log.exception("the gossip handler failed")
            return False
        if verdict is Verdict.REJECT:
            self._conduct.offend(peer, WRONG, "gossip that is malformed")
        return verdict is Verdict.ACCEPT and self._forwarded.take(FORWARDED, trio.current_time(), 1, len(message.data))


async def _put(queue: Any, identity: Any) -> None:
    try:
        await queue.send(identity)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # gossip has ended
