"""The trainer process does one thing at a time: computing, generating, verifying, or taking a version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from protocol.wire.hashes import Hash

REST_S = 60.0
"""A peer that rests for longer gives up the batch that it was about: else it missed the versions that come meanwhile."""


class Lent:
    """The turn, lent for work on a batch.  `about` says of which version, once that is known."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self.scope = scope
        self.mark: tuple[int, Hash] | None = None

    def about(self, version: int, tip: Hash) -> None:
        """It is about a batch of this version."""
        self.mark = version, tip


class Turn:
    """Of one trainer process; whoever asked first is next.  Call `look` now and then."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._tips: Mapping[int, Hash] = {}
        self._rests_since: float | None = None
        self._lent: Lent | None = None

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Within, nobody else asks the process for anything that takes it whole."""
        async with self._lock:
            yield

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Lent]:
        """As `taken`, for work on a batch.  It is left early, and the rest of it not done, when the batch is of no use any
        more, or when the peer rests for longer than `REST_S`."""
        async with self._lock:
            with trio.CancelScope() as scope:
                self._lent = Lent(scope)
                try:
                    yield self._lent
                finally:
                    self._lent = None

    def moved(self, tips: Mapping[int, Hash]) -> None:
        """Rollouts may be of these versions now."""
        self._tips = tips

    def rest(self, on: bool) -> None:
        """The peer rests from now on, or does not."""
        self._rests_since = trio.current_time() if on else None

    def look(self) -> None:
        """Give up what is of no use any more."""
        lent, since = self._lent, self._rests_since
        if lent is None or lent.mark is None:
            return
        (version, tip), rests_long = lent.mark, since is not None and trio.current_time() - since >= REST_S
        if rests_long or self._tips.get(version) != tip:
            lent.scope.cancel()
