"""The links of the simulated network: access links that flows share.

Every peer has one link up and one down.  Small messages go first, like control traffic, and cost their own time only.
Larger messages wait in a queue of their flow (one for each other peer), and the flows of a link take turns, a slice each.
Spare messages go when nothing else waits.  A slice that has left one peer's link up travels, then queues for the other's
link down.

Everything runs on one agenda in one task, without chance, so that the same calls give the same times.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from protocol.transport.interface import Handlers, NetworkError, Unreachable
from protocol.wire.identity import PeerId

SMALL_BYTES = 4096
TURN_S = 0.05
"""Longest turn of a flow on a link (s)."""
LEAST_SLICE = 1024

Action = Callable[[], None]


class Agenda:
    """A queue of actions by due time; actions due at one time run in the order in which they were added."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Action]] = []
        self._serial = 0
        self._nap = trio.CancelScope()

    def put(self, delay_s: float, action: Action) -> None:
        """Run `action` after `delay_s`."""
        at = trio.lowlevel.current_clock().current_time() + delay_s
        self._serial += 1
        heapq.heappush(self._due, (at, self._serial, action))
        if at < self._nap.deadline:
            self._nap.deadline = at

    @property
    def next_at(self) -> float:
        """The time when the next action is due; infinite if there is none."""
        return self._due[0][0] if self._due else math.inf

    def run_due(self) -> None:
        """Run the actions that are due by now."""
        clock = trio.lowlevel.current_clock()
        while self._due and self._due[0][0] <= clock.current_time():
            heapq.heappop(self._due)[2]()

    async def run(self) -> None:
        """Run the actions until cancelled."""
        while True:
            self.run_due()
            with trio.CancelScope(deadline=self.next_at) as self._nap:
                await trio.sleep_forever()


@dataclass
class Access:
    """The access link of a peer, in both directions."""

    up: Pipe
    down: Pipe


class Pipe:
    """One direction of an access link.  It is never idle while data waits, and serves flows round-robin."""

    def __init__(self, agenda: Agenda, bytes_per_s: float) -> None:
        self._agenda = agenda
        self.bytes_per_s = bytes_per_s
        self._flows: dict[object, deque[tuple[int, SimulatedTransfer, Action]]] = {}
        self._busy = self._stopped = False

    def slice_bytes(self) -> int:
        """Return the most bytes that one flow sends in its turn."""
        return max(LEAST_SLICE, int(self.bytes_per_s * TURN_S))

    def put(self, transfer: SimulatedTransfer, size: int, through: Action) -> None:
        """Queue a slice of `size` bytes; `through` is called when it has passed."""
        self._flows.setdefault((transfer.flow, transfer.spare), deque()).append((size, transfer, through))
        self._next()

    def stop(self) -> None:
        """Let no more data in, as the owner is stopped.  Data under way still arrives."""
        self._stopped = True

    def go_on(self) -> None:
        """End a stop."""
        self._stopped = False
        self._next()

    def _next(self) -> None:
        while self._flows and not self._busy and not self._stopped:
            flow = next((flow for flow, waiting in self._flows.items() if not waiting[0][1].spare), next(iter(self._flows)))
            slices = self._flows.pop(flow)
            size, transfer, through = slices.popleft()
            if slices:
                self._flows[flow] = slices  # to the end of the queue
            if not transfer.abandoned:
                self._busy = True
                self._agenda.put(size / self.bytes_per_s, partial(self._done, through))

    def _done(self, through: Action) -> None:
        self._busy = False
        through()
        self._next()


