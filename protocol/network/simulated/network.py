"""The network as a simulation: peers in one process, on links with latency, bandwidth, loss, partitions and deaths.

`MemoryWire` is the world, `MemoryNetwork` one peer's end of it; both run on trio's clock alone, so under a mock clock an
hour passes at once.  All chance comes from the generator that is passed in, and nothing iterates over a set: the same
seed gives the same run.  Protocol code cannot tell this from libp2p.

What arrives at a peer is put into its inbox and handled by its own tasks, never by the sender's: a peer that does not run
handles nothing.  Gossip reaches whoever can be reached directly or through one other peer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import trio

from protocol.network.interface import (
    MAX_PUSH_BYTES,
    MAX_PUSH_HEADER_BYTES,
    MAX_REQUEST_BYTES,
    Bandwidth,
    Handlers,
    NetworkError,
    Refused,
    Traffic,
    Unreachable,
)
from protocol.network.simulated.links import SMALL_BYTES, Access, Agenda, Pipe, Transfer
from protocol.wire.identity import PeerId

HALF_OPEN_S = 30.0
"""How long a receiver waits for the rest of a push whose sender fell silent."""


@dataclass
class Weather:
    """What links are like.  latency_s: one way, `jitter_s` more at most.  bytes_per_s: each peer's up and down rate.

    gossip_loss, gossip_copies, gossip_late: chance that a gossip message is lost, arrives twice, or comes up to `late_s`
    late (and so after later ones), at one peer.  request_loss: chance that a question, an answer or a push gets lost.
    """

    latency_s: float = 0.02
    jitter_s: float = 0.02
    bytes_per_s: float = 50e6
    gossip_loss: float = 0.0
    gossip_copies: float = 0.0
    gossip_late: float = 0.0
    late_s: float = 3.0
    request_loss: float = 0.0


class MemoryWire:
    """All peers and what lies between them.  `nursery` runs the agenda."""

    def __init__(self, nursery: trio.Nursery, random: Random, weather: Weather | None = None) -> None:
        self.random = random
        self.weather = weather or Weather()
        self.agenda = Agenda()
        self.arrivals: Counter[tuple[str, PeerId]] = Counter()
        """How many of each kind (gossip, request, push) arrived at each peer."""
        self.questions: Counter[str] = Counter()
        """How many questions of each kind arrived."""
        self.on_trouble: Callable[[str, PeerId], None] = lambda trouble, peer: None
        """Told what the weather did to a message, and whose message it was."""
        self.on_gossip: Callable[[PeerId, bytes], None] = lambda receiver, data: None
        """Told of gossip that a peer is about to handle."""
        self._ends: dict[PeerId, MemoryNetwork] = {}
        self._rates: dict[PeerId, tuple[float, float]] = {}
        self._side: dict[PeerId, int] = {}
        self._cut: dict[tuple[PeerId, PeerId], None] = {}
        self._forgotten: dict[tuple[PeerId, PeerId], None] = {}
        nursery.start_soon(self.agenda.run)

    @property
    def messages(self) -> int:
        return sum(self.arrivals.values())

    # -- what happens in the world ------------------------------------------------------------------------------------

    def join(self, end: MemoryNetwork) -> None:
        """A peer comes up and is connected to everybody it can reach."""
        peer = end.peer_id
        assert peer not in self._ends, "one process an identity"
        self._ends[peer] = end
        self._side.setdefault(peer, 0)
        up, down = self._rates.get(peer, (self.weather.bytes_per_s, self.weather.bytes_per_s))
        end.access = Access(Pipe(self.agenda, up), Pipe(self.agenda, down))
        for other in self.reachable(peer):
            self._tell_connected(self._ends[other], peer)

    def crash(self, peer: PeerId) -> None:
        """A peer is gone from one moment to the next; others see the connection break."""
        end = self._ends.pop(peer, None)
        if end is None:
            return
        for call in [*end.calls, *end.served]:
            call.abandon()
        for other in self._ends.values():
            for call in [call for call in other.calls if call.receiver == peer]:
                call.fail(Unreachable(f"the connection to {peer} broke"))
            for call in [call for call in other.served if call.caller == peer]:
                call.break_off()
            if self._linked(peer, other.peer_id):
                self._tell_disconnected(other, peer)

    def set_rate(self, peer: PeerId, up: float, down: float) -> None:
        """This peer's links, from its next life on, in bytes a second."""
        self._rates[peer] = (up, down)

    def partition(self, *sides: Sequence[PeerId]) -> None:
        """Peers of different sides cannot reach each other; who is not named is on the first side."""
        before = {peer: self.reachable(peer) for peer in self._ends}
        self._side = {peer: number for number, side in enumerate(sides) for peer in side}
        for peer, end in self._ends.items():
            after = self.reachable(peer)
            for other in before[peer]:
                if other not in after:
                    self._tell_disconnected(end, other)
            for other in after:
                if other not in before[peer]:
                    self._tell_connected(end, other)

    def heal(self) -> None:
        """No sides and no cuts any more."""
        self._cut.clear()
        self.partition()

    def cut(self, sender: PeerId, receiver: PeerId) -> None:
        """Nothing gets from `sender` to `receiver` directly any more; the other way still works."""
        self._cut[sender, receiver] = None

    def freeze(self, peer: PeerId) -> None:
        """Its process is stopped: nothing more leaves it."""
        if peer in self._ends:
            self._ends[peer].access.up.stop()

    def thaw(self, peer: PeerId) -> None:
        if peer in self._ends:
            self._ends[peer].access.up.go_on()

    # -- used by the ends ---------------------------------------------------------------------------------------------

    def end(self, peer: PeerId) -> MemoryNetwork | None:
        return self._ends.get(peer)

    def forget(self, one: PeerId, other: PeerId) -> None:
        self._forgotten[one, other] = self._forgotten[other, one] = None

    def reachable(self, peer: PeerId) -> list[PeerId]:
        return [other for other in self._ends if self._linked(peer, other)]

    def carries(self, sender: PeerId, receiver: PeerId) -> bool:
        return self._linked(sender, receiver) and (sender, receiver) not in self._cut

    def _linked(self, one: PeerId, other: PeerId) -> bool:
        return (one != other and self._side.get(one, 0) == self._side.get(other, 0)
                and (one, other) not in self._forgotten)

    def _tell_connected(self, end: MemoryNetwork, peer: PeerId) -> None:
        end.post(lambda: end.handlers.on_peer_connected(peer))

    def _tell_disconnected(self, end: MemoryNetwork, peer: PeerId) -> None:
        end.post(lambda: end.handlers.on_peer_disconnected(peer))

    def delay_s(self) -> float:
        return self.weather.latency_s + self.random.random() * self.weather.jitter_s

    def send(self, sender: MemoryNetwork, receiver: MemoryNetwork, size: int, arrived: Callable[[], None], *,
             delay_s: float | None = None) -> Transfer:
        """One way, one message; lost when the link does not carry it at the end."""
        def arrive() -> None:
            if self._ends.get(receiver.peer_id) is receiver and self.carries(sender.peer_id, receiver.peer_id):
                receiver.down_bytes += size
                arrived()

        sender.up_bytes += size
        delay_s = self.delay_s() if delay_s is None else delay_s
        transfer = Transfer(self.agenda, (sender.peer_id, receiver.peer_id), size, delay_s, arrive)
        if size > SMALL_BYTES:
            transfer.begin(sender.access, receiver.access)
        else:
            own_s = size / sender.access.up.bytes_per_s + size / receiver.access.down.bytes_per_s
            self.agenda.put(delay_s + own_s, lambda: None if transfer.abandoned else arrive())
        return transfer

    def loses(self, sender: PeerId) -> bool:
        """Whether the weather takes a question, an answer or a push."""
        return self._strikes(self.weather.request_loss, "lost request", sender)

    def spread(self, sender: MemoryNetwork, data: bytes) -> None:
        """Gossip to everybody within reach."""
        weather = self.weather
        sender.up_bytes += len(data)
        for receiver in self.reachable(sender.peer_id):
            hops = self._hops(sender.peer_id, receiver)
            for _ in range(2 if self._strikes(weather.gossip_copies, "doubled gossip", receiver) else 1):
                if hops and not self._strikes(weather.gossip_loss, "lost gossip", receiver):
                    late = self._strikes(weather.gossip_late, "late gossip", receiver)
                    delay_s = hops * self.delay_s() + (self.random.random() * weather.late_s if late else 0.0)
                    self.agenda.put(delay_s + len(data) / weather.bytes_per_s,
                                    self._gossip(sender.peer_id, self._ends[receiver], data))

    def _strikes(self, chance: float, trouble: str, peer: PeerId) -> bool:
        if chance == 0 or self.random.random() >= chance:
            return False
        self.on_trouble(trouble, peer)
        return True

    def _hops(self, sender: PeerId, receiver: PeerId) -> int:
        if not self._cut or self.carries(sender, receiver):
            return 1
        return 2 if any(self.carries(sender, other) and self.carries(other, receiver) for other in self._ends) else 0

    def _gossip(self, sender: PeerId, end: MemoryNetwork, data: bytes) -> Callable[[], None]:
        def arrive() -> None:
            if self._ends.get(end.peer_id) is end and self._linked(sender, end.peer_id):
                self.arrivals["gossip", end.peer_id] += 1
                end.down_bytes += len(data)
                end.post(lambda: end.take_gossip(sender, data))

        return arrive


