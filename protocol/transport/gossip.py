"""Gossip: one gossipsub topic per run; the handlers accept or reject every message before it is forwarded.

Four allowances keep a flood from spreading:

* one for each neighbour;
* one for all messages that strangers forward; messages over the first two allowances are dropped before their signatures are
  checked;
* one for each origin, the identity that signed a message, whichever peer forwards the message;
* one for the messages that we forward: it is smaller than a neighbour's, so we never send a peer more than it accepts.

A stranger's own messages, and a few that it forwards, do not count against the strangers' common allowance, so a crowd of
strangers cannot silence a newcomer that is connected to us.

By default the library opens a stream to every peer that connects, and tries again until the peer accepts the stream.  We
tell the library only of peers that we dialled or admitted (`met`).

Our own messages are sent to every neighbour, not only to the mesh (the flood publishing of gossipsub 1.1): strangers can
fill all places of a small mesh, and then no other peer would receive our messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

import trio

from protocol.transport.interface import Acceptance, Handlers, Members, NetworkError
from protocol.transport.library import Host, LibraryId, Stream, library_id, peer_id_of
from protocol.transport.limits import ABUSE, VIOLATION, Allowance, Channel, Reputation, TokenBucket
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
# The intake of neighbours' gossip, message by message, in fair turns.
#
# The library starts a task for every message as soon as the message is read.  So it would check a burst from many neighbours
# without a pause, while the event loop does nothing else.  Here the neighbours take turns: each turn of the event loop
# handles one message of a stranger and one of a member.  We read a neighbour's next RPC only after handling its last one, so
# a backlog stays at its sender.


MAX_RPC_BYTES = 1 << 17
"""Largest RPC of gossip; longer answers are split into several RPCs.  The largest message has half this size."""
MAX_MESSAGES = 1024
"""Most messages in an RPC; an RPC has room for a third of this number of signed messages."""
MAX_CONTROL = 128
"""Most subscriptions and control messages in an RPC.  For one topic, the library sends a few, and up to 64 delayed ones."""
MAX_IDS = 1024
"""Most IDs of messages that the control messages of an RPC name.  A neighbour offers the messages of three seconds at a
time, and `FORWARDED` lets it forward 100 a second.  The time that the library needs to split our reply grows with their
square."""

log = logging.getLogger(__name__)


class GossipIntake:
    """The reader of the streams on which neighbours gossip.

    members: tells members from strangers.  topic: our only topic.  is_wanted: called with the forwarder and the message,
    before the signature is checked; returns True if the message is for us, new, and within all allowances.
    """

    def __init__(
        self, members: Members, reputation: Reputation, topic: str, is_wanted: Callable[[ID, Message], bool]
    ) -> None:
        self._members, self._reputation, self._topic, self._is_wanted = members, reputation, topic, is_wanted
        self._of_members, self._of_strangers = trio.Lock(), trio.Lock()

    async def read(self, pubsub: Pubsub, stream: INetStream) -> None:
        """Handle gossip from the stream until its end.  An oversized or malformed RPC ends the stream and bans the peer."""
        from google.protobuf.message import DecodeError
        from libp2p.exceptions import ParseError
        from libp2p.io.exceptions import IOException, MessageTooLarge
        from libp2p.pubsub.pb.rpc_pb2 import RPC
        from libp2p.utils.varint import read_varint_prefixed_bytes_limited

        forwarder = stream.muxed_conn.peer_id
        try:
            while pubsub.manager.is_running:
                raw = await read_varint_prefixed_bytes_limited(stream, MAX_RPC_BYTES)
                await self._turn(forwarder)
                await self._guarded(pubsub, forwarder, RPC.FromString(raw), len(raw))
        except (DecodeError, MessageTooLarge, ParseError) as error:
            self._reputation.penalise(peer_id_of(forwarder), ABUSE, f"unreadable gossip: {error}")
            await discard(cast(Stream, stream))
            pubsub._handle_dead_peer(forwarder)
        except IOException as error:
            log.debug("the gossip of %s has ended: %s", forwarder, error)

    async def _turn(self, forwarder: ID) -> None:
        """Wait for a turn of the event loop in which no other member, or no other stranger, has its turn."""
        async with self._of_members if self._members.has_member(peer_id_of(forwarder)) else self._of_strangers:
            pass  # taking the lock is a checkpoint, and it passes to one waiting task in each turn, first come, first served

    async def _guarded(self, pubsub: Pubsub, forwarder: ID, rpc: RPC, size: int) -> None:
        """Handle an RPC.  The library can read every RPC of an honest neighbour, so a failure is penalised."""
        try:
            await self._take_in(pubsub, forwarder, rpc, size)
        except Exception as error:  # noqa: BLE001 - the library cannot read a key, a name or a number
            log.debug("the library fails at gossip of %s: %r", forwarder, error)
            self._reputation.penalise(peer_id_of(forwarder), VIOLATION, "gossip that the library cannot handle")

    async def _take_in(self, pubsub: Pubsub, forwarder: ID, rpc: RPC, size: int) -> None:
        """Handle an RPC within the allowance.  Each control message counts as a message, and so does an empty RPC."""
        peer = peer_id_of(forwarder)
        if _control_messages(rpc) > MAX_CONTROL or _named(rpc) > MAX_IDS or len(rpc.publish) > MAX_MESSAGES:
            self._reputation.penalise(peer, VIOLATION, "an RPC with too many entries")
            return
        rpc.ClearField("senderRecord")  # we dial no peer from a record, and the library would check and keep it
        cost = max(_control_messages(rpc), int(not rpc.publish))
        if not all(self._reputation.spend(peer, Channel.GOSSIP, size // cost) for _ in range(cost)):
            return
        for subscription in rpc.subscriptions:
            pubsub.handle_subscription(forwarder, subscription)
        if rpc.HasField("control"):
            _leave_out_others(rpc.control, self._topic)
            await pubsub.router.handle_rpc(rpc, forwarder)
        for message in rpc.publish:
            await self._turn(forwarder)
            if self._is_wanted(forwarder, message):
                await pubsub.push_msg(forwarder, message)


def _leave_out_others(control: ControlMessage, topic: str) -> None:
    """Remove entries about other topics, which the library would never forget, and addresses that it would dial."""
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


def _named(rpc: RPC) -> int:
    """Return the number of IDs in an RPC's control messages."""
    control = rpc.control
    offered = sum(len(each.messageIDs) for each in control.ihave)
    wanted = sum(len(each.messageIDs) for each in control.iwant)
    return offered + wanted + sum(len(each.messageIDs) for each in control.idontwant)


