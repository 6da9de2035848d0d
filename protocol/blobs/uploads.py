"""Uploads: chunks are pushed to the peers that asked for them, in turns between peers, a few at a time.

A chunk that is pushed alone arrives sooner than one among many, and its receiver then serves it to others.  So few pushes
run at a time, enough to fill the line: one more when they are quick, one less when they are slow.  A push keeps its place
until it is answered.  On a long way, it keeps its place only until its data has left us, since the line would be idle
otherwise.

The queue is short, for the same reason: a peer that would wait for more than about `QUEUE_S` is told that we are busy.  It
then asks other peers, which may have the chunk by then.  A peer that was turned away is remembered, and has its turn before
peers that ask later.  Members go before strangers, and chunks that somebody waits for before spare ones, which are
copies for later; spare chunks for members and chunks for strangers take turns.

A peer that accepts none of its pushes delays only its own chunks.  After a while, its pushes no longer count towards the
limit, nor its chunks towards the queue.  Its later pushes do not count until it has accepted one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from math import inf

import trio

from protocol.blobs.blob import ChunkHeader
from protocol.transport.interface import Members, Network, NetworkError
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

FEWEST, FIRST, MOST = 4, 4, 8
"""Fewest, first and most pushes at a time."""
QUICK_S, SLOW_S = 1.0, 4.0
PUSHES_TO_ONE = 2
MOST_WITH_STALLED = 24
MOST_ON_A_WAY, MOST_ON_WAYS = 64, 128
MOST_ON_A_WAY_BYTES, MOST_ON_WAYS_BYTES = 8 << 20, 32 << 20
"""Most sent and unanswered pushes, and their bytes, for one peer and for all peers, when one more on a long way begins."""
STALLED_S, STALLED_TIMES = 5.0, 4.0
"""A push is stalled if it takes longer than this, and also longer than this many times the usual time of a push."""
QUEUE_S = 1.0
LEAST_QUEUE, MOST_QUEUE = 4, 64
REMEMBERED_S = 2.0
MAX_REMEMBERED = 256
LEAST_TIMEOUT_S, SLOWEST_BYTES_PER_S = 60.0, 64 << 10
MEMORY = 0.3

Chunk = tuple[Hash, int]


@dataclass
class _Push:
    """A push under way.  begun: start time.  size: bytes of data, 0 while they are read.  sent: True if all have left us."""

    begun: float
    size: int = 0
    sent: bool = False


class Uploads:
    """Queues of all peers; `run` serves them.

    read: returns the bytes of a chunk, and True if a round may wait for them; None if the chunk is no longer here.
    on_fed: called for each chunk that a peer received.
    up_bytes: bytes of chunks sent since the start.
    """

    def __init__(
        self,
        network: Network,
        members: Members,
        read: Callable[[Hash, int], Awaitable[tuple[bytes, bool] | None]],
        on_fed: Callable[[PeerId, Hash, int], None],
    ) -> None:
        self._network, self._members, self._read, self._on_fed = network, members, read, on_fed
        self._queues: dict[PeerId, deque[Chunk]] = {}
        self._spare: set[tuple[PeerId, Chunk]] = set()
        """Queued chunks for which nobody waits; they are behind all other chunks of their peer."""
        self._under_way: dict[PeerId, dict[Chunk, _Push]] = {}
        self._turned_away: dict[PeerId, float] = {}
        """Peers that were told that we are busy, in order of their first request, with the time of their last request."""
        self._stalling: dict[PeerId, None] = {}
        """Peers that did not accept the last push."""
        self._at_once, self._push_s = FIRST, 0.0
        self._wake = trio.Event()
        self.up_bytes = 0

    def want(self, peer: PeerId, name: Hash, chunk: int, *, spare: bool = False) -> bool:
        """Queue a chunk for a peer; return False if we are busy.  spare: True if nobody waits for the chunk."""
        queue, wanted = self._queues.get(peer, deque()), (name, chunk)
        if wanted in queue and not spare and (peer, wanted) in self._spare:
            queue.remove(wanted)  # somebody waits for it now
        elif wanted in queue or wanted in self._under_way.get(peer, {}):
            return True
        elif not self._has_room(peer, self._urgency(peer, spare=spare)):
            return False
        if spare:
            self._spare.add((peer, wanted))
            queue.append(wanted)
        else:
            self._spare.discard((peer, wanted))
            self._turned_away.pop(peer, None)
            queue.insert(sum((peer, each) not in self._spare for each in queue), wanted)
        self._queues[peer] = queue
        self._wake.set()
        return True

    def _urgency(self, peer: PeerId, *, spare: bool) -> int:
        """Return the urgency of a chunk; a lower number goes first.

        A spare chunk for a member and a chunk for which a stranger waits have the same: neither must copies for members stop
        newcomers, nor newcomers the copies.
        """
        return spare + (not self._members.has_member(peer))

    def _urgency_of(self, peer: PeerId, wanted: Chunk) -> int:
        return self._urgency(peer, spare=(peer, wanted) in self._spare)

    def forget(self, peer: PeerId) -> None:
        """Forget a peer that is gone: nothing more is sent to it."""
        self._spare -= {(peer, wanted) for wanted in self._queues.pop(peer, ())}
        self._turned_away.pop(peer, None)

    def _has_room(self, peer: PeerId, urgency: int) -> bool:
        """Return True if one more chunk for this peer fits in the queue; peers turned away earlier have precedence.

        Less urgent chunks in the queue do not count.
        """
        if self._stalls(peer):
            return peer not in self._queues and peer not in self._under_way
        now, member = trio.current_time(), self._members.has_member(peer)
        self._turned_away = {other: at for other, at in self._turned_away.items() if now - at < REMEMBERED_S}
        before = 0
        for other in self._turned_away:
            if other == peer:
                break
            before += self._members.has_member(other) or not member
        if self._is_slow(peer) and len(self._queues.get(peer, ())) >= LEAST_QUEUE:
            return False
        queued = sum(
            self._urgency_of(other, wanted) <= urgency
            for other, queue in self._queues.items()
            if not self._stalls(other) and not self._is_slow(other)
            for wanted in queue
        )
        room = LEAST_QUEUE if not self._push_s else int(self._at_once * QUEUE_S / self._push_s)
        if queued + before < min(max(room, LEAST_QUEUE), MOST_QUEUE):
            return True
        is_spare = urgency != self._urgency(peer, spare=False)
        if not is_spare and (peer in self._turned_away or len(self._turned_away) < MAX_REMEMBERED):
            self._turned_away[peer] = now
        return False

    def _stalls(self, peer: PeerId) -> bool:
        """Return True if the peer does not accept its pushes."""
        return peer in self._stalling or self._waits_s(peer) >= max(STALLED_S, STALLED_TIMES * self._push_s)

    def _is_slow(self, peer: PeerId) -> bool:
        """Return True if the peer answers so late that its chunks take no other peer's place in the queue."""
        return self._waits_s(peer) >= max(QUEUE_S, STALLED_TIMES * self._push_s)

    def _waits_s(self, peer: PeerId) -> float:
        """Return the seconds for which the oldest push to the peer has been under way; less than 0 if there is none."""
        return trio.current_time() - min((push.begun for push in self._of(peer)), default=inf)

    # -- sending ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the queues until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                while (peer := self._next()) is not None:
                    queue = self._queues.pop(peer)
                    chunk = queue.popleft()
                    self._spare.discard((peer, chunk))
                    if queue:
                        self._queues[peer] = queue  # the peer's next turn comes after all other peers
                    self._under_way.setdefault(peer, {})[chunk] = push = _Push(trio.current_time())
                    nursery.start_soon(self._push, peer, chunk, push)
                self._wake = trio.Event()
                with trio.move_on_after(STALLED_S):
                    await self._wake.wait()

    def _next(self) -> PeerId | None:
        """Return the peer whose turn it is; None if nobody may be served now."""
        under_way = sum(map(self._places, self._under_way))
        moving = sum(self._leaving(peer) for peer in self._under_way if not self._stalls(peer))
        if under_way >= MOST_WITH_STALLED or moving >= self._at_once:
            return None
        fits = sum(map(len, self._under_way.values())) < MOST_WITH_STALLED
        sent = [push for peer in self._under_way for push in self._sent(peer)]
        fits_on_ways = len(sent) < MOST_ON_WAYS and sum(push.size for push in sent) < MOST_ON_WAYS_BYTES
        free = [peer for peer in self._queues if self._may_push(peer, fits, fits_on_ways)]
        return min(free, key=lambda peer: self._urgency_of(peer, self._queues[peer][0]), default=None)

    def _may_push(self, peer: PeerId, fits: bool, fits_on_ways: bool) -> bool:
        """Return True if the limits for one peer allow one more push to this peer.

        fits: True if one more push of any kind fits.  fits_on_ways: True if one more fits beyond the pushes of all peers
        that were sent and not answered.
        """
        if not self._of(peer):
            return True
        if self._stalls(peer) or self._leaving(peer) >= PUSHES_TO_ONE:
            return False
        sent = self._sent(peer)
        fits_on_way = len(sent) < MOST_ON_A_WAY and sum(push.size for push in sent) < MOST_ON_A_WAY_BYTES
        return (fits and len(self._of(peer)) < PUSHES_TO_ONE) or (fits_on_ways and fits_on_way)

    def _places(self, peer: PeerId) -> int:
        """Return the number of places that a peer takes; all its sent and unanswered pushes together take one."""
        return min(self._leaving(peer) + bool(self._sent(peer)), PUSHES_TO_ONE)

    def _of(self, peer: PeerId) -> Collection[_Push]:
        return self._under_way.get(peer, {}).values()

    def _leaving(self, peer: PeerId) -> int:
        """Return the number of pushes to a peer that have not left us completely."""
        return sum(not push.sent for push in self._of(peer))

    def _sent(self, peer: PeerId) -> list[_Push]:
        """Return the pushes to a peer that have left us completely and are not answered yet."""
        return [push for push in self._of(peer) if push.sent]

    async def _push(self, peer: PeerId, wanted: Chunk, push: _Push) -> None:
        name, chunk = wanted

        def on_sent() -> None:
            if not push.sent:
                push.sent = True
                self._took(trio.current_time() - push.begun)
                self._wake.set()

        try:
            found = await self._read(name, chunk)
            if found is not None:
                data, is_urgent = found
                push.size = len(data)
                header = ChunkHeader(blob=name, chunk=chunk).encode()
                timeout_s = LEAST_TIMEOUT_S + len(data) / SLOWEST_BYTES_PER_S
                await self._network.push(
                    peer, header, memoryview(data), timeout_s=timeout_s, spare=not is_urgent, on_sent=on_sent
                )
                on_sent()
                self._stalling.pop(peer, None)
                self.up_bytes += len(data)
                self._on_fed(peer, name, chunk)
        except NetworkError:
            # the peer has got the chunk from another peer, or will ask again
            if trio.current_time() - push.begun > STALLED_S and len(self._stalling) < MAX_REMEMBERED:
                self._stalling[peer] = None
        finally:
            del self._under_way[peer][wanted]
            if not self._under_way[peer]:
                del self._under_way[peer]
            self._wake.set()

    def _took(self, seconds: float) -> None:
        self._push_s += (MEMORY if self._push_s else 1.0) * (max(seconds, 1e-3) - self._push_s)
        if seconds < QUICK_S:
            self._at_once = min(self._at_once + 1, MOST)
        elif seconds > SLOW_S:
            self._at_once = max(self._at_once - 1, FEWEST)
