"""How far our chain is settled: records that we followed as they were made, long ago and many rounds back.

A settled record yields to a full sibling only, or to a person; never to who is heard now.  Kept in memory: a peer that was
away begins anew.
"""

from __future__ import annotations

from collections import deque

from protocol.state.base import RoundSettings


class Settled:
    """`now` is trio time.

    What we ratified is settled for good: we can say nothing else on that tip, and going back to it would help nobody.
    """

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._followed: deque[tuple[int, float]] = deque()
        """Rounds after records that we followed, with the times; those that are not settled yet."""
        self._rounds = self._bound = 0

    def follow(self, rounds: int, now: float) -> None:
        """We were there when the record after which there are `rounds` rounds was made."""
        self._followed.append((rounds, now))
        while self._followed:
            then, at = self._followed[0]
            if rounds - then < self._settings.settle_rounds or now - at < self._settings.settle_s:
                break
            self._rounds = then
            self._followed.popleft()

    def lose(self, rounds: int) -> None:
        """Our chain changed after `rounds` rounds: we did not follow what comes after as it was made."""
        self._rounds, self._bound = min(self._rounds, rounds), min(self._bound, rounds)
        self._followed = deque((then, at) for then, at in self._followed if then <= rounds)

    def begin_anew(self) -> None:
        """We were away: what we followed before was not all there was to follow."""
        self._followed.clear()

    def bind(self, rounds: int) -> None:
        """We have ratified the record after which there are `rounds` rounds."""
        self._bound = max(self._bound, rounds)

    @property
    def rounds(self) -> int:
        """Records below this one are settled, if they were followed."""
        return max(self._rounds, self._bound)
