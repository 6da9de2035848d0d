"""The wire of the simulated network: all peers and the links between them.

All random numbers come from the generator passed in, and no code iterates over a set, so the same seed gives the same run.
Gossip is sent to every peer that the sender can reach directly or through one other peer.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import trio

from protocol.transport.interface import Handlers, NetworkError, Unreachable
from protocol.transport.task_group import TaskGroup
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# The links of the simulated network: access links that flows share.
#
# Every peer has one uplink and one downlink.  Small messages, like control traffic, skip the queues and take only their own
# sending time.  Larger messages wait in the queue of their flow (one for each other peer), and the flows of a link take
# turns, with one slice a turn.  Spare messages are sent only while no other message waits.  A slice leaves the sender's
# uplink, arrives after the latency, and then waits for the receiver's downlink.
#
# Everything runs on one agenda in one task, without random numbers, so that the same calls give the same times.


SMALL_BYTES = 4096
TURN_S = 0.05
"""Duration of a flow's turn on a link (s), which sets the size of a slice."""
LEAST_SLICE = 1024
GOSSIP_S = 0.001
"""Resolution (s) of the arrival times of gossip.  Arrivals at one time share a pass of trio's loop, which costs more than an
arrival."""

Action = Callable[[], None]


class Agenda:
    """A queue of actions by due time; actions due at the same time run in the order in which they were added."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Action]] = []
        self._serial = 0
        self._nap = trio.CancelScope()

    def put(self, delay_s: float, action: Action) -> None:
        """Run `action` after `delay_s`."""
        self.put_at(trio.lowlevel.current_clock().current_time() + delay_s, action)

    def put_at(self, at: float, action: Action) -> None:
        """Run `action` at this time of trio's clock."""
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
        """Queue a slice of `size` bytes; `through` is called once the slice has passed."""
        self._flows.setdefault((transfer.flow, transfer.spare), deque()).append((size, transfer, through))
        self._next()

    def stop(self) -> None:
        """Start no further slice, because the owner is stopped.  Slices already started still arrive."""
        self._stopped = True

    def go_on(self) -> None:
        """Start slices again after `stop`."""
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
    """A transfer of `size` bytes between two access links, in slices; each takes `delay_s` from one link to the other."""

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
        """Callback for each slice that arrives."""
        self._agenda, self._delay_s, self._arrived = agenda, delay_s, arrived
        self._left = 0

    def begin(self, sender: Access, receiver: Access) -> None:
        """Queue all slices on the sender's uplink."""
        step = min(sender.up.slice_bytes(), receiver.down.slice_bytes())
        sizes = [min(step, self._size - at) for at in range(0, self._size, step)]
        self._left = len(sizes)
        for size in sizes:
            sender.up.put(self, size, partial(self._travel, receiver, size))

    def abandon(self) -> None:
        """Abandon the transfer for the sender: slices that have not left yet are discarded."""
        self.abandoned = True

    def _travel(self, receiver: Access, size: int) -> None:
        self._agenda.put(self._delay_s, partial(receiver.down.put, self, size, partial(self._through, size)))

    def _through(self, size: int) -> None:
        self._left -= 1
        self.on_slice()
        if not self._left and not self.abandoned:
            self._arrived()


# ------------------------------------------------------------------------------------------------------------------------
# The endpoints of the simulated network, one for each peer, and the calls between two of them.


