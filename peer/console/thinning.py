"""Progress as often as a reader wants it: at most one event in so many seconds, and never a stale one.

Pure: the caller says what time it is.
"""

from __future__ import annotations

import math

from peer.control.client import Stamped
from protocol.events.events import PROGRESS, PhaseChanged, subject


class Thinner:
    """At most one progress event in `every_s`; the newest of those held back is `due` later, unless the phase
    ends, or what it is about."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next = -math.inf
        self._held: Stamped | None = None

    def take(self, stamped: Stamped, now: float) -> Stamped | None:
        """The event if it may be shown now, None if it has to wait or is replaced later."""
        held = self._held
        if held is not None and (isinstance(stamped.event, PhaseChanged) or subject(stamped.event) == subject(held.event)):
            self._held = None
        if not isinstance(stamped.event, PROGRESS):
            return stamped
        self._held = stamped
        return self.release(now) if now >= self._next else None

    @property
    def due(self) -> float:
        """When to call `release`; infinity while nothing waits."""
        return math.inf if self._held is None else self._next

    def release(self, now: float) -> Stamped | None:
        """What was held back."""
        held, self._held = self._held, None
        self._next = now + self._every_s
        return held
