"""The trainer process does one thing at a time: computing, generating, verifying, or taking a version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from protocol.membership.activity import Activity
from protocol.wire.hashes import Hash
from protocol.wire.presence import Phase, Role, WhyIdle

# ------------------------------------------------------------------------------------------------------------------------
# What a rollout peer or a validator shows of its work: that it computes, or the one reason why not.


LASTS_S = 2.0
"""A gap between two batches that is shorter is not shown as idle."""
WORK = {Role.ROLLOUT: Phase.GENERATING, Role.VALIDATOR: Phase.VERIFYING}


class Occupation:
    """Of one peer.  Shown while it is not busy with a round's state, and beneath a pause."""

    def __init__(self, activity: Activity, role: Role) -> None:
        self._activity, self._phase = activity, WORK[role]
        self._why, self._detail = WhyIdle.WAITING_FOR_WEIGHTS, "the trainer has no weights yet"
        self._idle_since: float | None = None

    def show(self) -> None:
        """It is this peer's turn to work, as far as the round goes."""
        self._activity.show(self._phase, self._why, self._detail)

    def works(self) -> None:
        """It computes from now on."""
        self._idle_since = None
        self._change(WhyIdle.BUSY, "")

    def idles(self, why: WhyIdle, detail: str, now: float) -> None:
        """It does not compute, for this reason; told again and again while that is so."""
        self._idle_since = now if self._idle_since is None else self._idle_since
        if self._why is not WhyIdle.BUSY or now - self._idle_since >= LASTS_S:
            self._change(why, detail)

    def _change(self, why: WhyIdle, detail: str) -> None:
        if (why, detail) == (self._why, self._detail):
            return
        self._why, self._detail = why, detail
        if self._activity.beneath is self._phase:
            self.show()


# ------------------------------------------------------------------------------------------------------------------------


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
