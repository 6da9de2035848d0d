"""Gossip: one gossipsub topic per run; the handlers judge every message before it is forwarded.

Four allowances keep a flood from spreading: of each neighbour, and of all strangers together for what they pass on for
others (messages over these are dropped before their signatures are checked); of each origin (the messages of one identity,
whoever forwards them); and our own for what we forward, which is smaller than a neighbour's: a peer within its allowance
never sends others more than they accept.  A stranger's own messages, and a few that it passes on, do not count against
what strangers share, so no crowd can silence a newcomer that is connected to us.

The library would open a stream to every peer that connects, and try again for as long as it is not accepted; here it is told
of peers that are no strangers (`met`).

Our own messages go to every neighbour, not only to the mesh: many strangers can fill a mesh of a few places, and nobody else
would hear us any more (the flood publishing of gossipsub 1.1).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

import trio

from protocol.transport.interface import Acceptance, Handlers, Members, NetworkError
from protocol.transport.library import Host, LibraryId, Stream, library_id, peer_id_of
from protocol.transport.rate_limit import Allowance, TokenBucket
from protocol.transport.reputation import ABUSE, VIOLATION, Channel, Reputation
from protocol.transport.streams import discard
from protocol.wire.envelope import MAX_GOSSIP_BYTES
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

if TYPE_CHECKING:
    from libp2p.abc import IHost, INetStream, ISubscriptionAPI
    from libp2p.peer.id import ID
    from libp2p.pubsub.gossipsub import GossipSub
    from libp2p.pubsub.pb.rpc_pb2 import RPC, ControlIWant, ControlMessage, Message
    from libp2p.pubsub.pubsub import Pubsub
    from libp2p.pubsub.pubsub_notifee import PubsubNotifee


# ------------------------------------------------------------------------------------------------------------------------
# Tasks that take turns: one of them goes on in each turn of the event loop, so that together they do not hold it up.


class Turns:
    """Tasks that wait for a turn get theirs in the order in which they asked."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def take(self) -> None:
        """Return in a turn of the event loop in which nobody else's `take` returns."""
        async with self._lock:  # to take it is a checkpoint, and it passes to one waiting task in each turn
            pass


# ------------------------------------------------------------------------------------------------------------------------
# What neighbours gossip: taken in message by message, in fair turns.
#
# The library starts a task for every message as soon as it is read: a burst from many neighbours is checked in one go,
# during which the event loop does nothing else.  Here the neighbours take turns, message by message: each turn of the event
# loop takes in one message of a stranger and one of a member.  The next RPC of a neighbour is not read before the last one
# is done, so a backlog stays with its sender.


MAX_RPC_BYTES = 1 << 17
"""An RPC of gossip; longer answers are sent in several.  The largest message is half as long."""
MAX_MESSAGES = 1024
"""In an RPC, where there is room for a third of that, if they are signed."""
MAX_CONTROL = 128
"""Subscriptions and control messages in an RPC; for one topic there are a few, and 64 that were put off."""

log = logging.getLogger(__name__)


