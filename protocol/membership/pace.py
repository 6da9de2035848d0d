"""How fast this peer trains: the last known rate, kept from round to round, and what follows for the time that is left."""

from __future__ import annotations

from protocol.trainer_link import Progress


class Pace:
    """tokens_per_s: 0 before the first inner step of this life.  tokens_per_step: of one inner step."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self.tokens_per_s = 0.0

    def observe(self, progress: Progress) -> None:
        """Take note of an inner step."""
        self.tokens_per_s = progress.tokens_per_s

    def left_s(self, steps: int) -> float | None:
        """Seconds for so many more inner steps; None while no rate is known."""
        return max(0, steps) * self._tokens_per_step / self.tokens_per_s if self.tokens_per_s > 0 else None
