"""Rows of tokens as a training step reads them, and the interface of their sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[Any]
"""Integers of the smallest type that holds the vocabulary."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Rows of tokens.  tokens_bt: (B, T + 1); all but the first of a row are predicted.

    counts_bt: (B, T), true for predicted tokens that the loss counts; None for all.  documents_bt: (B, T), int, the id of
    each read token's document; documents do not see each other; None if each row is one document.
    """

    tokens_bt: Tokens
    counts_bt: Mask | None = None
    documents_bt: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        """Return the number of rows, B."""
        return len(self.tokens_bt)

    def __getitem__(self, span: slice) -> Rows:
        """Return some of the rows."""
        return Rows(self.tokens_bt[span], *(None if each is None else each[span] for each in self.beside))

    @property
    def beside(self) -> tuple[Any, Any]:
        """Arrays beside the tokens: counts and documents, each may be None."""
        return self.counts_bt, self.documents_bt

    @property
    def length(self) -> int:
        """Tokens predicted in a row, T."""
        return int(self.tokens_bt.shape[1]) - 1

    @property
    def counted(self) -> int:
        """Predicted tokens that the loss counts."""
        return len(self) * self.length if self.counts_bt is None else int(self.counts_bt.sum())

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Join the rows of parts that have the same arrays."""
        beside = zip(*(part.beside for part in parts), strict=True)
        return cls(
            np.concatenate([part.tokens_bt for part in parts]),
            *(None if column[0] is None else np.concatenate(column) for column in beside),
        )


class Reading(ABC):
    """Source of a run's rows: training windows and held-out windows.  digest: of all the data, hexadecimal."""

    digest: str
    windows: int
    """Number of training windows, numbered from 0; at least 1."""
    held_out_windows: int

    @abstractmethod
    def rows(self, windows: Sequence[int], *, held_out: bool = False) -> Rows:
        """Return windows by number, one per row.  Each has at least one counted token."""
