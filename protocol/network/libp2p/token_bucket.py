"""Token buckets: so many messages and bytes a second, with some seconds' worth saved up for a burst."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Allowance:
    """Messages and bytes a second; `burst_s` seconds' worth of each is saved up at most."""

    per_s: float
    bytes_per_s: float
    burst_s: float


@dataclass
class TokenBucket:
    """What is left of an allowance, in seconds, for messages and for bytes.  at: the time of the last refill."""

    messages_s: float
    bytes_s: float
    at: float

    def take(self, allowance: Allowance, now: float, messages: float, size: float) -> bool:
        """Use `messages` and `size` bytes of the allowance, if there is enough left; say whether there was.

        A message larger than the whole burst passes when the bucket is full.
        """
        passed, self.at = now - self.at, now
        self.messages_s = min(allowance.burst_s, self.messages_s + passed)
        self.bytes_s = min(allowance.burst_s, self.bytes_s + passed)
        messages_s, bytes_s = messages / allowance.per_s, size / allowance.bytes_per_s
        if self.messages_s < messages_s or self.bytes_s < min(bytes_s, allowance.burst_s):
            return False
        self.messages_s -= messages_s
        self.bytes_s -= bytes_s
        return True

    def holds(self, allowance: Allowance, now: float, messages: float) -> bool:
        """Whether there is enough left for so many messages; uses nothing."""
        self.take(allowance, now, 0, 0)
        return self.messages_s >= messages / allowance.per_s
