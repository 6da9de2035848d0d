"""The memory for questions that are being read or answered, and for answers that are being sent: a budget over all peers.

Strangers together get half of it, so that members always have the other half.  A peer may hold as much as is left free
after it: one peer gets half of the room, two get a third each, and a few more find a share of what is left.  What is
small is not counted: everybody can greet and catch up while the budget is used up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import trio

from protocol.events import Dropped, Event
from protocol.network.interface import Members, Unreachable
from protocol.wire.identity import PeerId

BUDGET_BYTES = 64 << 20
"""Of questions, or answers, as they travel."""
SMALL_BYTES = 4 << 10
"""What is at most this large is not counted."""
EVENT_EVERY_S = 10.0


class MemoryBudget:
    """Grants room for questions, or for answers.

    members: tells members from strangers.  emit: gets a `Dropped` for refused questions, at most one in `EVENT_EVERY_S`; its
    `times` counts those of all peers.
    """

    def __init__(self, members: Members, emit: Callable[[Event], None], total_bytes: int = BUDGET_BYTES) -> None:
        self._members, self._emit, self._total = members, emit, total_bytes
        self._held: Counter[PeerId] = Counter()
        self._released = trio.Event()
        self._refused = 0
        self._last_event_at = -math.inf

    @property
    def held_bytes(self) -> int:
        """Of all peers."""
        return self._held.total()

    @contextmanager
    def hold(self, peer: PeerId, size: int) -> Iterator[None]:
        """Room for `size` bytes, for the length of the block.  Raises `Unreachable` when there is none."""
        if size <= SMALL_BYTES:
            yield
            return
        if not self.has_room(peer, size):
            self._refuse(peer)
            raise Unreachable("no room for another question")
        self._held[peer] += size
        try:
            yield
        finally:
            self._held[peer] -= size
            if not self._held[peer]:
                del self._held[peer]
            self._released.set()

    def has_room(self, peer: PeerId, size: int) -> bool:
        """Whether `hold` would find room now."""
        return size <= SMALL_BYTES or self._held[peer] + size <= self._free(peer)

    async def room(self, peer: PeerId, size: int) -> AbstractContextManager[None]:
        """`hold`, when there is room: it may take until the caller's deadline."""
        while not self.has_room(peer, size):
            if self._released.is_set():
                self._released = trio.Event()
            await self._released.wait()
        return self.hold(peer, size)

    def _free(self, peer: PeerId) -> int:
        """Bytes that are left for members, or for strangers, whichever `peer` is."""
        free = self._total - self.held_bytes
        if self._members.has_member(peer):
            return free
        of_strangers = sum(size for holder, size in self._held.items() if not self._members.has_member(holder))
        return min(free, self._total // 2 - of_strangers)

    def _refuse(self, peer: PeerId) -> None:
        self._refused += 1
        now = trio.current_time()
        if now - self._last_event_at < EVENT_EVERY_S:
            return
        self._emit(Dropped(peer, "question", "too many large questions of all peers at once", self._refused))
        self._refused, self._last_event_at = 0, now
