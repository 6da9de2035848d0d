"""Gossip: one gossipsub topic per run; every message is judged by the handlers before it is forwarded.

Decides how much one forwarder may send and when a forwarder of rejected messages is no longer listened to.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import trio

from protocol.envelope import MAX_GOSSIP_BYTES
from protocol.hashes import Hash
from protocol.identity import PeerId
from protocol.network import Handlers, NetworkError, Verdict

HEARTBEAT_S = 1
DEGREE, DEGREE_LOW, DEGREE_HIGH = 4, 3, 6
RATE_PER_S = 200.0
"""Messages a second that one forwarder may bring us, with bursts of `BURST`."""
BURST = 600.0
REJECT_COST = 60.0
"""A rejected message costs its forwarder as much of its rate as this many good ones."""
MAX_FORWARDERS = 1024

log = logging.getLogger(__name__)


@dataclass
class _Allowance:
    tokens: float
    at: float


class Gossip:
    def __init__(self, host: Any, run: Hash, handlers: Handlers) -> None:
        from libp2p.custom_types import TProtocol
        from libp2p.pubsub.gossipsub import GossipSub
        from libp2p.pubsub.pubsub import Pubsub

        self._me = host.get_id()
        self._handlers = handlers
        self._topic = f"manyhands/1/{bytes(run).hex()}"
        self._allowances: OrderedDict[PeerId, _Allowance] = OrderedDict()
        self.up_bytes = 0
        self.down_bytes = 0
        # The library's adaptive interval slowed 1 s to 60 s after deaths, its spam limit counts our own messages, and
        # its eclipse protection prunes peers that share an address, as on one computer: all three are off.
        self._router = GossipSub(
            protocols=[TProtocol("/meshsub/1.1.0")],
            degree=DEGREE,
            degree_low=DEGREE_LOW,
            degree_high=DEGREE_HIGH,
            heartbeat_interval=HEARTBEAT_S,
            adaptive_gossip_enabled=False,
            spam_protection_enabled=False,
            eclipse_protection_enabled=False,
        )
        self._pubsub = Pubsub(host, self._router, allowed_topics=frozenset({self._topic}))
        self._pubsub.set_topic_validator(self._topic, self._validate, False)

    async def start(self, stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        from libp2p.tools.anyio_service import background_trio_service

        await stack.enter_async_context(background_trio_service(self._pubsub))
        await stack.enter_async_context(background_trio_service(self._router))
        await self._pubsub.wait_until_ready()
        subscription = await self._pubsub.subscribe(self._topic)
        nursery.start_soon(self._drain, subscription)

    async def _drain(self, subscription: Any) -> None:
        """The validator has already handed the message over; a full subscription would only log and drop."""
        while True:
            await subscription.get()

    async def publish(self, data: bytes) -> None:
        if len(data) > MAX_GOSSIP_BYTES:
            raise NetworkError(f"a gossip message of {len(data)} bytes is over the limit of {MAX_GOSSIP_BYTES}")
        await self._pubsub.publish(self._topic, data)
        self.up_bytes += len(data)

    def _validate(self, forwarder: Any, message: Any) -> bool:
        """libp2p's topic validator: True forwards the message."""
        if forwarder == self._me:
            return True
        peer = PeerId(forwarder.to_base58())
        if not self._spend(peer, 1.0) or len(message.data) > MAX_GOSSIP_BYTES:
            return False
        self.down_bytes += len(message.data)
        try:
            verdict = self._handlers.on_gossip(peer, message.data)
        except Exception:
            log.exception("the gossip handler failed")
            return False
        if verdict is Verdict.REJECT:
            self._spend(peer, REJECT_COST, force=True)
        return verdict is Verdict.ACCEPT

    def _spend(self, peer: PeerId, cost: float, *, force: bool = False) -> bool:
        now = trio.current_time()
        allowance = self._allowances.pop(peer, None) or _Allowance(BURST, now)
        tokens = min(BURST, allowance.tokens + (now - allowance.at) * RATE_PER_S)
        affordable = tokens >= cost
        if affordable or force:
            tokens = max(-BURST, tokens - cost)
        self._allowances[peer] = _Allowance(tokens, now)
        while len(self._allowances) > MAX_FORWARDERS:
            self._allowances.popitem(last=False)
        return affordable
