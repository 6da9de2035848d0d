"""What neighbours gossip: taken in message by message, in fair turns.

The library starts a task for every message as soon as it is read: a burst from many neighbours is checked in one go, during
which the event loop does nothing else.  Here the neighbours take turns, message by message: each turn of the event loop
takes in one message of a stranger and one of a member.  The next RPC of a neighbour is not read before the last one is
done, so a backlog stays with its sender.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from protocol.network.interface import Members
from protocol.network.libp2p.library import Stream, peer_id_of
from protocol.network.libp2p.reputation import ABUSE, VIOLATION, Channel, Reputation
from protocol.network.libp2p.streams import discard
from protocol.network.libp2p.turns import Turns

if TYPE_CHECKING:
    from libp2p.abc import INetStream
    from libp2p.peer.id import ID
    from libp2p.pubsub.pb.rpc_pb2 import RPC, ControlMessage, Message
    from libp2p.pubsub.pubsub import Pubsub

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
