"""The wire of the simulated network: all peers and the links between them.

All chance comes from the generator that is passed in, and no code iterates over a set, so the same seed gives the same run.
Gossip reaches every peer within reach, directly or through one other peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import trio

from protocol.transport.simulated.links import SMALL_BYTES, Access, Agenda, Endpoint, Pipe, SimulatedTransfer
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Reachability between peers of the simulated network: partitions, cut links, and peers that were forgotten.


class Topology:
    """The partitions and cuts between peers.  Without any, every peer reaches every other."""

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
        """Return True if messages pass from `sender` directly to `receiver`."""
        return self.linked(sender, receiver) and (sender, receiver) not in self._cut

    def hops(self, sender: PeerId, receiver: PeerId, others: Iterable[PeerId]) -> int:
        """Return the hops of gossip from one linked peer to another: 1, 2 through one of `others`, 0 if there is no way."""
        if not self._cut or self.carries(sender, receiver):
            return 1
        return 2 if any(self.carries(sender, other) and self.carries(other, receiver) for other in others) else 0


# ------------------------------------------------------------------------------------------------------------------------
# The conditions on the links of the simulated network.


@dataclass
class Weather:
    """Latency, bandwidth and loss.  latency_s: one way, `jitter_s` more at most.  bytes_per_s: each peer's up and down rate.

    gossip_loss, gossip_copies, gossip_late: chance that a gossip message is lost, arrives twice, or arrives up to `late_s`
    late (and so after later ones), at one peer.  request_loss: chance that a question, an answer or a push is lost.
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


class MemoryWire:
    """The peers that are up, the links between them, and the messages under way.  `nursery` runs the agenda."""

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
        """Callback for the weather's effect on a message, with the peer concerned."""
        self.on_gossip: Callable[[PeerId, bytes], None] = lambda receiver, data: None
        """Callback for gossip that a peer is about to handle."""
        self._ends: dict[PeerId, Endpoint] = {}
        self._topology = Topology()
        nursery.start_soon(self.agenda.run)

    @property
    def messages(self) -> int:
        """The number of messages of all kinds that arrived."""
        return sum(self.arrivals.values())

    # -- events in the world ------------------------------------------------------------------------------------------

    def join(self, end: Endpoint) -> None:
        """Bring up a peer and connect it to every peer that it can reach."""
        peer = end.peer_id
        assert peer not in self._ends, "one process an identity"
        self._ends[peer] = end
        rate = self.weather.bytes_per_s
        end.access = Access(Pipe(self.agenda, rate), Pipe(self.agenda, rate))
        for other in self.reachable(peer):
            self._tell_connected(self._ends[other], peer)

    def crash(self, peer: PeerId) -> None:
        """Remove a peer from one moment to the next; others see the connection break."""
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
        """Stop a peer's link up, as when its process is stopped: nothing more leaves it."""
        if peer in self._ends:
            self._ends[peer].access.up.stop()

    def thaw(self, peer: PeerId) -> None:
        """Let a frozen peer continue."""
        if peer in self._ends:
            self._ends[peer].access.up.go_on()

    # -- used by the ends ---------------------------------------------------------------------------------------------

    def end(self, peer: PeerId) -> Endpoint | None:
        """Return the end of a peer; None if it is not up."""
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
        """Return the time that the next message is under way (s)."""
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
        """Send one message of `size` bytes.  `arrived` is called, unless the link no longer carries it at that time.

        delay_s: the time under way, without the time that the links take for its bytes; None for the weather's.
        spare: the message leaves the sender only when nothing else waits there.
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
        """Decide by chance if a question, an answer or a push of `sender` gets lost.  Return True if it does."""
        return self._strikes(self.weather.request_loss, "lost request", sender)

    def spread(self, sender: Endpoint, data: bytes) -> None:
        """Gossip to every peer within reach."""
        weather = self.weather
        sender.up_bytes += len(data)
        for receiver in self.reachable(sender.peer_id):
            hops = self._topology.hops(sender.peer_id, receiver, self._ends)
            for _ in range(2 if self._strikes(weather.gossip_copies, "doubled gossip", receiver) else 1):
                if hops and not self._strikes(weather.gossip_loss, "lost gossip", receiver):
                    late = self._strikes(weather.gossip_late, "late gossip", receiver)
                    delay_s = hops * self.delay_s() + (self.random.random() * weather.late_s if late else 0.0)
                    arrive = partial(self._bring_gossip, sender.peer_id, self._ends[receiver], data)
                    self.agenda.put(delay_s + len(data) / weather.bytes_per_s, arrive)

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
