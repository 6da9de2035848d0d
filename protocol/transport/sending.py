"""The sending end of bulk links: pushes to one peer, over one socket or, where that does not fill the line, several.

A socket carries its pushes one after the other; the next ones start while the answers to those before are still on
their way.  Decides which of them takes a push; how many there are, and how fast they may be, says `flows`.  Sockets stay
open for the next round, until the peer disconnects.

What is not urgent has sockets of its own, which give way: while there is anything urgent to send, to whomever, they send
small frames now and then, so that nobody takes them for dead, and so that not all stands still while the urgent data waits
for somebody else's slow line.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from math import inf

import trio

from protocol.short_id import short_id
from protocol.transport.flows import Flows, fair_shares
from protocol.transport.interface import Refused, Unreachable, nothing
from protocol.transport.link import FRAME_BYTES, FRAME_OVERHEAD_BYTES, LONG_WAY_S, FrameKind, Link, LinkBroken, states_of
from protocol.transport.rate_limit import SMALLEST_FRAME_BYTES, RateLimit, Turn
from protocol.wire.identity import PeerId

NEAR_BYTES, FAR_BYTES = 0, 16 << 20
"""No push starts while more than this is sent and not answered.  On a short way, data waiting in buffers gains nothing."""

WAY_S = 0.5
"""While something urgent is sent, each socket that gives way sends a frame so often."""

TRICKLE_SHARE = 0.05
"""Of our line, what these frames may take, all of them together."""

STILL_S = 5.0
"""A socket on which nothing has moved for so long holds up nobody: who is sent something urgent may take none of it."""

Dial = Callable[[PeerId], Awaitable[Link]]
"""Opens a link to a peer.  Raises `LinkBroken` or `OSError` when it cannot."""


def rtt_of(link: Link) -> float:
    """The round-trip time now, queues on the way included (s); 0 where the kernel does not tell."""
    state = link.state
    return state.rtt_s if state is not None else 0.0


class _Push:
    """One push under way.  over: set when it has ended, or was refused.  outcome: its error, None for success."""

    def __init__(self, header: bytes, data: memoryview, on_sent: Callable[[], None]) -> None:
        self.header, self.data, self.on_sent = header, data, on_sent
        self.number, self.sent = -1, 0
        self.lane: Lane | None = None
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
        self._offer = inf
        self._line = 0.0
        self._lanes: dict[PeerId, list[Lane]] = {}
        self._flows: defaultdict[PeerId, Flows] = defaultdict(Flows)

    async def push(
        self,
        nursery: trio.Nursery,
        peer: PeerId,
        header: bytes,
        data: memoryview,
        on_sent: Callable[[], None] = nothing,
    ) -> None:
        """Push `data` to `peer`.  Raises `Refused` or `Unreachable`.  Cancelling it half-way breaks its socket."""
        push = _Push(header, data, on_sent)
        self._choose(nursery, peer).take(push)
        try:
            await push.over.wait()
        except trio.Cancelled:
            if push.lane is not None:
                push.lane.drop(push)
            raise
        if push.outcome is not None:
            raise push.outcome

    def measure(self, offer_bytes_per_s: float, line_bytes_per_s: float, now: float) -> None:
        """Look, each second, at what each peer takes, and share our line out by it.

        offer_bytes_per_s: what there is to share out; infinite when our sockets are not to be paced.  line_bytes_per_s: what
        our line carries; 0 while that is not known.
        """
        self._offer, self._line = offer_bytes_per_s, line_bytes_per_s
        for peer, lanes in self._lanes.items():
            states = states_of(lane.link for lane in lanes if lane.link is not None)
            share = sum(lane.share for lane in lanes if lane.link is not None and lane.busy)
            flows, busy = self._flows[peer], [lane.always_busy() for lane in lanes]
            flows.read(states, share, all(busy[: flows.number]), now)
        self._note_rest()
        self.share_out()

    def share_out(self) -> None:
        """Share our line out to the peers with pushes under way, and the share of a peer to its sockets."""
        busy = {peer: [lane for lane in lanes if lane.link is not None and lane.busy] for peer, lanes in self._lanes.items()}
        peers = {peer: lanes for peer, lanes in busy.items() if lanes}
        shares = fair_shares(self._offer, [self._flows[peer].takes for peer in peers])
        self._offered = sum(shares) if shares else inf
        for (peer, lanes), share in zip(peers.items(), shares, strict=True):
            for lane in lanes:
                lane.allow(share / len(lanes), self._flows[peer].pace(share) / len(lanes))

    def offered(self) -> float:
        """Bytes a second that our sockets were allowed since the last call; 0 if there was ever nothing to send."""
        always, self._idle = not self._idle, not any(lane.busy for lane in self._all())
        return self._offered if always and not self._idle else 0.0

    def turned(self) -> None:
        """A socket has become busy or idle."""
        self._idle = self._idle or not any(lane.busy for lane in self._all())
        self._note_rest()
        if self._offer < inf:
            self.share_out()

    def _note_rest(self) -> None:
        """Whether those that give way to us may go on: nothing of ours moves, also where somebody takes nothing of it."""
        if not any(lane.moves for lane in self._all()):
            self._rested.set()
        elif self._rested.is_set():
            self._rested = trio.Event()

    async def give_way(self) -> bool:
        """Wait while others have something urgent to send, but not for long; whether they still have."""
        if self._first is None or self._first._rested.is_set():
            return False
        with trio.move_on_after(WAY_S) as wait:
            await self._first._rested.wait()
        return wait.cancelled_caught

    def frame(self, has_waited: bool) -> int:
        """The size of the next frame at most.  has_waited: it has given way for as long as it should."""
        if not has_waited:
            return self.limit.frame(FRAME_BYTES)
        sockets = max(1, sum(lane.busy for lane in self._all()))
        trickle = int(self._line * TRICKLE_SHARE * WAY_S / sockets)
        return self.limit.frame(min(FRAME_BYTES, max(SMALLEST_FRAME_BYTES, trickle)))

    async def pay(self, size: int, has_waited: bool) -> None:
        """Keep to the limit with a frame of `size`.  has_waited: it has given way for as long as it should."""
        gives_way = self._first is not None and not has_waited
        await self.limit.pay(size + FRAME_OVERHEAD_BYTES, Turn.SPARE if gives_way else Turn.PUSH)

    def _all(self) -> Iterator[Lane]:
        return (lane for lanes in self._lanes.values() for lane in lanes)

    def links(self) -> list[Link]:
        """All open links."""
        return [lane.link for lane in self._all() if lane.link is not None]

    def busy_links(self) -> list[Link]:
        """Those that have something to send, or wait for an answer."""
        return [lane.link for lane in self._all() if lane.link is not None and lane.busy]

    def disconnected(self, peer: PeerId) -> None:
        """End the sockets to a peer, and the pushes on them."""
        self._flows.pop(peer, None)
        for lane in self._lanes.pop(peer, []):
            lane.scope.cancel()
        self.turned()

    def _choose(self, nursery: trio.Nursery, peer: PeerId) -> Lane:
        """An idle socket, else a new one if there may be more, else the one with the least to send."""
        lanes, number = self._lanes.setdefault(peer, []), self._flows[peer].number
        best = min(lanes[:number], key=lambda lane: lane.backlog, default=None)
        if best is None or (best.backlog and len(lanes) < number):
            best = Lane(self, peer)
            lanes.append(best)
            nursery.start_soon(best.run)
        return best

    def opened(self, peer: PeerId, rtt_s: float) -> None:
        """A socket to this peer is open.  rtt_s: without queues on the way, which the line's own load may make."""
        if peer not in self._lanes:
            return  # it left at the same moment
        self._flows[peer].reached(rtt_s)
        if self._offer < inf:
            self.share_out()

    def instead(self, peer: PeerId, lane: Lane) -> Lane | None:
        """An open socket for the pushes of one that could not be opened, which is given up; None if there is none."""
        lanes = self._lanes.get(peer, [])
        if lane not in lanes:
            return None  # its peer left meanwhile, and may be back
        best = min((other for other in lanes if other.link is not None), key=lambda other: other.backlog, default=None)
        if best is not None:
            lanes.remove(lane)
            self._flows[peer].refused(len(lanes), trio.current_time())
        return best


