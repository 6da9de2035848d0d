"""How often others may make us look at our own state again: each time that ours was right, not again for twice as long."""

from __future__ import annotations

FIRST_DISTANCE = 16
MAX_DISTANCE = 4096
"""Rounds."""


class SecondThoughts:
    """Counts in rounds of our chain."""

    def __init__(self) -> None:
        self._next, self._distance = 0, FIRST_DISTANCE

    def are_due(self, rounds: int) -> bool:
        """Whether to look again, should others stand on another state."""
        return rounds >= self._next

    def had(self, rounds: int, *, ours_was_right: bool) -> None:
        """We looked after `rounds` rounds: not again on this tip."""
        if ours_was_right:
            self._next = rounds + self._distance
            self._distance = min(self._distance * 2, MAX_DISTANCE)
        else:
            self._next, self._distance = rounds + 1, FIRST_DISTANCE
