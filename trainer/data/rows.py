"""Rows of tokens that a training step reads, and the interface of the rows' sources."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# ------------------------------------------------------------------------------------------------------------------------
# Order of the corpus's windows, which is a pure function from seed and row to a window.
#
# The rows of a run are numbered from 0, and the record chain leases each row to one peer (`protocol.chain.leases`). The rows
# of an epoch are mapped through a keyed permutation of the corpus's windows, with a new permutation for each epoch.


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
        """Return the place of `index`."""
        assert 0 <= index < self.size
        value = self._once(index)
        while value >= self.size:  # this ends, because the cycle of a bijection returns to `index`
            value = self._once(value)
        return value

    def _once(self, value: int) -> int:
        mask = (1 << self.half_bits) - 1
        left, right = value >> self.half_bits, value & mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return left << self.half_bits | right


@dataclass(frozen=True)
class WindowOrder:
    """Order of a corpus's windows.  windows: number of training windows."""

    seed: int
    windows: int

    def window(self, row: int) -> int:
        """Return the window that a row of the run reads."""
        assert row >= 0
        epoch, index = divmod(row, self.windows)
        return Permutation.of(self.seed, epoch, self.windows)(index)


def _mix(value: int) -> int:
    """Mix 64 bits (the finaliser of splitmix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31


# ------------------------------------------------------------------------------------------------------------------------


Tokens = npt.NDArray[Any]
"""Array of integers of the smallest type that holds the vocabulary."""
Mask = npt.NDArray[np.bool_]
Documents = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Rows:
    """Rows of tokens.  tokens_bt: (B, T + 1); all but the first of a row are predicted.

    counts_bt: (B, T), true for predicted tokens that count in the loss; None if all count. documents_bt: (B, T), int, the id
    of each read token's document. Documents do not attend to each other. None if each row is one document. sources_b: (B,),
    the number of each row's source; None if there is one source. pairs_b: (B,), the number of each row's preference, whose
    chosen row is followed by the rejected one; None for other rows.
    """

    tokens_bt: Tokens
    counts_bt: Mask | None = None
    documents_bt: Documents | None = None
    sources_b: npt.NDArray[np.int16] | None = None
    pairs_b: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Return the number of rows, B."""
        return len(self.tokens_bt)

    def __getitem__(self, span: slice) -> Rows:
        """Return some of the rows."""
        return Rows(self.tokens_bt[span], *(None if each is None else each[span] for each in self._beside))

    @property
    def _beside(self) -> tuple[Any, ...]:
        """Arrays besides the tokens, each of which may be None."""
        return self.counts_bt, self.documents_bt, self.sources_b, self.pairs_b

    @property
    def length(self) -> int:
        """Number of tokens predicted in a row, T."""
        return int(self.tokens_bt.shape[1]) - 1

    @property
    def counted(self) -> int:
        """Number of predicted tokens that count in the loss."""
        return len(self) * self.length if self.counts_bt is None else int(self.counts_bt.sum())

    @property
    def counted_b(self) -> npt.NDArray[np.int64]:
        """Number of predicted tokens of each row that count in the loss, (B,)."""
        if self.counts_bt is None:
            return np.full(len(self), self.length, np.int64)
        counted_b: npt.NDArray[np.int64] = self.counts_bt.sum(axis=1, dtype=np.int64)
        return counted_b

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Join the rows of parts that have the same arrays."""
        beside = zip(*(part._beside for part in parts), strict=True)
        return cls(
            np.concatenate([part.tokens_bt for part in parts]),
            *(None if column[0] is None else np.concatenate(column) for column in beside),
        )


class Reading(ABC):
    """Source of a run's rows: training windows and held-out windows.

    digest: hash of all the data, in hexadecimal.  names: names of the sources; held-out windows of each are `held_out_of`.
    """

    digest: str
    windows: int
    """Number of training windows, numbered from 0; at least 1."""
    held_out_windows: int
    names: tuple[str, ...] = ("data",)
    in_run_order: bool = False
    """True if window n is row n of the run; otherwise a permutation of the windows gives the order."""

    @abstractmethod
    def rows(self, windows: Sequence[int], *, held_out: bool = False) -> Rows:
        """Return windows by number, one per row.  Each has at least one counted token."""

    def weights(self, row: int) -> tuple[int, ...]:
        """Return the weights of the sources around a row of the run."""
        return (1,)

    def held_out_of(self, source: int) -> range:
        """Return the held-out windows of a source."""
        return range(self.held_out_windows)
