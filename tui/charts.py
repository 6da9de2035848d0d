"""Curves several lines high, drawn with braille dots, or with plain characters on terminals without Unicode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from peer.formatting import number

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character: by row, then column."""
BRAILLE = 0x2800
LABEL = 7
"""Columns for the numbers at the left."""


def curve(values: Sequence[float], width: int, height: int, *, unicode: bool = True) -> list[str]:
    """Draw `values` from left to right in `height` lines of at most `width` columns; label the largest and least.

    More values than columns are averaged; fewer are spread.  A value that is not finite leaves a gap.
    """
    finite = [value for value in values if math.isfinite(value)]
    room = width - LABEL - 1
    if not finite or room < 4 or height < 1:
        return [""] * max(0, height)
    low, high = min(finite), max(finite)
    across, down = (2, 4) if unicode else (1, 1)
    places = _resampled(values, room * across)
    rows = height * down
    grid = [[0] * room for _ in range(height)]
    for column, value in enumerate(places):
        if math.isfinite(value):
            row = 0 if high == low else round((high - value) / (high - low) * (rows - 1))
            grid[row // down][column // across] |= DOTS[row % down][column % across] if unicode else 1
    labels = {0: number(high), height - 1: number(low)} if height > 1 else {0: number(high)}
    return [f"{labels.get(place, ''):>{LABEL}} {_cells(row, unicode)}" for place, row in enumerate(grid)]


def _cells(row: Sequence[int], unicode: bool) -> str:
    return "".join(chr(BRAILLE + cell) if cell else " " for cell in row) if unicode else "".join(" *"[c] for c in row)


def _resampled(values: Sequence[float], places: int) -> list[float]:
    """Return one value for each place: the mean of the values that fall on it, or the nearest value before it."""
    if len(values) <= places:
        return [values[place * len(values) // places] for place in range(places)]
    found = []
    for place in range(places):
        some = values[place * len(values) // places : max((place + 1) * len(values) // places, 1)]
        finite = [value for value in some if math.isfinite(value)]
        found.append(sum(finite) / len(finite) if finite else math.nan)
    return found
