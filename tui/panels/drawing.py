"""Tools for all panels: styles, view settings, and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from peer.formatting import number

# ------------------------------------------------------------------------------------------------------------------------
# Curves several lines high, drawn with braille dots, or with plain characters on terminals without Unicode.


DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character: by row, then column."""
BRAILLE = 0x2800
LABEL = 7
"""Columns for the numbers at the left."""


def curve(values: Sequence[float], width: int, height: int, *, unicode: bool = True) -> list[str]:
    """Draw `values` from left to right in `height` lines of at most `width` columns; label the largest and the smallest.

    If there are more values than columns, they are averaged; fewer values are spread.  A value that is not finite leaves a
    gap.
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


# ------------------------------------------------------------------------------------------------------------------------
# Styles and view settings.


GOOD, WARNING, ALARM, FAINT, STRONG = "green", "yellow", "bold red", "dim", "bold"
"""Styles.  No information is in colour alone, so that everything can be read without colours."""
LEVEL_STYLES = {"warning": WARNING, "error": ALARM, "debug": FAINT}


@dataclass
class Look:
    """View settings of a panel.  scroll: lines.  order, filter: indices into the panel's lists.  unicode: Unicode works."""

    scroll: int = 0
    order: int = 0
    filter: int = 0
    unicode: bool = True

    def window(self, lines: int, room: int) -> range:
        """Return the indices, of `lines` lines, that `room` lines show; scroll back if scrolled too far."""
        self.scroll = max(0, min(self.scroll, lines - room))
        return range(self.scroll, min(lines, self.scroll + max(0, room)))


def line(*parts: str | tuple[str, str]) -> Text:
    """Join parts, each with or without a style, into a line."""
    return Text.assemble(*parts, no_wrap=True, overflow="crop", end="")