class SimulatedCall:
    """A question or a push in progress.  It belongs to its caller; the receiver serves it.

    delivered: set when a push's data has arrived, or when it can no longer arrive (then `broken` is true).
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
        """Tell the receiver that no more data will arrive."""
        if not self.delivered.is_set():
            self.broken = True
            self.delivered.set()

    def abandon(self) -> None:
        """Abandon all transfers: slices that have not left yet are discarded."""
        for transfer in self.transfers:
            transfer.abandon()


class Endpoint:
    """A peer's links, its inbox, and its calls.

    Set `handlers` before `MemoryWire.join`, which sets `access`.  up_bytes, down_bytes: payload since the start.
    """

    access: Access
    handlers: Handlers

    def __init__(self, peer_id: PeerId) -> None:
        self._peer_id = peer_id
        self.up_bytes = self.down_bytes = 0
        self.calls: dict[SimulatedCall, None] = {}
        """Calls that this peer makes to other peers."""
        self.served: dict[SimulatedCall, None] = {}
        """Calls of other peers that this peer handles."""
        self._post, self._inbox = trio.open_memory_channel[Callable[[], object]](math.inf)
        self._tasks = TaskGroup()

    @property
    def peer_id(self) -> PeerId:
        """The ID of this peer."""
        return self._peer_id

    async def run(self) -> None:
        """Handle arrivals from the inbox until cancelled."""
        async with self._tasks.open():
            async for arrival in self._inbox:
                arrival()

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task of this peer."""
        self._tasks.start(function, *arguments)

    def post(self, arrival: Callable[[], object]) -> None:
        """Put an arrival into the inbox; `run` handles it."""
        self._post.send_nowait(arrival)

    def crash(self) -> None:
        """Abandon all calls of a peer that has crashed."""
        for call in [*self.calls, *self.served]:
            call.abandon()

    def lose(self, peer: PeerId) -> None:
        """Fail our calls to another peer, which has crashed, and break off that peer's calls to us."""
        for call in [call for call in self.calls if call.receiver == peer]:
            call.fail(Unreachable(f"the connection to {peer} broke"))
        for call in [call for call in self.served if call.caller == peer]:
            call.break_off()


# ------------------------------------------------------------------------------------------------------------------------
# Reachability between peers of the simulated network: partitions, cut links, and pairs separated for good.


class Topology:
    """The partitions and cuts between peers.  Without partitions and cuts, every peer reaches every other peer."""

    def __init__(self) -> None:
        self._side: dict[PeerId, int] = {}
        self._cut: dict[tuple[PeerId, PeerId], None] = {}
        self._forgotten: dict[tuple[PeerId, PeerId], None] = {}

    def partition(self, *sides: Sequence[PeerId]) -> None:
        """Separate the peers of different sides.  A peer that is not named is on the first side."""
        self._side = {peer: number for number, side in enumerate(sides) for peer in side}

    def cut(self, sender: PeerId, receiver: PeerId) -> None:
        """Stop everything from `sender` directly to `receiver`; the other direction still works."""
        self._cut[sender, receiver] = None

    def mend(self) -> None:
        """Remove all cuts."""
        self._cut.clear()

    def forget(self, one: PeerId, other: PeerId) -> None:
        """Separate two peers for good."""
        self._forgotten[one, other] = self._forgotten[other, one] = None

    def linked(self, one: PeerId, other: PeerId) -> bool:
        """Return True if two peers are connected; a cut does not disconnect them."""
        return one != other and self._side.get(one, 0) == self._side.get(other, 0) and (one, other) not in self._forgotten

    def carries(self, sender: PeerId, receiver: PeerId) -> bool:
        """Return True if messages can pass directly from `sender` to `receiver`."""
        return self.linked(sender, receiver) and (sender, receiver) not in self._cut

    def hops(self, sender: PeerId, receiver: PeerId, others: Iterable[PeerId]) -> int:
        """Return the hops of gossip between linked peers: 1 if direct, 2 through one of `others`, 0 if there is no path."""
        if not self._cut or self.carries(sender, receiver):
            return 1
        return 2 if any(self.carries(sender, other) and self.carries(other, receiver) for other in others) else 0


# ------------------------------------------------------------------------------------------------------------------------
# The conditions on the links of the simulated network.