class _Call:
    """A question or a push under way.  Lives with its caller; the receiver serves it.

    size: bytes of a push's data; `delivered` is set when they are there, or never will be (`broken`).
    """

    def __init__(self, caller: PeerId, receiver: PeerId) -> None:
        self.caller, self.receiver = caller, receiver
        self.ended, self.delivered = trio.Event(), trio.Event()
        self.broken = False
        self.answer = b""
        self.error: NetworkError | None = None
        self.transfers: list[Transfer] = []

    def finish(self, answer: bytes) -> None:
        self.answer = answer
        self.ended.set()

    def fail(self, error: NetworkError) -> None:
        if not self.ended.is_set():
            self.error = error
            self.ended.set()

    def break_off(self) -> None:
        if not self.delivered.is_set():
            self.broken = True
            self.delivered.set()

    def abandon(self) -> None:
        for transfer in self.transfers:
            transfer.abandon()


class MemoryNetwork:
    """One peer's end: a `protocol.network.interface.Network`.

    It is up from `MemoryWire.join` until it crashes; `run` it.  `handlers` are set before it joins.
    """

    access: Access
    handlers: Handlers

    def __init__(self, wire: MemoryWire, peer_id: PeerId, handlers: Handlers | None = None) -> None:
        self._wire, self._peer_id = wire, peer_id
        if handlers is not None:
            self.handlers = handlers
        self.up_bytes = self.down_bytes = 0
        self.calls: dict[_Call, None] = {}
        self.served: dict[_Call, None] = {}
        self._post, self._inbox = trio.open_memory_channel[Callable[[], object]](math.inf)
        self._nursery: trio.Nursery | None = None

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    def addresses(self) -> Sequence[str]:
        return [f"/memory/{self._peer_id}/p2p/{self._peer_id}"]

    def connected(self) -> Sequence[PeerId]:
        return self._wire.reachable(self._peer_id) if self._wire.end(self._peer_id) is self else []

    def welcome(self, peer: PeerId) -> None:
        """There are no strangers here."""

    def traffic(self) -> Traffic:
        return Traffic(self.up_bytes, self.down_bytes)

    def bandwidth(self) -> Bandwidth:
        return Bandwidth(self.access.up.bytes_per_s, self.access.down.bytes_per_s)

    def remember(self, addresses: Sequence[str]) -> None:
        """Everybody is connected already."""

    def known_addresses(self) -> Sequence[str]:
        return []

    def forget(self, peer: PeerId) -> None:
        self._wire.forget(peer, self._peer_id)

    # -- what arrives -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Handle what arrives, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            async for arrival in self._inbox:
                arrival()

    def post(self, arrival: Callable[[], object]) -> None:
        """Into the inbox: handled when this peer runs."""
        self._post.send_nowait(arrival)

    def take_gossip(self, sender: PeerId, data: bytes) -> None:
        self._wire.on_gossip(self._peer_id, data)
        self.handlers.on_gossip(sender, data)

    async def _answer(self, call: _Call, caller: MemoryNetwork, kind: str, data: bytes) -> None:
        self.served[call] = None
        try:
            answer = await self.handlers.on_request(call.caller, kind, data)
        except Refused as refusal:
            reason = refusal
            self._reply(call, caller, 0, lambda: call.fail(Refused(str(reason)[:300])))
        else:
            assert len(answer) <= MAX_REQUEST_BYTES
            self._reply(call, caller, len(answer), lambda: call.finish(answer))
        finally:
            self.served.pop(call, None)

    async def _receive(self, call: _Call, caller: MemoryNetwork, header: bytes, data: memoryview) -> None:
        self.served[call] = None
        try:
            landing = await self.handlers.open_push(call.caller, header, len(data))
            if landing is None:
                self._reply(call, caller, 0, lambda: call.fail(Refused("not wanted")))
                return
            assert len(landing.buffer) == len(data)
            if not call.broken:  # the sender sent on while the header was looked at
                call.transfers.append(self._wire.send(caller, self, len(data), call.delivered.set, delay_s=0.0))
            with trio.move_on_after(HALF_OPEN_S):
                await call.delivered.wait()
            if call.broken or not call.delivered.is_set():
                await self.handlers.finish_push(call.caller, header, None)
                return
            landing.buffer[:] = data
            landing.complete()
            self._wire.arrivals["push", self._peer_id] += 1
            await self.handlers.finish_push(call.caller, header, landing)
            self._reply(call, caller, 0, lambda: call.finish(b""))
        finally:
            self.served.pop(call, None)

    def _reply(self, call: _Call, caller: MemoryNetwork, size: int, arrived: Callable[[], None]) -> None:
        if not self._wire.loses(self._peer_id) and self._wire.end(caller.peer_id) is caller:
            call.transfers.append(self._wire.send(self, caller, size, arrived))

    # -- what goes out ------------------------------------------------------------------------------------------------

    async def publish(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self._wire.end(self._peer_id) is self:
            self._wire.spread(self, data)

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        if len(data) > MAX_REQUEST_BYTES:
            raise Unreachable("the question is over the limit")
        await trio.lowlevel.checkpoint()
        with self._calling(peer, timeout_s) as (call, end):
            self._begin(call, end, len(data), kind, lambda: end.spawn(end._answer, call, self, kind, data))
            await call.ended.wait()
        return self._outcome(call)

    async def push(self, peer: PeerId, header: bytes, data: memoryview, *, timeout_s: float) -> None:
        assert len(header) <= MAX_PUSH_HEADER_BYTES and len(data) <= MAX_PUSH_BYTES
        await trio.lowlevel.checkpoint()
        with self._calling(peer, timeout_s) as (call, end):
            self._begin(call, end, len(header), "", lambda: end.spawn(end._receive, call, self, header, data))
            await call.ended.wait()
        self._outcome(call)

    def spawn(self, function: Callable[..., object], *arguments: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(function, *arguments)  # type: ignore[arg-type]

    def _begin(self, call: _Call, end: MemoryNetwork, size: int, kind: str, handle: Callable[[], None]) -> None:
        def arrive() -> None:
            if kind:
                self._wire.arrivals["request", end.peer_id] += 1
                self._wire.questions[kind] += 1
            end.post(handle)

        if not self._wire.loses(self._peer_id):
            call.transfers.append(self._wire.send(self, end, size, arrive))

    @contextmanager
    def _calling(self, peer: PeerId, timeout_s: float) -> Iterator[tuple[_Call, MemoryNetwork]]:
        """A call to `peer` and its end; when the deadline passes, or we are cancelled, the other end learns of it."""
        end = self._wire.end(peer)
        if end is None or self._wire.end(self._peer_id) is not self:
            raise Unreachable(f"{peer} is gone")
        call = _Call(self._peer_id, peer)
        self.calls[call] = None
        try:
            with trio.move_on_after(timeout_s) as scope:
                yield call, end
            if scope.cancelled_caught:
                raise Unreachable(f"{peer} did not answer in {timeout_s:.0f} s")
        finally:
            self.calls.pop(call, None)
            call.abandon()
            if not call.ended.is_set() and self._wire.end(peer) is end and self._wire.end(self._peer_id) is self:
                self._wire.send(self, end, 0, call.break_off)

    def _outcome(self, call: _Call) -> bytes:
        if call.error is not None:
            raise call.error
        return call.answer
