"""Evidence that cannot be judged yet: it is about a tip that is not in our chain, and may come to be.

Anybody can make up such evidence about keys of its own, so it is bounded; what is forgotten is announced again by its
accusers.  Evidence against peers of our chain goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.consensus.contradictions import Tip
from protocol.wire.hashes import Hash

MAX_POSTPONED = 16
POSTPONED_BYTES = 16 << 20
"""Of all of it together."""


@dataclass(frozen=True)
class _Piece:
    raw: bytes
    tip: Tip
    is_known: bool


class Postponed:
    """Evidence by its name.  The oldest makes room, that against unknown peers first."""

    def __init__(self) -> None:
        self._pieces: dict[bytes, _Piece] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    def __contains__(self, name: object) -> bool:
        return name in self._pieces

    def add(self, name: Hash, raw: bytes, tip: Tip, *, is_known: bool) -> bool:
        """Whether it is kept.  tip: that it is about; is_known: the accused is in our chain."""
        if name in self._pieces or len(raw) > POSTPONED_BYTES:
            return False
        size = len(raw) + sum(len(piece.raw) for piece in self._pieces.values())
        while len(self._pieces) >= MAX_POSTPONED or size > POSTPONED_BYTES:
            oldest = min(self._pieces, key=lambda each: self._pieces[each].is_known)
            if self._pieces[oldest].is_known and not is_known:
                return False
            size -= len(self._pieces.pop(oldest).raw)
        self._pieces[name] = _Piece(raw, tip, is_known)
        return True

    def take(self, is_judged: Callable[[Tip], bool]) -> list[bytes]:
        """The evidence about tips that can be judged now; it is kept no longer."""
        due = [name for name, piece in self._pieces.items() if is_judged(piece.tip)]
        return [self._pieces.pop(name).raw for name in due]
