"""Order in which the rows of several sources are read; a pure function that every peer computes alike.

Rows are numbered from 0 over the whole run.  A **phase** is a stretch of rows in which the sources are mixed by fixed
weights.  `RowMixture.place` names the source of a row and its index among all rows of that source, and `counts` says how
many rows of each source the first rows hold.  An index that exceeds the rows of a source begins its next epoch.

Within a phase the rows follow the quota method (Balinski and Young 1975, "The quota method of apportionment"): a source
is eligible while it has fewer rows than its share of the rows so far, and the eligible source whose next row is due first
comes next.  After any number of rows each source has its share, rounded up or down.  The order repeats after as many rows as
the weights add up to, so a place is looked up in a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

MAX_WEIGHTS = 10_000
"""Maximum sum of the weights of a phase, which is the length of its table."""


@dataclass(frozen=True)
class MixturePhase:
    """Stretch of rows with fixed weights.

    start: number of its first row.  weights: share of each source, as whole numbers that are at least 0; not all are 0.
    """

    start: int
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.start >= 0 and min(self.weights) >= 0 and 0 < sum(self.weights) <= MAX_WEIGHTS


@dataclass(frozen=True)
class _Cycle:
    """Order of the sources in one cycle of a phase.

    sources: (W,), the source of each row.  counts: (W + 1, sources), the rows of each source among the first rows.
    """

    sources: npt.NDArray[np.int16]
    counts: npt.NDArray[np.int32]


@lru_cache(maxsize=64)
def _cycle(weights: tuple[int, ...]) -> _Cycle:
    total = sum(weights)
    sources, counts = np.zeros(total, np.int16), np.zeros((total + 1, len(weights)), np.int32)
    have = [0] * len(weights)
    for row in range(total):
        eligible = [each for each, weight in enumerate(weights) if have[each] * total < weight * (row + 1)]
        chosen = min(eligible, key=lambda each: (Fraction(have[each] + 1, weights[each]), each))
        have[chosen] += 1
        sources[row], counts[row + 1] = chosen, have
    return _Cycle(sources, counts)


class RowMixture:
    """Order of the rows of a run.  phases: ascending by their starts; the first one starts at row 0."""

    def __init__(self, phases: Sequence[MixturePhase]) -> None:
        assert phases and phases[0].start == 0 and len({len(phase.weights) for phase in phases}) == 1
        assert all(one.start < other.start for one, other in pairwise(phases))
        self._phases = tuple(phases)
        self._before = [(0,) * len(phases[0].weights)]
        """Rows of each source before each phase."""
        for phase, following in pairwise(phases):
            self._before.append(_sum(self._before[-1], _within(phase.weights, following.start - phase.start)))

    @property
    def sources(self) -> int:
        """Number of sources."""
        return len(self._phases[0].weights)

    def is_read(self, source: int) -> bool:
        """Return True if a source has a weight above 0 in any phase."""
        return any(phase.weights[source] > 0 for phase in self._phases)

    def weights(self, row: int) -> tuple[int, ...]:
        """Return the weights of the sources in the phase of a row."""
        return self._phases[self._phase_of(row)].weights

    def place(self, row: int) -> tuple[int, int]:
        """Return the source of a row, and the row's index among the rows of that source."""
        assert row >= 0
        number = self._phase_of(row)
        phase = self._phases[number]
        cycle, (cycles, at) = _cycle(phase.weights), divmod(row - phase.start, sum(phase.weights))
        source = int(cycle.sources[at])
        return source, self._before[number][source] + cycles * phase.weights[source] + int(cycle.counts[at, source])

    def counts(self, rows: int) -> tuple[int, ...]:
        """Return how many of the first `rows` rows come from each source.

        Rows [a, b) of the run are therefore rows [counts(a)[s], counts(b)[s]) of each source s.
        """
        assert rows >= 0
        number = self._phase_of(rows)
        phase = self._phases[number]
        return _sum(self._before[number], _within(phase.weights, rows - phase.start))

    def rows_within(self, limits: Sequence[int | None]) -> int | None:
        """Return how many rows can be read before a source exceeds its limit; None if no limit is ever reached.

        limits: maximum rows of each source; None for no limit.
        """
        assert len(limits) == self.sources
        last = self._phases[-1]
        if not self._exceeds(last.start, limits) and all(
            limit is None or not weight for limit, weight in zip(limits, last.weights, strict=True)
        ):
            return None
        low, high = 0, last.start + 1
        while not self._exceeds(high, limits):
            low, high = high, 2 * high
        while high - low > 1:  # within at `low`, over at `high`
            middle = (low + high) // 2
            low, high = (low, middle) if self._exceeds(middle, limits) else (middle, high)
        return low

    def _exceeds(self, rows: int, limits: Sequence[int | None]) -> bool:
        return any(limit is not None and count > limit for limit, count in zip(limits, self.counts(rows), strict=True))

    def _phase_of(self, row: int) -> int:
        return max(number for number, phase in enumerate(self._phases) if phase.start <= row)


def _within(weights: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """Return the rows of each source among the first `rows` rows of a phase."""
    cycles, at = divmod(rows, sum(weights))
    counts = _cycle(weights).counts[at]
    return tuple(cycles * weight + int(count) for weight, count in zip(weights, counts, strict=True))


def _sum(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))
