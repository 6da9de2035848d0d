"""Drawing with characters: bars, curves in a row, and text cut to a number of columns.

Pure and light: the terminal interface and the demo draw with it.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-~=+*#"


def bar(done: int, total: int, width: int, *, unicode: bool = True) -> str:
    """Return a progress bar of exactly `width` columns."""
    filled = 0 if total <= 0 else max(0, min(width, width * done // total))
    full, empty = ("█", "░") if unicode else ("#", ".")
    return full * filled + empty * (width - filled)


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """Return the last `width` values as a row of blocks; values that are not finite leave a gap."""
    shown = list(values)[-width:] if width > 0 else []
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return ""
    blocks = BLOCKS if unicode else ASCII_BLOCKS
    low, high = min(finite), max(finite)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((value - low) * scale)] if value in finite else " " for value in shown)


def columns(text: str) -> int:
    """Return the columns that `text` takes on a terminal."""
    return sum(_columns_of(character) for character in text)


def fit(text: str, width: int) -> str:
    """Return `text` cut to `width` columns, without unprintable characters."""
    taken = 0
    for place, character in enumerate(text):
        if not character.isprintable():
            return fit("".join(c for c in text if c.isprintable()), width)
        taken += _columns_of(character)
        if taken > width:
            return text[:place]
    return text


def pad(text: str, width: int) -> str:
    """Return `text` in exactly `width` columns, the last of which is a space."""
    cut = fit(text, width - 1)
    return cut + " " * (width - columns(cut))


def spread(left: str, right: str, width: int) -> str:
    """Place `left` and `right` at the two ends of a line; return `left` alone if both do not fit."""
    gap = width - columns(left) - columns(right)
    return left + " " * gap + right if gap >= 1 else left


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
