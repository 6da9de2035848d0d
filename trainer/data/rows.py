"""Rows of tokens that a training step reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
    chosen row is followed by the rejected one; None for other rows. reference_b: (B,), the log-probability of the counted
    tokens of each row under the reference weights; None if no comparison with them is needed.
    """

    tokens_bt: Tokens
    counts_bt: Mask | None = None
    documents_bt: Documents | None = None
    sources_b: npt.NDArray[np.int16] | None = None
    pairs_b: npt.NDArray[np.int64] | None = None
    reference_b: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        """Return the number of rows, B."""
        return len(self.tokens_bt)

    def __getitem__(self, span: slice) -> Rows:
        """Return some of the rows."""
        return Rows(self.tokens_bt[span], *(None if each is None else each[span] for each in self._beside))

    @property
    def _beside(self) -> tuple[Any, ...]:
        """Arrays besides the tokens, each of which may be None."""
        return self.counts_bt, self.documents_bt, self.sources_b, self.pairs_b, self.reference_b

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
        """Join the rows of parts, all of which must have the same arrays."""
        beside = zip(*(part._beside for part in parts), strict=True)
        return cls(
            np.concatenate([part.tokens_bt for part in parts]),
            *(None if column[0] is None else np.concatenate(column) for column in beside),
        )
