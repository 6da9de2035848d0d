"""The bytes of other peers' batches: how they come here, and how they go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from protocol.events import Notice
from protocol.network.session import Session
from protocol.rollouts.batch import Batch
from protocol.rollouts.happenings import Fetched
from protocol.rollouts.pool import Pool
from protocol.state.disk import StoreFailed
from protocol.tasks.library import Library
from protocol.versions.weight_versions import Watching
from protocol.wire.hashes import Hash

RETRY_S = 1.0
"""After a failure of the trainer process or the disk."""


class Fetching:
    """Of one peer.  within_s: for one batch.  told: is told what came of it.

    unwanted: bytes to be removed, as soon as nobody reads them.
    """

    def __init__(
        self,
        session: Session,
        guard: Watching,
        library: Library,
        pool: Pool,
        within_s: float,
        told: Callable[[Fetched], object],
    ) -> None:
        self._session, self._guard, self._library, self._pool = session, guard, library, pool
        self._within_s, self._told = within_s, told
        self._under_way: dict[trio.CancelScope, Batch] = {}
        self.unwanted: deque[Hash] = deque()
        self._trouble = ""

    async def fetch(self, batch: Batch) -> None:
        """The bytes of a batch, if they are to be had in time."""
        here: bool | None = None
        scope = trio.CancelScope()
        self._under_way[scope] = batch
        with self._guard.watch(batch.author, "batch of rollouts"), scope:
            try:
                body = batch.body
                here = await self._library.fetch(batch.root, body.size, body.version, (batch.author,), self._within_s)
                self._trouble = ""
            except StoreFailed as error:
                self._warn(f"rollouts cannot be kept: {error}")
        del self._under_way[scope]
        if here is None and not scope.cancelled_caught:
            await trio.sleep(RETRY_S)
        self._told(Fetched(batch.author, batch.root, here))
        if here is None:
            self.unwanted.append(batch.root)  # what came of it, unless it is being fetched again

    def _warn(self, trouble: str) -> None:
        """Once, however many batches strangers state: a disk that failed for one fails for the next."""
        if trouble != self._trouble:
            self._session.emit(Notice("warning", trouble))
        self._trouble = trouble

    def end_useless(self) -> None:
        """End the fetches of batches that are too old by now, or decided: their places are those of others."""
        for scope, batch in self._under_way.items():
            if not self._pool.lacks(batch):
                scope.cancel()

    async def remove_unwanted(self) -> None:
        """Remove what can be removed now."""
        for _ in range(len(self.unwanted)):
            root = self.unwanted.popleft()
            if not await self._library.remove(root):
                self.unwanted.append(root)