class GossipIntake:
    """Reads the streams on which neighbours gossip.

    members: tells members from strangers.  topic: the only one.  is_wanted: asked about every message with its forwarder,
    before its signature is checked: whether it is for us, and news, and within all allowances.
    """

    def __init__(
        self, members: Members, reputation: Reputation, topic: str, is_wanted: Callable[[ID, Message], bool]
    ) -> None:
        self._members, self._reputation, self._topic, self._is_wanted = members, reputation, topic, is_wanted
        self._of_members, self._of_strangers = Turns(), Turns()

    async def read(self, pubsub: Pubsub, stream: INetStream) -> None:
        """Take in what arrives on the stream until its end; what is too long or cannot be parsed ends it, with a ban."""
        from google.protobuf.message import DecodeError
        from libp2p.exceptions import ParseError
        from libp2p.io.exceptions import IOException, MessageTooLarge
        from libp2p.pubsub.pb.rpc_pb2 import RPC
        from libp2p.utils.varint import read_varint_prefixed_bytes_limited

        forwarder = stream.muxed_conn.peer_id
        try:
            while pubsub.manager.is_running:
                raw = await read_varint_prefixed_bytes_limited(stream, MAX_RPC_BYTES)
                await self._turns(forwarder).take()
                await self._guarded(pubsub, forwarder, RPC.FromString(raw), len(raw))
        except (DecodeError, MessageTooLarge, ParseError) as error:
            self._reputation.penalise(peer_id_of(forwarder), ABUSE, f"gossip that is none: {error}")
            await discard(cast(Stream, stream))
            pubsub._handle_dead_peer(forwarder)
        except IOException as error:
            log.debug("the gossip of %s has ended: %s", forwarder, error)

    def _turns(self, forwarder: ID) -> Turns:
        return self._of_members if self._members.has_member(peer_id_of(forwarder)) else self._of_strangers

    async def _guarded(self, pubsub: Pubsub, forwarder: ID, rpc: RPC, size: int) -> None:
        """Take in an RPC; an honest neighbour has seen to it that the library can read it."""
        try:
            await self._take_in(pubsub, forwarder, rpc, size)
        except Exception as error:  # noqa: BLE001 - of a key, a name or a number that the library cannot read
            log.debug("the library fails at gossip of %s: %r", forwarder, error)
            self._reputation.penalise(peer_id_of(forwarder), VIOLATION, "gossip that cannot be read")

    async def _take_in(self, pubsub: Pubsub, forwarder: ID, rpc: RPC, size: int) -> None:
        """Every control message counts as a message, and so does an RPC without any."""
        peer = peer_id_of(forwarder)
        if _control_messages(rpc) > MAX_CONTROL or len(rpc.publish) > MAX_MESSAGES:
            self._reputation.penalise(peer, VIOLATION, "an RPC with too much in it")
            return
        rpc.ClearField("senderRecord")  # nobody is dialled by it, and the library would check and keep it each time
        cost = max(_control_messages(rpc), int(not rpc.publish))
        if not all(self._reputation.spend(peer, Channel.GOSSIP, size // cost) for _ in range(cost)):
            return
        for subscription in rpc.subscriptions:
            pubsub.handle_subscription(forwarder, subscription)
        if rpc.HasField("control"):
            _leave_out_others(rpc.control, self._topic)
            await pubsub.router.handle_rpc(rpc, forwarder)
        for message in rpc.publish:
            await self._turns(forwarder).take()
            if self._is_wanted(forwarder, message):
                await pubsub.push_msg(forwarder, message)


def _leave_out_others(control: ControlMessage, topic: str) -> None:
    """Take out what is about other topics, which the library would remember for good, and the peers that it would dial."""
    for messages in (control.ihave, control.graft, control.prune):
        for place in reversed(range(len(messages))):
            if messages[place].topicID != topic:
                del messages[place]
    for prune in control.prune:
        del prune.peers[:]


def _control_messages(rpc: RPC) -> int:
    control = rpc.control
    lists = (control.ihave, control.iwant, control.graft, control.prune, control.idontwant)
    return len(rpc.subscriptions) + sum(len(each) for each in lists)


# ------------------------------------------------------------------------------------------------------------------------


HEARTBEAT_S = 1
DEGREE, DEGREE_LOW, DEGREE_HIGH = 4, 3, 6
FORWARDED = Allowance(100, 1e6, 5)
"""What we forward to all neighbours together; messages over it are still handled here."""


class Gossip:
    """The gossip of one run.  up_bytes, down_bytes: of payload, since the start."""

    def __init__(self, host: Host, run: Hash, handlers: Handlers, reputation: Reputation) -> None:
        self._me = host.get_id()
        self._handlers = handlers
        self._reputation = reputation
        self._forwarded = TokenBucket(FORWARDED.burst_s, FORWARDED.burst_s, trio.current_time())
        self._topic = f"manyhands/1/{bytes(run).hex()}"
        self._intake = GossipIntake(handlers, reputation, self._topic, self._is_wanted)
        self.up_bytes = 0
        self.down_bytes = 0
        self._router = self._new_router()
        self._pubsub = self._new_pubsub(host)
        self._queues = _take_notifee(host)
        self._pubsub.set_topic_validator(self._topic, self._validate, False)

    def _new_router(self) -> GossipSub:
        """The library's router as we use it.

        Its adaptive interval slowed 1 s to 60 s after deaths, its spam limit counts our own messages, and its eclipse
        protection prunes peers that share an address, as on one computer: all three are off.
        """
        from libp2p.custom_types import TProtocol

        return self._router_class()(
            protocols=[TProtocol("/meshsub/1.1.0")],
            degree=DEGREE,
            degree_low=DEGREE_LOW,
            degree_high=DEGREE_HIGH,
            heartbeat_interval=HEARTBEAT_S,
            adaptive_gossip_enabled=False,
            spam_protection_enabled=False,
            eclipse_protection_enabled=False,
        )

    def _router_class(self) -> type[GossipSub]:
        """The library's router, which also sends our own messages outside the mesh, and no RPC over the limit.

        It remembers nothing of peers that have gone, nothing of messages but what it may have to send again, and sends again
        what a neighbour asks for once, within its allowance.
        """
        from libp2p.pubsub.gossipsub import GossipSub

        gossip = self

        class FloodPublish(GossipSub):
            def _get_peers_to_send(
                self, topic_ids: Iterable[str], msg_forwarder: ID, origin: ID, msg_id: bytes | None = None
            ) -> Iterable[ID]:
                peers = set(super()._get_peers_to_send(topic_ids, msg_forwarder, origin, msg_id))
                if origin == gossip._me:
                    peers |= gossip._pubsub.peer_topics.get(gossip._topic, set()) - {origin}
                return peers

            def send_rpc(self, peer_id: ID, rpc: RPC, priority: bool = False) -> None:
                if (queue := gossip._pubsub.peer_queues.get(peer_id)) is not None:
                    queue.max_message_size = MAX_RPC_BYTES
                super().send_rpc(peer_id, rpc, priority)

            async def handle_iwant(self, iwant_msg: ControlIWant, sender_peer_id: ID) -> None:
                names = dict.fromkeys(iwant_msg.messageIDs)
                again = [name for name in names if gossip._may_have_again(sender_peer_id, name)]
                await super().handle_iwant(type(iwant_msg)(messageIDs=again), sender_peer_id)

            async def publish(self, msg_forwarder: ID, pubsub_msg: Message) -> None:
                await super().publish(msg_forwarder, pubsub_msg)
                # Only the adaptive interval, which is off, would take anything out of the first; the second keeps a
                # thousand messages whole, to compare them with others of their names, of which none comes through.
                self.recent_message_deliveries.clear()
                self.equivocation_detection.clear()

            def remove_peer(self, peer_id: ID) -> None:
                super().remove_peer(peer_id)
                for peers in self.back_off.values():
                    peers.pop(peer_id, None)

        return FloodPublish

    def _new_pubsub(self, host: Host) -> Pubsub:
        """The library's publish and subscribe, but for the reading of streams, and for what their end means."""
        from libp2p.pubsub.pubsub import Pubsub

        gossip = self

        class OrderlyPubsub(Pubsub):
            async def continuously_read_stream(self, stream: INetStream) -> None:
                await gossip._intake.read(self, stream)

            def _forget_all_subscriptions(self, peer_id: ID) -> None:
                # Who has connected anew has said hello on the new connection, and says it once: the end of a stream
                # on the old one, which comes later, must not take that back, or it hears us no more.  What may have
                # been lost with the old stream is sent again on the next one.
                if self._peer_is_connected(peer_id):
                    self._replayed_recent_topics.pop(peer_id, None)
                else:
                    super()._forget_all_subscriptions(peer_id)

        return OrderlyPubsub(cast("IHost", host), self._router, allowed_topics=frozenset({self._topic}))

    async def start(self, stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        """Run the library's services in `stack`, and join the topic."""
        from libp2p.tools.anyio_service import background_trio_service

        await stack.enter_async_context(background_trio_service(self._pubsub))
        await stack.enter_async_context(background_trio_service(self._router))
        await self._pubsub.wait_until_ready()
        subscription = await self._pubsub.subscribe(self._topic)
        nursery.start_soon(self._drain, subscription)

    def end(self) -> None:
        """End the library's thread, which runs from the beginning; blocks for a moment."""
        self._pubsub.seen_messages.stop()

    async def met(self, peer: PeerId) -> None:
        """Gossip with a peer from now on."""
        await _put(self._queues.initiator_peers_queue, peer)

    async def lost(self, peer: PeerId) -> None:
        """The last connection of a peer has ended."""
        await _put(self._queues.dead_peers_queue, peer)

    async def _drain(self, subscription: ISubscriptionAPI) -> None:
        """Empty the subscription, which drops messages when it is full; the validator has handled them already."""
        while True:
            await subscription.get()

    async def publish(self, data: bytes) -> None:
        """Send `data` to all neighbours.  Raises `NetworkError` when it is larger than MAX_GOSSIP_BYTES."""
        if len(data) > MAX_GOSSIP_BYTES:
            raise NetworkError(f"a gossip message of {len(data)} bytes is over the limit of {MAX_GOSSIP_BYTES}")
        await self._pubsub.publish(self._topic, data)
        self.up_bytes += len(data)

    def _is_wanted(self, forwarder: LibraryId, message: Message) -> bool:
        """Whether a message is of this run, news, and within the limits of size and all allowances; asked first of all."""
        peer = peer_id_of(forwarder)
        if len(message.data) > MAX_GOSSIP_BYTES:
            self._reputation.penalise(peer, VIOLATION, "an oversized message")
            return False
        if not self._reputation.spend(peer, Channel.GOSSIP, len(message.data)):
            return False
        if not self._pubsub._is_subscribed_to_msg(message) or self._pubsub._is_msg_seen(message):
            return False
        if message.from_id == cast("ID", forwarder).to_bytes():
            return self._reputation.spend(peer, Channel.ORIGIN, len(message.data))
        return self._handlers.has_member(peer) or self._reputation.spend_relayed(peer, len(message.data))

    def _may_have_again(self, neighbour: ID, name: bytes) -> bool:
        """Whether a message of this name is sent again to a neighbour that asks for it: that counts as if it had sent it."""
        from libp2p.pubsub.utils import safe_bytes_from_hex

        known = safe_bytes_from_hex(name)
        message = self._router.mcache.get(known) if known is not None else None
        return message is not None and self._reputation.spend(peer_id_of(neighbour), Channel.GOSSIP, len(message.data))

    def _validate(self, forwarder: LibraryId, message: Message) -> bool:
        """libp2p's topic validator, after it has checked the origin's signature: True forwards the message."""
        from libp2p.peer.id import ID

        if forwarder == self._me:
            return True
        peer, origin = peer_id_of(forwarder), peer_id_of(ID(message.from_id))
        if origin != peer and not self._reputation.spend(origin, Channel.ORIGIN, len(message.data)):
            return False
        self.down_bytes += len(message.data)
        try:
            acceptance = self._handlers.on_gossip(peer, message.data)
        except Exception:
            log.exception("the gossip handler failed")
            return False
        if acceptance is Acceptance.REJECT:
            self._reputation.penalise(peer, VIOLATION, "gossip that is malformed")
        return acceptance is Acceptance.ACCEPT and self._forwarded.take(FORWARDED, trio.current_time(), 1, len(message.data))


def _take_notifee(host: Host) -> PubsubNotifee:
    """Keep the swarm from telling gossip of every connection; returns the queues in which gossip hears of peers."""
    from libp2p.pubsub.pubsub_notifee import PubsubNotifee

    swarm = host.get_network()
    found = next(notifee for notifee in swarm.notifees if isinstance(notifee, PubsubNotifee))
    swarm.remove_notifee(found)
    return found


async def _put(queue: trio.MemorySendChannel[ID], peer: PeerId) -> None:
    try:
        await queue.send(library_id(peer))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # gossip has ended
