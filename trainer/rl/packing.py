"""Packing of sequences of different lengths into rows of one length, for the learner: nothing is dropped or cut.

A sequence is a rollout's prompt and output with its advantage.  A row holds one or more sequences, end to end.  A sequence
has one place fewer than tokens: each place reads a token and predicts the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.rl.rollout import Rollout

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
PADDING = -1
"""Document id of places after the last sequence of a row."""


@dataclass(frozen=True)
class Packed:
    """Rows of places, (rows, places) each.

    documents: number of the place's sequence among those packed, or `PADDING`.  mask: true if the model chose the target,
    which then counts.  Targets at other places do not matter.
    """

    tokens: I64
    documents: I64
    targets: I64
    mask: Bools
    advantages: F32

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of places in each."""
        rows, places = self.tokens.shape
        return rows, places

    @property
    def counted_tokens(self) -> int:
        """Number of targets that count."""
        return int(self.mask.sum())

    def rows(self, span: slice) -> Packed:
        """Return some of the rows."""
        return self._part((span, slice(None)))

    def trimmed(self) -> Packed:
        """Return the rows without the places at the end that are padding in every row."""
        return self._part((slice(None), slice(int((self.documents != PADDING).any(axis=0).sum()))))

    def _part(self, at: tuple[slice, slice]) -> Packed:
        return Packed(self.tokens[at], self.documents[at], self.targets[at], self.mask[at], self.advantages[at])


def places_of(rollout: Rollout) -> int:
    """Return the number of places that a rollout takes in a row."""
    return len(rollout.prompt) + len(rollout.output) - 1


def check_lengths(rollouts: Sequence[Rollout], row_tokens: int) -> None:
    """Raise ValueError for a rollout that is longer than a row."""
    for rollout in rollouts:
        if places_of(rollout) > row_tokens:
            raise ValueError(
                f"copy {rollout.copy} of problem {rollout.problem} has {places_of(rollout) + 1} tokens, and a row takes "
                f"{row_tokens + 1}; make row_tokens larger or max_tokens smaller"
            )


def pack(rollouts: Sequence[Rollout], advantages: Sequence[float], row_tokens: int) -> Packed:
    """Pack all the rollouts into rows of `row_tokens` places.  Raises ValueError if one is too long, before packing any."""
    check_lengths(rollouts, row_tokens)
    rows = _first_fit([places_of(rollout) for rollout in rollouts], row_tokens)
    shape = (len(rows), row_tokens)
    packed = Packed(
        tokens=np.zeros(shape, np.int64),
        documents=np.full(shape, PADDING, np.int64),
        targets=np.zeros(shape, np.int64),
        mask=np.zeros(shape, np.bool_),
        advantages=np.zeros(shape, np.float32),
    )
    for row, numbers in enumerate(rows):
        start = 0
        for number in numbers:
            rollout = rollouts[number]
            sequence = rollout.prompt + rollout.output
            span = slice(start, start + places_of(rollout))
            packed.tokens[row, span], packed.targets[row, span] = sequence[:-1], sequence[1:]
            packed.documents[row, span] = number
            packed.mask[row, span.stop - len(rollout.output) : span.stop] = rollout.made
            packed.advantages[row, span] = advantages[number]
            start = span.stop
    return packed


def _first_fit(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Assign sequences to rows: the longest first, each into the first row that has room (first-fit decreasing)."""
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        row = next((row for row, left in enumerate(room) if left >= lengths[number]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_tokens)
        rows[row].append(number)
        room[row] -= lengths[number]
    return rows
