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
    """When what the others owe is due: `SPREAD` later than most of us were, or would have been, done with giving it.

    Most are held up where there is room for a part of it only.  Then the time in which they gave tells how long the whole
    would have taken them.  begun: trio time.
    """

    def __init__(self, begun: float) -> None:
        self._begun = self._looked_at = begun
        self._gave_s = 0.0
        self._most_gave = False
        self.at = begun
        """When it is due; the beginning while most still give."""

    def has_come(self, most_gave: bool, share: float, now: float) -> bool:
        """Whether it is due.  most_gave: all that they can now; share: that is so much of the whole, until now."""
        if not self._most_gave:
            self._gave_s += now - self._looked_at
        self._most_gave, self._looked_at = most_gave, now
        self.at = self._begun + ((1 + SPREAD) * self._gave_s / share if most_gave else 0.0)
        return most_gave and now >= self.at


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