class SimulatedTransfer:
    """A transfer of `size` bytes between two access links, in slices that each take `delay_s` from one to the other."""

    def __init__(
        self,
        agenda: Agenda,
        flow: tuple[object, object],
        size: int,
        delay_s: float,
        arrived: Action,
        *,
        spare: bool = False,
    ) -> None:
        self.flow, self.spare, self._size = flow, spare, size
        self.abandoned = False
        self.on_slice: Callable[[], None] = lambda: None
        """Callback for each slice that has arrived."""
        self._agenda, self._delay_s, self._arrived = agenda, delay_s, arrived
        self._left = 0

    def begin(self, sender: Access, receiver: Access) -> None:
        """Queue all slices on the sender's link up."""
        step = min(sender.up.slice_bytes(), receiver.down.slice_bytes())
        sizes = [min(step, self._size - at) for at in range(0, self._size, step)]
        self._left = len(sizes)
        for size in sizes:
            sender.up.put(self, size, partial(self._travel, receiver, size))

    def abandon(self) -> None:
        """Give up, for the sender: slices that have not left yet take no more time of the links."""
        self.abandoned = True

    def _travel(self, receiver: Access, size: int) -> None:
        self._agenda.put(self._delay_s, partial(receiver.down.put, self, size, partial(self._through, size)))

    def _through(self, size: int) -> None:
        self._left -= 1
        self.on_slice()
        if not self._left and not self.abandoned:
            self._arrived()


# ------------------------------------------------------------------------------------------------------------------------
# One peer's end of the simulated network, as the wire uses it, and the calls between two ends.


class SimulatedCall:
    """A question or a push under way.  It belongs to its caller; the receiver serves it.

    delivered: set when a push's data has arrived, or never will (`broken`).
    """

    def __init__(self, caller: PeerId, receiver: PeerId) -> None:
        self.caller, self.receiver = caller, receiver
        self.ended, self.delivered = trio.Event(), trio.Event()
        self.broken = False
        self.answer = b""
        self.error: NetworkError | None = None
        self.transfers: list[SimulatedTransfer] = []

    def finish(self, answer: bytes) -> None:
        """End the call with an answer that has arrived."""
        self.answer = answer
        self.ended.set()

    def fail(self, error: NetworkError) -> None:
        """End the call with an error, unless it has ended already."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()

    def break_off(self) -> None:
        """Tell the receiver that no more data comes."""
        if not self.delivered.is_set():
            self.broken = True
            self.delivered.set()

    def abandon(self) -> None:
        """Abandon all transfers: slices that have not left yet take no more time of the links."""
        for transfer in self.transfers:
            transfer.abandon()


class Endpoint:
    """A peer's links, its inbox, and its calls.

    `handlers` are set before it joins the wire, which then sets `access`.  up_bytes, down_bytes: payload since the start.
    """

    access: Access
    handlers: Handlers

    def __init__(self, peer_id: PeerId) -> None:
        self._peer_id = peer_id
        self.up_bytes = self.down_bytes = 0
        self.calls: dict[SimulatedCall, None] = {}
        """Calls of this peer to others."""
        self.served: dict[SimulatedCall, None] = {}
        """Calls of others that this peer handles."""
        self._post, self._inbox = trio.open_memory_channel[Callable[[], object]](math.inf)
        self._nursery: trio.Nursery | None = None

    @property
    def peer_id(self) -> PeerId:
        """The ID of this peer."""
        return self._peer_id

    async def run(self) -> None:
        """Handle arrivals from the inbox until cancelled."""
        async with trio.open_nursery() as self._nursery:
            async for arrival in self._inbox:
                arrival()

    def spawn(self, function: Callable[..., object], *arguments: object) -> None:
        """Start a task of this peer."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *arguments)  # type: ignore[arg-type]

    def post(self, arrival: Callable[[], object]) -> None:
        """Put an arrival into the inbox; it is handled when this peer runs."""
        self._post.send_nowait(arrival)

    def crash(self) -> None:
        """Abandon all calls of a peer that has crashed."""
        for call in [*self.calls, *self.served]:
            call.abandon()

    def lose(self, peer: PeerId) -> None:
        """Fail the calls to another peer, which has crashed, and break off the calls from it."""
        for call in [call for call in self.calls if call.receiver == peer]:
            call.fail(Unreachable(f"the connection to {peer} broke"))
        for call in [call for call in self.served if call.caller == peer]:
            call.break_off()
