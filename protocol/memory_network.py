"""The network as a simulation: peers in one process, on links with latency, bandwidth, loss, partitions and deaths.

`MemoryWire` is the world, `MemoryNetwork` one peer's end of it; both run on trio's clock alone, so under a mock clock an
hour passes at once.  All chance comes from the generator that is passed in, and nothing iterates over a set: the same
seed gives the same run.  Protocol code cannot tell this from libp2p.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import trio

from protocol.identity import PeerId
from protocol.network import (
    MAX_PUSH_BYTES,
    MAX_PUSH_HEADER_BYTES,
    MAX_REQUEST_BYTES,
    Handlers,
    Refused,
    Traffic,
    Unreachable,
)


@dataclass
class Weather:
    """What links are like.  latency_s: one way, `jitter_s` more at most.  bytes_per_s: each peer's up and down rate.

    gossip_loss, gossip_copies: chance that a gossip message is lost, or arrives twice, at one peer.
    """

    latency_s: float = 0.02
    jitter_s: float = 0.02
    bytes_per_s: float = 50e6
    gossip_loss: float = 0.0
    gossip_copies: float = 0.0


class MemoryWire:
    """All peers and what lies between them.  `nursery` runs deliveries."""

    def __init__(self, nursery: trio.Nursery, random: Random, weather: Weather | None = None) -> None:
        self.nursery, self.random = nursery, random
        self.weather = weather or Weather()
        self.messages = 0
        self._ends: dict[PeerId, MemoryNetwork] = {}
        self._side: dict[PeerId, int] = {}
        self._frozen: dict[PeerId, trio.Event] = {}
        self._cut: dict[tuple[PeerId, PeerId], None] = {}

    # -- what happens in the world ------------------------------------------------------------------------------------

    def join(self, end: MemoryNetwork) -> None:
        """A peer comes up and is connected to everybody it can reach."""
        peer = end.peer_id
        assert peer not in self._ends, "one process an identity"
        self._ends[peer] = end
        self._side.setdefault(peer, 0)
        for other in self._reachable(peer):
            self._ends[other].handlers.on_peer_connected(peer)
            end.handlers.on_peer_connected(other)

    def crash(self, peer: PeerId) -> None:
        """A peer is gone from one moment to the next; others see the connection break."""
        end = self._ends.pop(peer, None)
        if end is None:
            return
        end.broken.set()
        self.thaw(peer)
        for other in list(self._ends):
            if self._linked(peer, other):
                self._ends[other].handlers.on_peer_disconnected(peer)

    def partition(self, *sides: Sequence[PeerId]) -> None:
        """Peers of different sides cannot reach each other; who is not named is on the first side."""
        before = {peer: self._reachable(peer) for peer in self._ends}
        self._side = {peer: number for number, side in enumerate(sides) for peer in side}
        for peer in self._ends:
            for other in before[peer]:
                if other not in self._reachable(peer):
                    self._ends[peer].handlers.on_peer_disconnected(other)
            for other in self._reachable(peer):
                if other not in before[peer]:
                    self._ends[peer].handlers.on_peer_connected(other)

    def heal(self) -> None:
        self.partition()

    def cut(self, sender: PeerId, receiver: PeerId) -> None:
        """Nothing gets from `sender` to `receiver` any more; the other way still works."""
        self._cut[sender, receiver] = None

    def freeze(self, peer: PeerId) -> None:
        """As if stopped by a signal: connected, and deaf and dumb."""
        self._frozen.setdefault(peer, trio.Event())

    def thaw(self, peer: PeerId) -> None:
        if peer in self._frozen:
            self._frozen.pop(peer).set()

    # -- used by the ends ---------------------------------------------------------------------------------------------

    def end(self, peer: PeerId) -> MemoryNetwork | None:
        return self._ends.get(peer)

    def carries(self, sender: PeerId, receiver: PeerId) -> bool:
        return (sender in self._ends and receiver in self._ends and self._linked(sender, receiver)
                and (sender, receiver) not in self._cut)

    def _linked(self, one: PeerId, other: PeerId) -> bool:
        return one != other and self._side.get(one, 0) == self._side.get(other, 0)

    def _reachable(self, peer: PeerId) -> list[PeerId]:
        return [other for other in self._ends if self._linked(peer, other)]

    async def awake(self, peer: PeerId) -> None:
        while peer in self._frozen:
            await self._frozen[peer].wait()

    async def travel(self, size: int = 0) -> None:
        """One way over the link, with `size` bytes."""
        weather = self.weather
        await trio.sleep(weather.latency_s + self.random.random() * weather.jitter_s + size / weather.bytes_per_s)

    def spread(self, sender: PeerId, data: bytes) -> None:
        """Gossip to everybody within reach."""
        for receiver in self._reachable(sender):
            copies = 2 if self.random.random() < self.weather.gossip_copies else 1
            for _ in range(copies):
                if self.random.random() >= self.weather.gossip_loss:
                    self.nursery.start_soon(self._deliver_gossip, sender, receiver, data)

    async def _deliver_gossip(self, sender: PeerId, receiver: PeerId, data: bytes) -> None:
        await self.travel(len(data))
        await self.awake(receiver)
        if self.carries(sender, receiver):
            self.messages += 1
            self._ends[receiver].down_bytes += len(data)
            self._ends[receiver].handlers.on_gossip(sender, data)


class MemoryNetwork:
    """One peer's end: a `protocol.network.Network`.  It is up from `MemoryWire.join` until it crashes."""

    def __init__(self, wire: MemoryWire, peer_id: PeerId, handlers: Handlers) -> None:
        self._wire, self._peer_id, self.handlers = wire, peer_id, handlers
        self.broken = trio.Event()
        self.up_bytes = self.down_bytes = 0

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    def addresses(self) -> Sequence[str]:
        return [f"/memory/{self._peer_id}/p2p/{self._peer_id}"]

    def connected(self) -> Sequence[PeerId]:
        return self._wire._reachable(self._peer_id) if self._wire.end(self._peer_id) is self else []

    def traffic(self) -> Traffic:
        return Traffic(self.up_bytes, self.down_bytes)

    def remember(self, addresses: Sequence[str]) -> None:
        """Everybody is connected already."""

    def known_addresses(self) -> Sequence[str]:
        return []

    def forget(self, peer: PeerId) -> None:
        self._wire.cut(peer, self._peer_id)
        self._wire.cut(self._peer_id, peer)

    async def publish(self, data: bytes) -> None:
        await self._wire.awake(self._peer_id)
        if self._wire.end(self._peer_id) is self:
            self.up_bytes += len(data)
            self._wire.spread(self._peer_id, data)
        await trio.lowlevel.checkpoint()

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        if len(data) > MAX_REQUEST_BYTES:
            raise Unreachable("the question is over the limit")
        with self._deadline(peer, timeout_s):
            await self._pass(self._peer_id, peer, len(data))
            handlers = self._end_of(peer).handlers
            try:
                answer = await handlers.on_request(self._peer_id, kind, data)
            except Refused:
                await self._pass(peer, self._peer_id, 0)
                raise
            await self._pass(peer, self._peer_id, len(answer))
            self._wire.messages += 1
            return answer

    async def push(self, peer: PeerId, header: bytes, data: memoryview, *, timeout_s: float) -> None:
        assert len(header) <= MAX_PUSH_HEADER_BYTES and len(data) <= MAX_PUSH_BYTES
        with self._deadline(peer, timeout_s):
            await self._pass(self._peer_id, peer, len(header))
            end = self._end_of(peer)
            buffer = await end.handlers.open_push(self._peer_id, header, len(data))
            if buffer is None:
                raise Refused("not wanted")
            assert len(buffer) == len(data)
            whole = False
            try:
                await self._pass(self._peer_id, peer, len(data))
                buffer[:] = data
                whole = True
            finally:
                if self._wire.end(peer) is end:
                    with trio.CancelScope(shield=True):
                        await end.handlers.finish_push(self._peer_id, header, buffer if whole else None)
            await self._pass(peer, self._peer_id, 0)

    @contextmanager
    def _deadline(self, peer: PeerId, timeout_s: float) -> Iterator[None]:
        with trio.move_on_after(timeout_s) as scope:
            yield
        if scope.cancelled_caught:
            raise Unreachable(f"{peer} did not answer in {timeout_s:.0f} s")

    def _end_of(self, peer: PeerId) -> MemoryNetwork:
        end = self._wire.end(peer)
        if end is None:
            raise Unreachable(f"{peer} is gone")
        return end

    async def _pass(self, sender: PeerId, receiver: PeerId, size: int) -> None:
        """From one end to the other; what the link does not carry is lost, and found out by the deadline."""
        await self._wire.awake(sender)
        await self._wire.travel(size)
        await self._wire.awake(receiver)
        if self._wire.end(receiver) is None or self._wire.end(sender) is None:
            raise Unreachable(f"the connection to {receiver} broke")
        if not self._wire.carries(sender, receiver):
            await trio.sleep_forever()
        for peer, up in ((sender, True), (receiver, False)):
            end = self._wire.end(peer)
            if end is not None and up:
                end.up_bytes += size
            elif end is not None:
                end.down_bytes += size
