"""The sending end of bulk links: pushes to a peer over one socket, or over several sockets if one does not fill the line.

A socket carries its pushes one after another; the next push may start before the last one is answered.  This module chooses
a socket for each push; `bulk_flows` decides the number of sockets and their rates.  Sockets stay open for later rounds,
until the peer disconnects.

Pushes that are not urgent (`spare`) have their own sockets, which give way to urgent pushes.  While an urgent push to any
peer has data to send, each of these sockets sends a small frame now and then.  So no peer takes the sockets for dead, and
some data still moves while the urgent pushes wait for another peer's slow line.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from math import inf

import trio

from protocol.short_id import short_id
from protocol.transport.bulk_flows import Flows, fair_shares
from protocol.transport.bulk_link import (
    FRAME_BYTES,
    FRAME_OVERHEAD_BYTES,
    LONG_WAY_S,
    FrameKind,
    Link,
    LinkBroken,
    states_of,
)
from protocol.transport.interface import Refused, Unreachable, nothing
from protocol.transport.rate_limit import SMALLEST_FRAME_BYTES, Priority, RateLimit
from protocol.wire.identity import PeerId

NEAR_BYTES, FAR_BYTES = 0, 16 << 20
"""Unanswered bytes above which no further push starts, for short and for long round trips.  On short round trips, filling
buffers gains nothing."""

WAY_S = 0.5
"""Seconds between two frames of a socket that gives way, while urgent data is sent."""

TRICKLE_SHARE = 0.05
"""Share of our line that all these frames together may take."""

STILL_S = 5.0
"""Seconds without moving data after which other sockets no longer give way to a socket, whose peer may have stalled."""

Dial = Callable[[PeerId], Awaitable[Link]]
"""Function that opens a link to a peer.  It raises `LinkBroken` or `OSError` on failure."""
StartTask = Callable[[Callable[[], Awaitable[None]]], object]
"""Function that starts a task, which outlives the push."""


def rtt_of(link: Link) -> float:
    """Return the present round-trip time, including queues on the path (s); 0 if the kernel does not report it."""
    state = link.state
    return state.rtt_s if state is not None else 0.0


class _OutgoingPush:
    """One push in progress.  over: set once the push has ended or was refused.  outcome: its error, None for success."""

    def __init__(self, header: bytes, data: memoryview, on_sent: Callable[[], None]) -> None:
        self.header, self.data, self.on_sent = header, data, on_sent
        self.number, self.sent = -1, 0
        self.socket: BulkSocket | None = None
        self.over = trio.Event()
        self.outcome: Exception | None = None

    def end(self, outcome: Exception | None) -> None:
        self.outcome = outcome
        self.over.set()


class Sending:
    """Our sockets to all peers.  first: the sockets to which ours give way.  up_bytes: data sent since the start."""

    def __init__(self, dial: Dial, limit: RateLimit, first: Sending | None = None) -> None:
        self.dial, self.limit, self._first = dial, limit, first
        self.up_bytes = 0
        self._rested = trio.Event()
        self._rested.set()
        self._idle = True
        self._offered = inf
        self._offer = inf
        self._line = 0.0
        self._sockets: dict[PeerId, list[BulkSocket]] = {}
        self._flows: defaultdict[PeerId, Flows] = defaultdict(Flows)

    async def push(
        self,
        start: StartTask,
        peer: PeerId,
        header: bytes,
        data: memoryview,
        on_sent: Callable[[], None] = nothing,
    ) -> None:
        """Push `data` to `peer`.  Raises `Refused` or `Unreachable`.  Cancelling a push half-way breaks its socket."""
        push = _OutgoingPush(header, data, on_sent)
        self._choose(start, peer).take(push)
        try:
            await push.over.wait()
        except trio.Cancelled:
            if push.socket is not None:
                push.socket.drop(push)
            raise
        if push.outcome is not None:
            raise push.outcome

    def measure(self, offer_bytes_per_s: float, line_bytes_per_s: float, now: float) -> None:
        """Measure the rate that each peer takes, and share out our line accordingly.  Call this every second.

        offer_bytes_per_s: the rate to share out; infinite if our sockets are not to be paced.  line_bytes_per_s: the rate of
        our line; 0 while unknown.
        """
        self._offer, self._line = offer_bytes_per_s, line_bytes_per_s
        for peer, sockets in self._sockets.items():
            states = states_of(socket.link for socket in sockets if socket.link is not None)
            share = sum(socket.share for socket in sockets if socket.link is not None and socket.busy)
            flows, busy = self._flows[peer], [socket.always_busy() for socket in sockets]
            flows.read(states, share, all(busy[: flows.number]), now)
        self._note_rest()
        self.share_out()

    def share_out(self) -> None:
        """Share out our line among the peers with pushes in progress, and each peer's share among the peer's sockets."""
        busy = {
            peer: [socket for socket in sockets if socket.link is not None and socket.busy]
            for peer, sockets in self._sockets.items()
        }
        peers = {peer: sockets for peer, sockets in busy.items() if sockets}
        shares = fair_shares(self._offer, [self._flows[peer].takes for peer in peers])
        self._offered = sum(shares) if shares else inf
        for (peer, sockets), share in zip(peers.items(), shares, strict=True):
            for socket in sockets:
                socket.allow(share / len(sockets), self._flows[peer].pace(share) / len(sockets))

    def offered(self) -> float:
        """Return the rate (bytes/s) that our sockets are allowed; 0 if all were idle at any time since the last call."""
        always, self._idle = not self._idle, not any(socket.busy for socket in self._all())
        return self._offered if always and not self._idle else 0.0

    def turned(self) -> None:
        """Note that a socket has become busy or idle."""
        self._idle = self._idle or not any(socket.busy for socket in self._all())
        self._note_rest()
        if self._offer < inf:
            self.share_out()

    def _note_rest(self) -> None:
        """Let the sockets that give way to ours continue if ours move no data, even if one is busy with a stalled peer."""
        if not any(socket.moves for socket in self._all()):
            self._rested.set()
        elif self._rested.is_set():
            self._rested = trio.Event()

    async def give_way(self) -> bool:
        """Wait while urgent sockets send, for at most `WAY_S`.  Return True if they are still sending then."""
        if self._first is None or self._first._rested.is_set():
            return False
        with trio.move_on_after(WAY_S) as wait:
            await self._first._rested.wait()
        return wait.cancelled_caught

    def frame(self, has_waited: bool) -> int:
        """Return the largest size of the next frame (bytes).  has_waited: True if its socket has given way for `WAY_S`."""
        if not has_waited:
            return self.limit.frame(FRAME_BYTES)
        sockets = max(1, sum(socket.busy for socket in self._all()))
        trickle = int(self._line * TRICKLE_SHARE * WAY_S / sockets)
        return self.limit.frame(min(FRAME_BYTES, max(SMALLEST_FRAME_BYTES, trickle)))

    async def pay(self, size: int, has_waited: bool) -> None:
        """Wait until the limit allows a frame of `size` bytes.  has_waited: as for `frame`."""
        gives_way = self._first is not None and not has_waited
        await self.limit.pay(size + FRAME_OVERHEAD_BYTES, Priority.SPARE if gives_way else Priority.PUSH)

    def _all(self) -> Iterator[BulkSocket]:
        return (socket for sockets in self._sockets.values() for socket in sockets)

    def links(self) -> list[Link]:
        """Return all open links."""
        return [socket.link for socket in self._all() if socket.link is not None]

    def links_to(self, peer: PeerId) -> list[Link]:
        """Return the open links to a peer."""
        return [socket.link for socket in self._sockets.get(peer, []) if socket.link is not None]

    def busy_links(self) -> list[Link]:
        """Return the open links that have data to send or wait for an answer."""
        return [socket.link for socket in self._all() if socket.link is not None and socket.busy]

    def disconnected(self, peer: PeerId) -> None:
        """End the sockets to a peer, and the pushes on them."""
        self._flows.pop(peer, None)
        for socket in self._sockets.pop(peer, []):
            socket.scope.cancel()
        self.turned()

    def _choose(self, start: StartTask, peer: PeerId) -> BulkSocket:
        """Return an idle socket, else a new one if more are allowed, else the socket with the least data to send."""
        sockets, number = self._sockets.setdefault(peer, []), self._flows[peer].number
        best = min(sockets[:number], key=lambda socket: socket.backlog, default=None)
        if best is None or (best.backlog and len(sockets) < number):
            best = BulkSocket(self, peer)
            sockets.append(best)
            start(best.run)
        return best

    def opened(self, peer: PeerId, rtt_s: float) -> None:
        """Note that a socket to this peer is open.

        rtt_s: round-trip time without queues, because our own load may cause queues.
        """
        if peer not in self._sockets:
            return  # the peer disconnected at the same moment
        self._flows[peer].reached(rtt_s)
        if self._offer < inf:
            self.share_out()

    def instead(self, peer: PeerId, socket: BulkSocket) -> BulkSocket | None:
        """Return an open socket for the pushes of `socket`, which did not open and is removed; None if none is open."""
        sockets = self._sockets.get(peer, [])
        if socket not in sockets:
            return None  # the peer disconnected in the meantime, and may have reconnected
        best = min((other for other in sockets if other.link is not None), key=lambda other: other.backlog, default=None)
        if best is not None:
            sockets.remove(socket)
            self._flows[peer].number = len(sockets)
        return best


class BulkSocket:
    """One socket to a peer, opened when a push waits.  share: the socket's share of our line (bytes a second)."""

    def __init__(self, sending: Sending, peer: PeerId) -> None:
        self.scope = trio.CancelScope()
        self.link: Link | None = None
        self.share = inf
        self._sending, self._peer = sending, peer
        self._was_busy = True
        self._waiting: deque[_OutgoingPush] = deque()
        self._wake = trio.Event()
        self._current: _OutgoingPush | None = None
        self._unanswered: dict[int, _OutgoingPush] = {}
        self._answered = trio.Event()
        self._next, self._moved_at = 0, 0.0

    @property
    def backlog(self) -> int:
        """Bytes that wait to be sent or are being sent."""
        current = [self._current] if self._current is not None else []
        return sum(len(push.data) - push.sent for push in (*current, *self._waiting))

    @property
    def busy(self) -> bool:
        """True while a push waits, is being sent, or is not answered."""
        return bool(self._current or self._waiting or self._unanswered)

    @property
    def moves(self) -> bool:
        """True while the socket is busy and some of its data moved within `STILL_S`."""
        return self.busy and trio.current_time() - self._moved_at < STILL_S

    def always_busy(self) -> bool:
        """Return True if the socket is busy now and was busy at the last call.  The first call looks only at the present."""
        before, self._was_busy = self._was_busy, self.busy
        return before and self._was_busy

    def allow(self, share: float, pace: float) -> None:
        """Set the share of our line, and the pace of sending (bytes a second each)."""
        self.share = share
        if self.link is not None:
            self.link.pace(pace)

    def take(self, push: _OutgoingPush) -> None:
        """Queue a push behind the pushes that already wait."""
        rested, push.socket = not self.busy, self
        if rested:
            self._moved_at = trio.current_time()
        self._waiting.append(push)
        self._wake.set()
        if rested:
            self._sending.turned()

    def drop(self, push: _OutgoingPush) -> None:
        """Stop reading the data of a push: remove it from the queue, or break the socket that is sending it."""
        if push in self._waiting:
            self._waiting.remove(push)
            self._sending.turned()
        elif self.link is not None:
            self.link.abort("the answer did not come in time")

    async def run(self) -> None:
        """Send pushes until `scope` is cancelled; then end every push."""
        try:
            with self.scope:
                while True:
                    await self._something_waits()
                    try:
                        link = await self._sending.dial(self._peer)
                    except (LinkBroken, OSError) as error:
                        if (other := self._sending.instead(self._peer, self)) is not None:
                            while self._waiting:
                                other.take(self._waiting.popleft())
                            return
                        self._lose(self._waiting, f"no bulk connection to {short_id(self._peer)}: {error}")
                        continue
                    await self._use(link)
        finally:
            self._lose(self._waiting, f"{short_id(self._peer)} disconnected")

    async def _use(self, link: Link) -> None:
        """Send until the link breaks."""
        self.link = link
        state = link.state
        self._sending.opened(self._peer, state.least_rtt_s if state is not None else 0.0)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_answers, link, nursery.cancel_scope)
                try:
                    while True:
                        await self._something_waits()
                        if self._under_way() > (NEAR_BYTES if rtt_of(link) < LONG_WAY_S else FAR_BYTES):
                            self._answered = trio.Event()
                            await self._answered.wait()
                            continue  # the waiting push may have been dropped in the meantime
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
            self._lose(lost, f"the bulk connection to {short_id(self._peer)} broke: {link.why}")

    async def _something_waits(self) -> None:
        while not self._waiting:
            self._wake = trio.Event()
            await self._wake.wait()

    def _under_way(self) -> int:
        return sum(len(push.data) for push in self._unanswered.values())

    async def _send(self, link: Link, push: _OutgoingPush) -> None:
        """Send a push completely, or stop if the peer refuses it half-way."""
        push.number, self._next = self._next, self._next + 1
        self._unanswered[push.number] = push
        link.put(FrameKind.OPEN, push.number, struct.pack(">Q", len(push.data)) + push.header)
        while push.sent < len(push.data) and not push.over.is_set():
            has_waited = await self._sending.give_way()
            piece = push.data[push.sent : push.sent + self._sending.frame(has_waited)]
            await self._sending.pay(len(piece), has_waited)
            link.put(FrameKind.DATA, push.sent, piece)
            await link.flush()
            push.sent += len(piece)
            self._moved_at = trio.current_time()
            self._sending.up_bytes += len(piece)
        if push.sent < len(push.data):
            link.put(FrameKind.ABANDON, push.number, b"")
        await link.flush()
        if push.sent == len(push.data) and (state := link.state) is not None and state.is_far:
            push.on_sent()  # if the peer is near, the answer comes at once

    async def _read_answers(self, link: Link, scope: trio.CancelScope) -> None:
        try:
            while True:
                kind, number, plain = await link.receive_small()
                push = self._unanswered.pop(number, None)
                if not self.busy:
                    self._sending.turned()
                if kind is not FrameKind.ANSWER or not plain or push is None:
                    raise LinkBroken("an answer without a push")
                self._answered.set()
                self._moved_at = trio.current_time()
                push.end(None if plain[0] == 1 else Refused(plain[1:301].decode(errors="replace")))
        except LinkBroken as error:
            link.abort(str(error))
            scope.cancel()

    def _lose(self, pushes: deque[_OutgoingPush], why: str) -> None:
        while pushes:
            pushes.popleft().end(Unreachable(why))
        self._sending.turned()
