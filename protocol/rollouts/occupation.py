"""What a rollout peer or a validator shows of its work: that it computes, or the one reason why not."""

from __future__ import annotations

from protocol.membership.activity import Activity
from protocol.wire.presence import Phase, Role, WhyIdle

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
