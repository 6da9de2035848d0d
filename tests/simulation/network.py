"""A simulated network: peers in one process, on links with latency, bandwidth, loss, partitions and deaths.

`MemoryNetwork` is one peer's endpoint on a `MemoryWire`.  Both use only trio's clock, so under a mock clock an hour passes
at once.  Protocol code works the same on this network and on libp2p.

Arrivals at a peer are put into the peer's inbox and handled by the peer's own tasks, never by the sender's.  So a peer that
does not run handles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from protocol.transport.interface import (
    MAX_PUSH_BYTES,
    MAX_PUSH_HEADER_BYTES,
    MAX_REQUEST_BYTES,
    Bandwidth,
    Handlers,
    LinkMeasurement,
    Offence,
    Refused,
    Traffic,
    Unreachable,
    nothing,
)
from protocol.wire.identity import PeerId
from tests.simulation.wire import Endpoint, MemoryWire, SimulatedCall

HALF_OPEN_S = 30.0
"""Seconds for which a receiver waits for the data of a push."""
SLOWEST_BYTES_PER_S = 32 << 10
"""Rate (bytes a second) for the receiver's deadline: the time that the data takes at this rate is added to `HALF_OPEN_S`."""


class MemoryNetwork(Endpoint):
    """One peer's endpoint of the simulated network: a `protocol.transport.interface.Network`; it needs `run`.

    The peer is up from `MemoryWire.join` until it crashes.  Set `handlers` before `join`.
    """

    def __init__(self, wire: MemoryWire, peer_id: PeerId, handlers: Handlers | None = None) -> None:
        super().__init__(peer_id)
        self._wire = wire
        if handlers is not None:
            self.handlers = handlers

    def addresses(self) -> Sequence[str]:
        """Return one multiaddr, which only this simulation knows."""
        return [f"/memory/{self._peer_id}/p2p/{self._peer_id}"]

    def connected(self) -> Sequence[PeerId]:
        """Return the peers that we can reach."""
        return self._wire.reachable(self._peer_id) if self._wire.end(self._peer_id) is self else []

    def link(self, peer: PeerId) -> str:
        """Return "direct" for every peer that we can reach, else ""."""
        return "direct" if peer in self.connected() else ""

    def measured_link(self, peer: PeerId) -> LinkMeasurement:
        """Return no measurements: there are no sockets."""
        return LinkMeasurement()

    def welcome(self, peer: PeerId) -> None:
        """Do nothing: there are no strangers here."""

    def traffic(self) -> Traffic:
        """Return the payload moved since the start."""
        return Traffic(self.up_bytes, self.down_bytes)

    def bandwidth(self) -> Bandwidth:
        """Return the rates of our links."""
        return Bandwidth(self.access.up.bytes_per_s, self.access.down.bytes_per_s)

    async def receive_elsewhere(self, size: int) -> None:
        """Count `size` bytes from outside; the simulated link has no other limit."""
        self.down_bytes += size
        await trio.lowlevel.checkpoint()

    def is_moving(self) -> bool:
        """Return False: addresses do not change here."""
        return False

    def remember(self, addresses: Sequence[str], *, claimed: bool = False) -> None:
        """Do nothing: every peer is already connected."""

    def known_addresses(self) -> Sequence[str]:
        """Return no addresses: there is no address book."""
        return []

    def forget(self, peer: PeerId) -> None:
        """Separate us from a peer for good."""
        self._wire.forget(peer, self._peer_id)

    async def publish(self, data: bytes) -> None:
        """Gossip `data` to every peer that we can reach.  Does nothing after a crash."""
        await trio.lowlevel.checkpoint()
        if self._wire.end(self._peer_id) is self:
            self._wire.spread(self, data)

    async def request(self, peer: PeerId, kind: str, data: bytes, *, timeout_s: float) -> bytes:
        """Ask a peer and return its answer.  Raises `Unreachable` or `Refused`."""
        if len(data) > MAX_REQUEST_BYTES:
            raise Unreachable("the question is over the limit")
        await trio.lowlevel.checkpoint()
        with self._calling(peer, timeout_s) as (call, end):
            self._begin(call, end, len(data), kind, lambda: end.spawn(self._answer, call, end, kind, data))
            await call.ended.wait()
        return self._outcome(call)

    async def push(
        self,
        peer: PeerId,
        header: bytes,
        data: memoryview,
        *,
        timeout_s: float,
        spare: bool = False,
        on_sent: Callable[[], None] = nothing,
    ) -> None:
        """Send `data` into the buffer that `peer` provides for `header`.  Raises `Unreachable` or `Refused`."""
        assert len(header) <= MAX_PUSH_HEADER_BYTES and len(data) <= MAX_PUSH_BYTES
        await trio.lowlevel.checkpoint()
        with self._calling(peer, timeout_s) as (call, end):
            self._begin(call, end, len(header), "", lambda: end.spawn(self._receive, call, end, header, data, spare))
            await call.ended.wait()
        self._outcome(call)

    def _begin(self, call: SimulatedCall, end: Endpoint, size: int, kind: str, handle: Callable[[], None]) -> None:
        def arrive() -> None:
            if kind:
                self._wire.arrivals["request", end.peer_id] += 1
                self._wire.questions[kind] += 1
            end.post(handle)

        if not self._wire.loses(self._peer_id):
            call.transfers.append(self._wire.send(self, end, size, arrive))

    @contextmanager
    def _calling(self, peer: PeerId, timeout_s: float) -> Iterator[tuple[SimulatedCall, Endpoint]]:
        """Make a call to `peer`; yield the call and the peer's endpoint.  A timeout or cancellation is sent to the peer."""
        end = self._wire.end(peer)
        if end is None or self._wire.end(self._peer_id) is not self:
            raise Unreachable(f"{peer} is gone")
        call = SimulatedCall(self._peer_id, peer)
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

    def _outcome(self, call: SimulatedCall) -> bytes:
        if call.error is not None:
            raise call.error
        return call.answer

    # -- tasks of the other end, which serve a call of ours -----------------------------------------------------------

    async def _answer(self, call: SimulatedCall, end: Endpoint, kind: str, data: bytes) -> None:
        end.served[call] = None
        try:
            answer = await end.handlers.on_request(call.caller, kind, data)
        except Refused as refusal:
            reason = refusal
            self._reply(call, end, 0, lambda: call.fail(Refused(str(reason)[:300])))
        else:
            assert len(answer) <= MAX_REQUEST_BYTES
            self._reply(call, end, len(answer), lambda: call.finish(answer))
        finally:
            end.served.pop(call, None)

    async def _receive(self, call: SimulatedCall, end: Endpoint, header: bytes, data: memoryview, spare: bool) -> None:
        end.served[call] = None
        try:
            landing = await end.handlers.open_push(call.caller, header, len(data))
            if landing is None:
                self._reply(call, end, 0, lambda: call.fail(Refused("not wanted")))
                return
            assert len(landing.buffer) == len(data)
            if not call.broken:  # the sender kept sending while the handler read the header
                transfer = self._wire.send(self, end, len(data), call.delivered.set, delay_s=0.0, spare=spare)
                transfer.on_slice = landing.on_bytes
                call.transfers.append(transfer)
            with trio.move_on_after(HALF_OPEN_S + len(data) / SLOWEST_BYTES_PER_S):
                await call.delivered.wait()
            if call.broken or not call.delivered.is_set():
                await end.handlers.finish_push(call.caller, header, None)
                return
            landing.buffer[:] = data
            landing.complete()
            self._wire.arrivals["push", end.peer_id] += 1
            try:
                await end.handlers.finish_push(call.caller, header, landing)
            except Offence:
                self._reply(call, end, 0, lambda: call.fail(Refused("the receiver could not use it")))
            else:
                self._reply(call, end, 0, lambda: call.finish(b""))
        finally:
            end.served.pop(call, None)

    def _reply(self, call: SimulatedCall, end: Endpoint, size: int, arrived: Callable[[], None]) -> None:
        if not self._wire.loses(end.peer_id) and self._wire.end(self.peer_id) is self:
            call.transfers.append(self._wire.send(end, self, size, arrived))
