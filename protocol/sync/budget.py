"""What looking at claims may cost, for all claimants together.

Peer IDs cost nothing, so a limit for each claimant is no limit.  Answers and signature checks are paid from one purse that
fills up with time.  Electors and members of our chain may empty it; strangers only as far as the half that is theirs.  What
led to records or state that we take over is paid back, so an honest swarm is followed as fast as the line allows.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.network.interface import NetworkError

BYTES_PER_MINUTE = 32 << 20
CHECKS_PER_MINUTE = 6000
"""Signature checks: about half a second of a processor."""


class OverBudget(NetworkError):
    """Claims have cost enough for now."""


@dataclass
class _Purse:
    full: float
    left: float

    def fill(self, seconds: float) -> None:
        self.left = min(self.full, self.left + self.full * seconds / 60)


class Budget:
    """`now` is trio time."""

    def __init__(self, now: float) -> None:
        self._filled = now
        self._bytes = _Purse(BYTES_PER_MINUTE, BYTES_PER_MINUTE)
        self._checks = _Purse(CHECKS_PER_MINUTE, CHECKS_PER_MINUTE)

    def allows(self, now: float, *, known: bool) -> bool:
        """Whether to begin, or to go on.  known: the claimant is an elector or a member of our chain."""
        seconds, self._filled = now - self._filled, now
        purses = (self._bytes, self._checks)
        for purse in purses:
            purse.fill(seconds)
        return all(purse.left > (0 if known else purse.full / 2) for purse in purses)

    def pay(self, size_bytes: int, checks: int) -> None:
        """For answers of `size_bytes`, and so many signature checks."""
        self._bytes.left -= size_bytes
        self._checks.left -= checks

    def repay(self, size_bytes: int, checks: int) -> None:
        """What was paid for led somewhere."""
        self._bytes.left = min(self._bytes.full, self._bytes.left + size_bytes)
        self._checks.left = min(self._checks.full, self._checks.left + checks)
