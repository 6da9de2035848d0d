"""Random choices for one problem: the same on every computer and under every version of Python."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Stream of random choices that follows only from its name and number (BLAKE2b in counter mode)."""

    def __init__(self, name: str, index: int) -> None:
        self._key = f"{name}/{index}".encode()
        self._drawn = 0

    def below(self, limit: int) -> int:
        """Draw a number from 0 to `limit` - 1; `limit` is below 2^32, so the bias against uniform is below 2^-32."""
        assert 0 < limit < 1 << 32
        self._drawn += 1
        block = hashlib.blake2b(self._key, digest_size=8, salt=self._drawn.to_bytes(8, "big")).digest()
        return int.from_bytes(block, "big") % limit

    def between(self, low: int, high: int) -> int:
        """Draw a number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def one_of(self, choices: Sequence[T]) -> T:
        """Draw one of these."""
        return choices[self.below(len(choices))]

    def text(self, alphabet: str, length: int) -> str:
        """Draw `length` letters of the alphabet, with repetition."""
        return "".join(self.one_of(alphabet) for _ in range(length))
