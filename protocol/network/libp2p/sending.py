"""The sending end of bulk links: pushes to one peer, over one socket or, when its round-trip time is long, several.

A socket carries its pushes one after the other; the next ones start while the answers to those before are still on
their way.  Decides how many sockets a peer gets, and which of them takes a push.  Sockets stay open for the next round,
until the peer disconnects.

What is not urgent has sockets of its own, which give way: while there is anything urgent to send, to whomever, they send a
frame now and then, so that nobody takes them for dead.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from math import inf

import trio

from protocol.network.interface import Refused, Unreachable
from protocol.network.libp2p.link import FRAME_BYTES, FRAME_OVERHEAD_BYTES, FrameKind, Link, LinkBroken
from protocol.network.libp2p.rate_limit import RateLimit, Turn
from protocol.network.libp2p.rates import pace
from protocol.wire.identity import PeerId

MAX_LANES = 4
LONG_WAY_S = 0.010
"""From this round-trip time on, one socket may not fill the link: it waits for its window, and for retransmissions."""
LANE_PER_RTT_S = 0.040
NEAR_BYTES, FAR_BYTES = 0, 16 << 20
"""No push starts while more than this is sent and not answered.  On a short way, data waiting in buffers gains nothing."""

WAY_S = 0.5
"""While something urgent is sent, each socket that gives way sends a frame so often."""

Dial = Callable[[PeerId], Awaitable[Link]]
"""Opens a link to a peer.  Raises `LinkBroken` or `OSError` when it cannot."""


def lanes_for(rtt_s: float) -> int:
    """How many sockets a peer at this round-trip time gets: 1 near by, 2 from 10 ms, one more for each 40 ms, 4 at most."""
    return 1 if rtt_s < LONG_WAY_S else min(MAX_LANES, 2 + int(rtt_s / LANE_PER_RTT_S))


def rtt_of(link: Link) -> float:
    """The round-trip time now, queues on the way included (s); 0 where the kernel does not tell."""
    state = link.state
    return state.rtt_s if state is not None else 0.0


class _Push:
    """One push under way.  over: set when it has ended, or was refused.  outcome: its error, None for success."""

    def __init__(self, header: bytes, data: memoryview) -> None:
        self.header, self.data = header, data
        self.number, self.sent = -1, 0
        self.over = trio.Event()
        self.outcome: Exception | None = None

    def end(self, outcome: Exception | None) -> None:
        self.outcome = outcome
        self.over.set()


class Sending:
    """Our sockets to all peers.  first: those that these give way to.  up_bytes: of data, since the start."""

    def __init__(self, dial: Dial, limit: RateLimit, first: Sending | None = None) -> None:
        self.dial, self.limit, self._first = dial, limit, first
        self.up_bytes = 0
        self._rested = trio.Event()
        self._rested.set()
        self._idle = True
        self._offered = inf
        self._line = 0.0
        self._lanes: dict[PeerId, list[Lane]] = {}

    async def push(self, nursery: trio.Nursery, peer: PeerId, header: bytes, data: memoryview) -> None:
        """Push `data` to `peer`.  Raises `Refused` or `Unreachable`.  Cancelling it half-way breaks its socket."""
        push = _Push(header, data)
        await self._choose(nursery, peer).carry(push)
        if push.outcome is not None:
            raise push.outcome

    def share_out(self, line_bytes_per_s: float | None = None) -> None:
        """Share our line out equally to the peers with pushes under way, and the share of a peer to its sockets.

        line_bytes_per_s: the measured rate of the line; 0 when it is not known.
        """
        if line_bytes_per_s is not None:
            self._line = line_bytes_per_s
        busy = [[lane.link for lane in lanes if lane.link is not None and lane.busy] for lanes in self._lanes.values()]
        peers = [links for links in busy if links]
        each = pace(self._line, len(peers))
        self._offered = each * len(peers) if peers else inf
        for links in peers:
            for link in links:
                link.pace(each / len(links))

    def offered(self) -> float:
        """Bytes a second that our sockets were allowed since the last call; 0 if there was ever nothing to send."""
        always, self._idle = not self._idle, not any(lane.busy for lane in self._all())
        return self._offered if always and not self._idle else 0.0

    def turned(self) -> None:
        """A socket has become busy or idle."""
        busy = any(lane.busy for lane in self._all())
        self._idle = self._idle or not busy
        if not busy:
            self._rested.set()
        elif self._rested.is_set():
            self._rested = trio.Event()
        if self._line:
            self.share_out()

    async def give_way(self) -> bool:
        """Wait while others have something urgent to send, but not for long; whether they still have."""
        if self._first is None or self._first._rested.is_set():
            return False
        with trio.move_on_after(WAY_S) as wait:
            await self._first._rested.wait()
        return wait.cancelled_caught

    async def pay(self, size: int, has_waited: bool) -> None:
        """Keep to the limit with a frame of `size`.  has_waited: it has given way for as long as it should."""
        gives_way = self._first is not None and not has_waited
        await self.limit.pay(size + FRAME_OVERHEAD_BYTES, Turn.SPARE if gives_way else Turn.PUSH)

    def _all(self) -> Iterator[Lane]:
        return (lane for lanes in self._lanes.values() for lane in lanes)

    def links(self) -> list[Link]:
        """All open links."""
        return [lane.link for lanes in self._lanes.values() for lane in lanes if lane.link is not None]

    def disconnected(self, peer: PeerId) -> None:
        """End the sockets to a peer, and the pushes on them."""
        for lane in self._lanes.pop(peer, []):
            lane.scope.cancel()

    def _choose(self, nursery: trio.Nursery, peer: PeerId) -> Lane:
        """An idle socket, else a new one if the round-trip time is long, else the one with the least to send."""
        lanes = self._lanes.setdefault(peer, [])
        best = min(lanes, key=lambda lane: lane.backlog, default=None)
        if best is None or (best.backlog and len(lanes) < lanes_for(max(lane.rtt_s for lane in lanes))):
            best = Lane(self, peer)
            lanes.append(best)
            nursery.start_soon(best.run)
        return best


class Lane:
    """One socket to a peer, opened when there is something to send.  rtt_s: when it was opened."""

    def __init__(self, sending: Sending, peer: PeerId) -> None:
        self.scope = trio.CancelScope()
        self.link: Link | None = None
        self.rtt_s = 0.0
        self._sending, self._peer = sending, peer
        self._waiting: deque[_Push] = deque()
        self._wake = trio.Event()
        self._current: _Push | None = None
        self._unanswered: dict[int, _Push] = {}
        self._answered = trio.Event()
        self._next = 0

    @property
    def backlog(self) -> int:
        """Bytes that wait or are being sent."""
        current = [self._current] if self._current is not None else []
        return sum(len(push.data) - push.sent for push in (*current, *self._waiting))

    @property
    def busy(self) -> bool:
        """Whether a push waits, is being sent, or is not answered."""
        return bool(self._current or self._waiting or self._unanswered)

    async def carry(self, push: _Push) -> None:
        """Send a push and wait for its end."""
        rested = not self.busy
        self._waiting.append(push)
        self._wake.set()
        if rested:
            self._sending.turned()
        try:
            await push.over.wait()
        except trio.Cancelled:
            if push in self._waiting:
                self._waiting.remove(push)
            elif self.link is not None:
                self.link.abort("the answer did not come in time")  # and nothing reads its data any more
            raise

    async def run(self) -> None:
        """Send pushes until its scope is cancelled; then every push ends."""
        try:
            with self.scope:
                while True:
                    await self._something_waits()
                    try:
                        link = await self._sending.dial(self._peer)
                    except (LinkBroken, OSError) as error:
                        self._lose(self._waiting, f"no bulk connection to {self._peer}: {error}")
                        continue
                    await self._use(link)
        finally:
            self._lose(self._waiting, f"{self._peer} disconnected")

    async def _use(self, link: Link) -> None:
        """Send until the link breaks."""
        self.link, self.rtt_s = link, rtt_of(link)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_answers, link, nursery.cancel_scope)
                try:
                    while True:
                        await self._something_waits()
                        if self._under_way() > (NEAR_BYTES if rtt_of(link) < LONG_WAY_S else FAR_BYTES):
                            self._answered = trio.Event()
                            await self._answered.wait()
                            continue  # what waited may have been given up meanwhile
                        self._current = self._waiting.popleft()
                        await self._send(link, self._current)
                        self._current = None
                except LinkBroken:
                    nursery.cancel_scope.cancel()
        finally:
            link.close()
            self.link = self._current = None
            lost = deque(self._unanswered.values())
            self._unanswered.clear()
            self._lose(lost, f"the bulk connection to {self._peer} broke: {link.why}")

    async def _something_waits(self) -> None:
        while not self._waiting:
            self._wake = trio.Event()
            await self._wake.wait()

    def _under_way(self) -> int:
        return sum(len(push.data) for push in self._unanswered.values())

    async def _send(self, link: Link, push: _Push) -> None:
        """All of it, or less once it was refused."""
        limit = self._sending.limit
        push.number, self._next = self._next, self._next + 1
        self._unanswered[push.number] = push
        link.put(FrameKind.OPEN, push.number, struct.pack(">Q", len(push.data)) + push.header)
        while push.sent < len(push.data) and not push.over.is_set():
            has_waited = await self._sending.give_way()
            piece = push.data[push.sent : push.sent + limit.frame(FRAME_BYTES, sign_of_life=has_waited)]
            await self._sending.pay(len(piece), has_waited)
            link.put(FrameKind.DATA, push.sent, piece)
            await link.flush()
            push.sent += len(piece)
            self._sending.up_bytes += len(piece)
        if push.sent < len(push.data):
            link.put(FrameKind.ABANDON, push.number, b"")
        await link.flush()

    async def _read_answers(self, link: Link, scope: trio.CancelScope) -> None:
        try:
            while True:
                kind, number, plain = await link.receive_small()
                push = self._unanswered.pop(number, None)
                if not self.busy:
                    self._sending.turned()
                if kind is not FrameKind.ANSWER or not plain or push is None:
                    raise LinkBroken("an answer to nothing")
                self._answered.set()
                push.end(None if plain[0] == 1 else Refused(plain[1:301].decode(errors="replace")))
        except LinkBroken as error:
            link.abort(str(error))
            scope.cancel()

    @staticmethod
    def _lose(pushes: deque[_Push], why: str) -> None:
        while pushes:
            pushes.popleft().end(Unreachable(why))
