"""Schedule of the corpus's windows: a pure function from seed, round, lane and position to a window.

Every round has `lanes` disjoint streams of `windows_per_round` windows.  All streams of all rounds are laid end to end
and mapped through a keyed permutation of the corpus's windows, a new one for each epoch.  So no two lanes read the same
window within an epoch, a crashed peer shifts no other's windows, and every peer can compute another peer's windows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

FEISTEL_ROUNDS = 4
_MASK64 = 2**64 - 1


@dataclass(frozen=True)
class Permutation:
    """Keyed bijection of range(size): a small Feistel network, applied until the value lies in the range."""

    size: int
    keys: tuple[int, ...]
    half_bits: int

    @classmethod
    def of(cls, seed: int, epoch: int, size: int) -> Permutation:
        """Return the permutation of `size` windows for an epoch."""
        assert size >= 1 and epoch >= 0
        material = hashlib.blake2b(
            (seed & _MASK64).to_bytes(8, "big") + epoch.to_bytes(8, "big"), digest_size=8 * FEISTEL_ROUNDS
        ).digest()
        keys = tuple(int.from_bytes(material[i : i + 8], "big") for i in range(0, len(material), 8))
        return cls(size, keys, max(1, ((size - 1).bit_length() + 1) // 2))

    def __call__(self, index: int) -> int:
        assert 0 <= index < self.size
        value = self._once(index)
        while value >= self.size:  # ends: the cycle of a bijection leads back to `index` at the latest
            value = self._once(value)
        return value

    def _once(self, value: int) -> int:
        mask = (1 << self.half_bits) - 1
        left, right = value >> self.half_bits, value & mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return left << self.half_bits | right


@dataclass(frozen=True)
class LaneSchedule:
    """Assignment of windows to lanes.  windows: training windows in the corpus.  lanes: streams in a round."""

    seed: int
    windows: int
    lanes: int
    windows_per_round: int

    def window(self, round_number: int, lane: int, position: int) -> int:
        """Return the window at `position` (from 0) of a lane's stream in a round."""
        assert 0 <= lane < self.lanes and 0 <= position < self.windows_per_round and round_number >= 0
        order = (round_number * self.lanes + lane) * self.windows_per_round + position
        epoch, index = divmod(order, self.windows)
        return Permutation.of(self.seed, epoch, self.windows)(index)


def _mix(value: int) -> int:
    """Mix 64 bits (the finaliser of splitmix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31
