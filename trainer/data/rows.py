"""Rows of tokens as a training step reads them, and where they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[Any]
"""Integers, of the smallest type that holds the vocabulary."""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """tokens_bt: (B, T + 1), of which all but the first of a row are predicted.

    counts_bt: (B, T), true for predicted tokens that the loss counts; None for all.  documents_bt: (B, T), int, a run of one
    id for each document of the tokens that are read, none of which sees another; None where a row is one document.
    """

    tokens_bt: Tokens
    counts_bt: Mask | None = None
    documents_bt: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        """Rows, B."""
        return len(self.tokens_bt)

    def __getitem__(self, span: slice) -> Rows:
        """Some of the rows."""
        return Rows(self.tokens_bt[span], *(None if each is None else each[span] for each in self.beside))

    @property
    def beside(self) -> tuple[Any, Any]:
        """What says how the tokens count and are read, either None."""
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
        """All rows of parts of one kind."""
        beside = zip(*(part.beside for part in parts), strict=True)
        return cls(
            np.concatenate([part.tokens_bt for part in parts]),
            *(None if column[0] is None else np.concatenate(column) for column in beside),
        )


class Reading(ABC):
    """What a run reads: windows for training and held-out ones.  digest: hexadecimal, of all of it."""

    digest: str
    windows: int
    """For training, numbered from 0; at least 1."""
    held_out_windows: int

    @abstractmethod
    def rows(self, windows: Sequence[int], *, held_out: bool = False) -> Rows:
        """Windows by number, one a row.  Each counts a token at least."""