class Lane:
    """One socket to a peer, opened when there is something to send.  share: bytes a second that it may send."""

    def __init__(self, sending: Sending, peer: PeerId) -> None:
        self.scope = trio.CancelScope()
        self.link: Link | None = None
        self.share = inf
        self._sending, self._peer = sending, peer
        self._was_busy = True
        self._waiting: deque[_Push] = deque()
        self._wake = trio.Event()
        self._current: _Push | None = None
        self._unanswered: dict[int, _Push] = {}
        self._answered = trio.Event()
        self._next, self._moved_at = 0, 0.0

    @property
    def backlog(self) -> int:
        """Bytes that wait or are being sent."""
        current = [self._current] if self._current is not None else []
        return sum(len(push.data) - push.sent for push in (*current, *self._waiting))

    @property
    def busy(self) -> bool:
        """Whether a push waits, is being sent, or is not answered."""
        return bool(self._current or self._waiting or self._unanswered)

    @property
    def moves(self) -> bool:
        """Whether it is busy, and something of it has moved lately."""
        return self.busy and trio.current_time() - self._moved_at < STILL_S

    def always_busy(self) -> bool:
        """Whether it is busy, and was at the last call if there was one."""
        before, self._was_busy = self._was_busy, self.busy
        return before and self._was_busy

    def allow(self, share: float, pace: float) -> None:
        """Its share of our line, and how fast it may send."""
        self.share = share
        if self.link is not None:
            self.link.pace(pace)

    def take(self, push: _Push) -> None:
        """Send a push after those that wait already."""
        rested, push.lane = not self.busy, self
        if rested:
            self._moved_at = trio.current_time()
        self._waiting.append(push)
        self._wake.set()
        if rested:
            self._sending.turned()

    def drop(self, push: _Push) -> None:
        """Read nothing of its data any more."""
        if push in self._waiting:
            self._waiting.remove(push)
            self._sending.turned()
        elif self.link is not None:
            self.link.abort("the answer did not come in time")

    async def run(self) -> None:
        """Send pushes until its scope is cancelled; then every push ends."""
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
            self._lose(lost, f"the bulk connection to {short_id(self._peer)} broke: {link.why}")

    async def _something_waits(self) -> None:
        while not self._waiting:
            self._wake = trio.Event()
            await self._wake.wait()

    def _under_way(self) -> int:
        return sum(len(push.data) for push in self._unanswered.values())

    async def _send(self, link: Link, push: _Push) -> None:
        """All of it, or less once it was refused."""
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
            push.on_sent()  # near by the answer comes at once

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
                self._moved_at = trio.current_time()
                push.end(None if plain[0] == 1 else Refused(plain[1:301].decode(errors="replace")))
        except LinkBroken as error:
            link.abort(str(error))
            scope.cancel()

    def _lose(self, pushes: deque[_Push], why: str) -> None:
        while pushes:
            pushes.popleft().end(Unreachable(why))
        self._sending.turned()