# ------------------------------------------------------------------------------------------------------------------------


HEARTBEAT_S = 1
DEGREE, DEGREE_LOW, DEGREE_HIGH = 4, 3, 6
FORWARDED = Allowance(100, 1e6, 5)
"""Rate of messages that we forward; we handle messages over this allowance but do not forward them."""


class Gossip:
    """The gossip of one run.  up_bytes, down_bytes: payload moved since the start."""

    def __init__(self, host: Host, run: Hash, handlers: Handlers, reputation: Reputation) -> None:
        self._me = host.get_id()
        self._handlers = handlers
        self._reputation = reputation
        self._forwarded = TokenBucket(FORWARDED)
        self._topic = f"manyhands/1/{bytes(run).hex()}"
        self._intake = GossipIntake(handlers, reputation, self._topic, self._is_wanted)
        self.up_bytes = 0
        self.down_bytes = 0
        self._router = self._new_router()
        self._pubsub = self._new_pubsub(host)
        self._queues = _take_notifee(host)
        self._pubsub.set_topic_validator(self._topic, self._validate, False)

    def _new_router(self) -> GossipSub:
        """Return the library's router with our settings.

        Three features are off.  The adaptive interval slowed from 1 s to 60 s after peers had died, the spam limit counts
        our own messages, and the eclipse protection prunes peers that share an IP address, such as peers on one computer.
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
        """Return the class of our router, which also sends our own messages outside the mesh, and no RPC over the limit.

        The router forgets peers that have gone, and keeps only messages that it may have to send again.  It sends a message
        again once for each request of a neighbour, within the neighbour's allowance.
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
                # Only the adaptive interval, which is off, removes entries of `recent_message_deliveries`.
                # `equivocation_detection` keeps a thousand whole messages to compare them with messages of the same ID, but
                # no second message of an ID gets this far.
                self.recent_message_deliveries.clear()
                self.equivocation_detection.clear()

            def remove_peer(self, peer_id: ID) -> None:
                super().remove_peer(peer_id)
                for peers in self.back_off.values():
                    peers.pop(peer_id, None)

        return FloodPublish

    def _new_pubsub(self, host: Host) -> Pubsub:
        """Return the library's `Pubsub` with our own reading of streams and our own handling of a stream's end."""
        from libp2p.network.exceptions import SwarmException
        from libp2p.pubsub.pubsub import Pubsub

        gossip = self

        class OrderlyPubsub(Pubsub):
            async def continuously_read_stream(self, stream: INetStream) -> None:
                await gossip._intake.read(self, stream)

            async def _handle_new_peer(self, peer_id: ID) -> None:
                # The library tries again only after some kinds of failure.  After any other one, such as a busy computer
                # that accepts the stream too late, two connected peers would never gossip: a peer that could not open its
                # stream has not subscribed either, so the other one sends it nothing.
                try:
                    await super()._handle_new_peer(peer_id)
                except Exception as error:
                    raise SwarmException(f"no stream for gossip: {error}") from error

            def _forget_all_subscriptions(self, peer_id: ID) -> None:
                # A reconnected peer has sent its subscriptions on the new connection, and sends them only once.  The end of
                # a stream on the old connection comes later and must not remove the subscriptions, or the peer would no
                # longer receive our messages.  Messages possibly lost with the old stream are sent again on the next one.
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
        """Stop the library's thread for seen messages.  Blocks briefly."""
        self._pubsub.seen_messages.stop()

    async def met(self, peer: PeerId) -> None:
        """Gossip with a peer from now on."""
        await _put(self._queues.initiator_peers_queue, peer)

    async def lost(self, peer: PeerId) -> None:
        """Stop gossiping with a peer whose last connection has ended."""
        await _put(self._queues.dead_peers_queue, peer)

    async def _drain(self, subscription: ISubscriptionAPI) -> None:
        """Empty the subscription, which would drop messages when full; the validator has already handled its messages."""
        while True:
            await subscription.get()

    async def publish(self, data: bytes) -> None:
        """Send `data` to all neighbours.  Raises `NetworkError` if it is larger than MAX_GOSSIP_BYTES."""
        if len(data) > MAX_GOSSIP_BYTES:
            raise NetworkError(f"a gossip message of {len(data)} bytes is over the limit of {MAX_GOSSIP_BYTES}")
        await self._pubsub.publish(self._topic, data)
        self.up_bytes += len(data)

    def _is_wanted(self, forwarder: LibraryId, message: Message) -> bool:
        """Check a message first: return True if it is of this run, new, and within the size limit and all allowances."""
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
        """Return True if we may send a neighbour the message with ID `name` again; charge the neighbour's allowance."""
        from libp2p.pubsub.utils import safe_bytes_from_hex

        known = safe_bytes_from_hex(name)
        message = self._router.mcache.get(known) if known is not None else None
        return message is not None and self._reputation.spend(peer_id_of(neighbour), Channel.GOSSIP, len(message.data))

    def _validate(self, forwarder: LibraryId, message: Message) -> bool:
        """Handle a message with a checked signature, as libp2p's topic validator.  Return True to forward the message."""
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
            self._reputation.penalise(peer, VIOLATION, "a malformed message")
        return acceptance is Acceptance.ACCEPT and self._forwarded.take(trio.current_time(), 1, len(message.data))


def _take_notifee(host: Host) -> PubsubNotifee:
    """Stop the swarm from reporting every connection to gossip.  Return the notifee, whose queues we fill ourselves."""
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
