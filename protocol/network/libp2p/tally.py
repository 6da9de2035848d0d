"""What is told of connections that were closed at the door: at once when it begins, then a sum once a minute at most."""

from __future__ import annotations

import math
from collections import Counter

from protocol.events import StrangersClosed
from protocol.network.libp2p.visitors import Why

TELL_EVERY_S = 60.0
MAX_ADDRESSES = 256
"""Counted one by one; more than that nobody reads."""


class Tally:
    """Told of each closed connection, and the time."""

    def __init__(self) -> None:
        self._whys: Counter[Why] = Counter()
        self._addresses: Counter[str] = Counter()
        self._told_at = -math.inf

    def count(self, address: str, why: Why) -> None:
        if why is Why.SURPLUS:
            return
        self._whys[why] += 1
        if address in self._addresses or len(self._addresses) < MAX_ADDRESSES:
            self._addresses[address] += 1

    @property
    def due_at(self) -> float:
        """When there is something to tell."""
        return self._told_at + TELL_EVERY_S if self._whys else math.inf

    def take(self, now: float) -> StrangersClosed | None:
        """What there is to tell by now."""
        if self.due_at > now:
            return None
        (busiest, _), *_ = self._addresses.most_common(1)
        event = StrangersClosed(self._whys[Why.SILENT], self._whys[Why.CROWDED], busiest)
        self._whys.clear()
        self._addresses.clear()
        self._told_at = now
        return event
