"""Pushes to other members: one queue a peer, several pushes under way in each."""

from __future__ import annotations

from collections import deque

import trio

from protocol.exchange.buffers import share_of_buffers
from protocol.exchange.chunks import OwnParts, Results
from protocol.exchange.effects import SendPart, SendResult
from protocol.exchange.machine import ExchangeMachine
from protocol.exchange.messages import PushHeader
from protocol.network.interface import Network, NetworkError, Refused
from protocol.wire.identity import PeerId

PUSHES_AHEAD = 8
"""Pushes to one peer that are on their way or wait for its answer: a long way is kept full, and trips are shared."""
PUSH_TIMEOUT_S = 60.0
RETRY_S = 0.5
REFUSALS = 6
"""A part refused so often in a row is given up: the receiver has what it needs, or another plan."""


class Sender:
    """Pushes parts and results in the order in which they were ordered.  up_bytes: headers and chunks delivered so far."""

    def __init__(self, machine: ExchangeMachine, own: OwnParts, results: Results, network: Network) -> None:
        self.up_bytes = 0
        self.refusing: dict[PeerId, None] = {}
        """Peers that did not take a push of ours."""
        self._machine, self._own, self._results, self._network = machine, own, results, network
        self._queues: dict[PeerId, deque[SendPart | SendResult]] = {peer: deque() for peer in machine.others}
        self._wake = {peer: trio.Event() for peer in machine.others}
        self._ordered: set[SendPart | SendResult] = set()

    def order(self, item: SendPart | SendResult) -> None:
        """Queue a push; nothing if the same is queued, on its way or delivered."""
        if item not in self._ordered:
            self._ordered.add(item)
            self._queues[item.to].append(item)
            self._wake[item.to].set()

    async def serve(self, peer: PeerId) -> None:
        """Push the queue of this peer, until cancelled."""
        queue, under_way = self._queues[peer], deque[trio.Event]()
        ahead = min(PUSHES_AHEAD, share_of_buffers(len(self._queues)))
        async with trio.open_nursery() as nursery:
            while True:
                while not queue:
                    self._wake[peer] = trio.Event()
                    await self._wake[peer].wait()
                if len(under_way) >= ahead:
                    await under_way.popleft().wait()
                item = queue.popleft()
                if isinstance(item, SendPart) and (peer in self._machine.lost or item.chunk in self._machine.entries):
                    self._ordered.discard(item)
                    continue
                under_way.append(trio.Event())
                nursery.start_soon(self._push, item, under_way[-1])

    async def _push(self, item: SendPart | SendResult, over: trio.Event) -> None:
        try:
            if not await self._push_until_over(item):
                self._ordered.discard(item)
        finally:
            over.set()

    async def _push_until_over(self, item: SendPart | SendResult) -> bool:
        """Push until it is there, refused for good, or the peer is lost.  Whether it is there."""
        if isinstance(item, SendResult) and not self._results.has(item.chunk):
            return False  # the peer fetches it from the record's members
        header, data = self._header(item).encode(), (self._own if isinstance(item, SendPart) else self._results)[item.chunk]
        refusals = 0
        while True:
            try:
                await self._network.push(item.to, header, data, timeout_s=PUSH_TIMEOUT_S)
                self.up_bytes += len(header) + len(data)
                return True
            except Refused:
                refusals += 1
                self.refusing[item.to] = None
                if refusals >= REFUSALS or isinstance(item, SendResult):
                    return False
            except NetworkError:
                if item.to in self._machine.lost:
                    return False
            await trio.sleep(RETRY_S)

    def _header(self, item: SendPart | SendResult) -> PushHeader:
        if isinstance(item, SendPart):
            return self._header_of(item.chunk, self._own.proof(item.chunk), None)
        return self._header_of(item.chunk, [], self._results.statements[item.chunk].raw)

    def _header_of(self, chunk: int, proof: list[bytes], statement: bytes | None) -> PushHeader:
        plan = self._machine.plan
        return PushHeader(plan=self._machine.name, fragment=plan.fragment, chunk=chunk, proof=proof, statement=statement)
