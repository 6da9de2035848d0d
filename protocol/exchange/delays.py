"""How long each member kept an owner waiting in an exchange, though it was never silent for so long that it was lost."""

from __future__ import annotations

from collections.abc import Collection

from protocol.wire.identity import PeerId

LONGEST_S = 1.0
"""What counts between two looks: where we slept in between, nobody else is to blame for it."""


class Delays:
    """seconds: of each member that delayed anything.  Several chunks that wait at a time count once.  `now` is trio time."""

    def __init__(self, now: float) -> None:
        self.seconds: dict[PeerId, float] = {}
        self._looked_at = now

    def note(self, delaying: Collection[PeerId], now: float) -> None:
        """Since the last look these members delayed something."""
        passed, self._looked_at = min(now - self._looked_at, LONGEST_S), now
        for peer in delaying:
            self.seconds[peer] = self.seconds.get(peer, 0.0) + passed
