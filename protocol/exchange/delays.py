"""How long each member kept us waiting in an exchange, though it was never silent for so long that it was lost."""

from __future__ import annotations

from collections.abc import Collection

from protocol.wire.identity import PeerId

LONGEST_S = 1.0
"""What counts between two looks: where we slept in between, nobody else is to blame for it."""
SPREAD = 0.5
"""Of the time that most took since the exchange began: others may take so much more, for no two lines are equally fast.  It
is nothing where exchanges are short beside the work, and half an exchange where they are long.  Clearly more than the
difference that the shares of chunks do not make up for (`protocol.exchange.assignment.ALIKE`)."""


class Due:
    """When what the others owe is due: `SPREAD` of the time since the exchange began after most of it came.

    begun: trio time.
    """

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._took_s: float | None = None

    def has_come(self, most_is_here: bool, now: float) -> bool:
        """Whether it is due.  most_is_here: at this moment; more may be owed later than before."""
        if not most_is_here:
            self._took_s = None
        elif self._took_s is None:
            self._took_s = now - self._begun
        return self._took_s is not None and now - self._begun >= (1 + SPREAD) * self._took_s


class Delays:
    """seconds: of each member that delayed anything.  Several chunks that wait at a time count once.  `now` is trio time.

    all_s: the seconds in which any of them did.
    """

    def __init__(self, now: float) -> None:
        self.seconds: dict[PeerId, float] = {}
        self.all_s = 0.0
        self._looked_at = now

    def note(self, delaying: Collection[PeerId], now: float) -> None:
        """Since the last look these members delayed something."""
        passed, self._looked_at = min(now - self._looked_at, LONGEST_S), now
        self.all_s += passed if delaying else 0.0
        for peer in delaying:
            self.seconds[peer] = self.seconds.get(peer, 0.0) + passed
