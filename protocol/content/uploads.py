"""Pushing chunks to those that asked for them: in turns between peers, a few at a time.

A chunk that is under way alone arrives sooner than one among many, and whoever has it serves it on; so few pushes go at a
time, enough to fill the line.  Members go before strangers.  What a peer asks for beyond its queue is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from protocol.content.messages import MAX_WANTED, ChunkHeader
from protocol.content.shelf import Held
from protocol.network.interface import Members, Network, NetworkError
from protocol.offload import Offload
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

PUSHES_AT_ONCE = 8
PUSHES_TO_ONE = 2
MAX_QUEUED = 4 * MAX_WANTED
MAX_PEERS = 256
PUSH_TIMEOUT_S = 60.0


class Uploads:
    """Queues of all peers; `run` serves them.  on_fed: told of each chunk that arrived somewhere.

    up_bytes: of chunks, since the start.
    """

    def __init__(
        self, network: Network, members: Members, offload: Offload, on_fed: Callable[[PeerId, Hash, int], None]
    ) -> None:
        self._network, self._members, self._offload, self._on_fed = network, members, offload, on_fed
        self._queues: dict[PeerId, deque[tuple[Hash, int, Held]]] = {}
        self._under_way: dict[PeerId, int] = {}
        self._wake = trio.Event()
        self.up_bytes = 0

    def want(self, peer: PeerId, name: Hash, chunk: int, held: Held) -> bool:
        """Queue a chunk for a peer; False when its queue is full."""
        queue = self._queues.get(peer)
        if queue is None and len(self._queues) >= MAX_PEERS:
            return False
        if queue is None:
            queue = self._queues[peer] = deque()
        if len(queue) >= MAX_QUEUED:
            return False
        if not any((name, chunk) == waiting[:2] for waiting in queue):
            queue.append((name, chunk, held))
            self._wake.set()
        return True

    def forget(self, peer: PeerId) -> None:
        """It is gone: nothing more is sent to it."""
        self._queues.pop(peer, None)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                while (peer := self._next()) is not None:
                    queue = self._queues.pop(peer)
                    name, chunk, held = queue.popleft()
                    if queue:
                        self._queues[peer] = queue  # to the end of the turn
                    self._under_way[peer] = self._under_way.get(peer, 0) + 1
                    nursery.start_soon(self._push, peer, name, chunk, held)
                self._wake = trio.Event()
                await self._wake.wait()

    def _next(self) -> PeerId | None:
        """Whose turn it is; None when nobody may be served now."""
        if sum(self._under_way.values()) >= PUSHES_AT_ONCE:
            return None
        free = [peer for peer in self._queues if self._under_way.get(peer, 0) < PUSHES_TO_ONE]
        return next((peer for peer in free if self._members.has_member(peer)), next(iter(free), None))

    async def _push(self, peer: PeerId, name: Hash, chunk: int, held: Held) -> None:
        try:
            data = await self._offload(held.read, chunk)
            if data is not None:
                header = ChunkHeader(blob=name, chunk=chunk).encode()
                spare = not held.is_urgent
                await self._network.push(peer, header, memoryview(data), timeout_s=PUSH_TIMEOUT_S, spare=spare)
                self.up_bytes += len(data)
                self._on_fed(peer, name, chunk)
        except NetworkError:
            pass  # it has got the chunk elsewhere, or asks again
        finally:
            left = self._under_way[peer] - 1
            if left:
                self._under_way[peer] = left
            else:
                del self._under_way[peer]
            self._wake.set()