@dataclass
class Weather:
    """Latency, bandwidth and loss.

    latency_s: one-way latency; up to `jitter_s` is added.  bytes_per_s: each peer's rate, up and down.
    gossip_loss, gossip_copies, gossip_late: chance, for each receiver, that a gossip message is lost, arrives twice, or
    arrives up to `late_s` late, possibly after newer messages.  request_loss: chance that a question, an answer or a push is
    lost.
    """

    latency_s: float = 0.02
    jitter_s: float = 0.02
    bytes_per_s: float = 50e6
    gossip_loss: float = 0.0
    gossip_copies: float = 0.0
    gossip_late: float = 0.0
    late_s: float = 3.0
    request_loss: float = 0.0


# ------------------------------------------------------------------------------------------------------------------------
# The peers, and the messages between them.


class MemoryWire:
    """The peers that are up, the links between them, and the messages in transit.  `nursery` runs the agenda."""

    def __init__(
        self, nursery: trio.Nursery, random: Random, weather: Weather | None = None, agenda: Agenda | None = None
    ) -> None:
        self.random = random
        self.weather = weather or Weather()
        self.agenda = agenda or Agenda()
        self.arrivals: Counter[tuple[str, PeerId]] = Counter()
        """Number of arrivals of each kind (gossip, request, push) at each peer."""
        self.questions: Counter[str] = Counter()
        """Number of questions of each kind that arrived."""
        self.on_trouble: Callable[[str, PeerId], None] = lambda trouble, peer: None
        """Callback for each effect of the weather on a message, with the name of the effect and the peer concerned."""
        self.on_gossip: Callable[[PeerId, bytes], None] = lambda receiver, data: None
        """Callback for each gossip message, just before its receiver handles it."""
        self._ends: dict[PeerId, Endpoint] = {}
        self._topology = Topology()
        nursery.start_soon(self.agenda.run)

    @property
    def messages(self) -> int:
        """The number of messages of all kinds that arrived."""
        return sum(self.arrivals.values())

    # -- events in the world ------------------------------------------------------------------------------------------

    def join(self, end: Endpoint) -> None:
        """Start a peer's endpoint and connect it to every peer that it can reach."""
        peer = end.peer_id
        assert peer not in self._ends, "one process an identity"
        self._ends[peer] = end
        rate = self.weather.bytes_per_s
        end.access = Access(Pipe(self.agenda, rate), Pipe(self.agenda, rate))
        for other in self.reachable(peer):
            self._tell_connected(self._ends[other], peer)

    def crash(self, peer: PeerId) -> None:
        """Remove a peer without warning; connected peers see the connection break."""
        end = self._ends.pop(peer, None)
        if end is None:
            return
        end.crash()
        for other in self._ends.values():
            other.lose(peer)
            if self._topology.linked(peer, other.peer_id):
                self._tell_disconnected(other, peer)

    def partition(self, *sides: Sequence[PeerId]) -> None:
        """Separate the peers of different sides.  A peer that is not named is on the first side."""
        before = {peer: self.reachable(peer) for peer in self._ends}
        self._topology.partition(*sides)
        for peer, end in self._ends.items():
            after = self.reachable(peer)
            for other in before[peer]:
                if other not in after:
                    self._tell_disconnected(end, other)
            for other in after:
                if other not in before[peer]:
                    self._tell_connected(end, other)

    def heal(self) -> None:
        """End all partitions and cuts."""
        self._topology.mend()
        self.partition()

    def cut(self, sender: PeerId, receiver: PeerId) -> None:
        """Stop everything from `sender` directly to `receiver`; the other direction still works."""
        self._topology.cut(sender, receiver)

    def freeze(self, peer: PeerId) -> None:
        """Stop a peer's uplink, as if its process were stopped; small messages are still sent."""
        if peer in self._ends:
            self._ends[peer].access.up.stop()

    def thaw(self, peer: PeerId) -> None:
        """Let a frozen peer continue."""
        if peer in self._ends:
            self._ends[peer].access.up.go_on()

    # -- used by endpoints --------------------------------------------------------------------------------------------

    def end(self, peer: PeerId) -> Endpoint | None:
        """Return the endpoint of a peer; None if the peer is not up."""
        return self._ends.get(peer)

    def forget(self, one: PeerId, other: PeerId) -> None:
        """Separate two peers for good."""
        self._topology.forget(one, other)

    def reachable(self, peer: PeerId) -> list[PeerId]:
        """Return the peers to which `peer` is connected."""
        return [other for other in self._ends if self._topology.linked(peer, other)]

    def _tell_connected(self, end: Endpoint, peer: PeerId) -> None:
        end.post(lambda: end.handlers.on_peer_connected(peer))

    def _tell_disconnected(self, end: Endpoint, peer: PeerId) -> None:
        end.post(lambda: end.handlers.on_peer_disconnected(peer))

    def delay_s(self) -> float:
        """Return the latency of the next message (s)."""
        return self.weather.latency_s + self.random.random() * self.weather.jitter_s

    def send(
        self,
        sender: Endpoint,
        receiver: Endpoint,
        size: int,
        arrived: Callable[[], None],
        *,
        delay_s: float | None = None,
        spare: bool = False,
    ) -> SimulatedTransfer:
        """Send one message of `size` bytes.  `arrived` is called on arrival, unless the link carries nothing at that time.

        delay_s: the latency, without the time that the links take for the bytes; None for the latency of `weather`.
        spare: True if the message may leave the sender only while no other message waits there.
        """

        def arrive() -> None:
            if self._ends.get(receiver.peer_id) is receiver and self._topology.carries(sender.peer_id, receiver.peer_id):
                receiver.down_bytes += size
                arrived()

        sender.up_bytes += size
        delay_s = self.delay_s() if delay_s is None else delay_s
        flow = (sender.peer_id, receiver.peer_id)
        transfer = SimulatedTransfer(self.agenda, flow, size, delay_s, arrive, spare=spare)
        if size > SMALL_BYTES:
            transfer.begin(sender.access, receiver.access)
        else:
            own_s = size / sender.access.up.bytes_per_s + size / receiver.access.down.bytes_per_s
            self.agenda.put(delay_s + own_s, lambda: None if transfer.abandoned else arrive())
        return transfer

    def loses(self, sender: PeerId) -> bool:
        """Decide at random if a question, an answer or a push of `sender` is lost.  Return True if it is lost."""
        return self._strikes(self.weather.request_loss, "lost request", sender)

    def spread(self, sender: Endpoint, data: bytes) -> None:
        """Send gossip to every peer that the sender can reach."""
        weather, now = self.weather, trio.lowlevel.current_clock().current_time()
        sender.up_bytes += len(data)
        sending_s = len(data) / weather.bytes_per_s
        for receiver in self.reachable(sender.peer_id):
            hops = self._topology.hops(sender.peer_id, receiver, self._ends)
            for _ in range(2 if self._strikes(weather.gossip_copies, "doubled gossip", receiver) else 1):
                if hops and not self._strikes(weather.gossip_loss, "lost gossip", receiver):
                    late = self._strikes(weather.gossip_late, "late gossip", receiver)
                    delay_s = hops * self.delay_s() + (self.random.random() * weather.late_s if late else 0.0) + sending_s
                    arrive = partial(self._bring_gossip, sender.peer_id, self._ends[receiver], data)
                    self.agenda.put_at(math.ceil((now + delay_s) / GOSSIP_S) * GOSSIP_S, arrive)

    def _strikes(self, chance: float, trouble: str, peer: PeerId) -> bool:
        if chance == 0 or self.random.random() >= chance:
            return False
        self.on_trouble(trouble, peer)
        return True

    def _bring_gossip(self, sender: PeerId, end: Endpoint, data: bytes) -> None:
        if self._ends.get(end.peer_id) is end and self._topology.linked(sender, end.peer_id):
            self.arrivals["gossip", end.peer_id] += 1
            end.down_bytes += len(data)
            end.post(partial(self._handle_gossip, sender, end, data))

    def _handle_gossip(self, sender: PeerId, end: Endpoint, data: bytes) -> None:
        self.on_gossip(end.peer_id, data)
        end.handlers.on_gossip(sender, data)
