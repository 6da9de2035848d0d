"""Sums of the inbound connections that were closed, as events: the first at once, then at most one a minute."""

from __future__ import annotations

import math
from collections import Counter

from protocol.events import StrangersClosed
from protocol.network.libp2p.inbound_policy import CloseReason

EVENT_EVERY_S = 60.0
MAX_ADDRESSES = 256
"""Addresses that are counted one by one between two events."""


class CloseSummary:
    """Counts closed connections between two events; told the time (s, monotonic)."""

    def __init__(self) -> None:
        self._reasons: Counter[CloseReason] = Counter()
        self._addresses: Counter[str] = Counter()
        self._last_event_at = -math.inf

    def count(self, address: str, reason: CloseReason) -> None:
        """Count a closed connection; one that its own peer has replaced does not count."""
        if reason is CloseReason.SURPLUS:
            return
        self._reasons[reason] += 1
        if address in self._addresses or len(self._addresses) < MAX_ADDRESSES:
            self._addresses[address] += 1

    @property
    def due_at(self) -> float:
        """When the next event is due; infinite while there is nothing to report."""
        return self._last_event_at + EVENT_EVERY_S if self._reasons else math.inf

    def take(self, now: float) -> StrangersClosed | None:
        """The event that is due by now, after which counting starts again; None when none is."""
        if self.due_at > now:
            return None
        (busiest, _), *_ = self._addresses.most_common(1)
        event = StrangersClosed(self._reasons[CloseReason.SILENT], self._reasons[CloseReason.CROWDED], busiest)
        self._reasons.clear()
        self._addresses.clear()
        self._last_event_at = now
        return event
