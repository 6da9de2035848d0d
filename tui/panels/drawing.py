"""Tools for all panels: styles and view settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

GOOD, WARNING, ALARM, FAINT, STRONG = "green", "yellow", "bold red", "dim", "bold"
"""Styles.  No information is in colour alone, so that everything can be read without colours."""
LEVEL_STYLES = {"warning": WARNING, "error": ALARM, "debug": FAINT}


@dataclass
class Look:
    """View settings of a panel.

    scroll: lines.  order, filter, zoom, unit: indices into the panel's lists.  alone: no other panel is shown.  chosen: the
    peer whose details are shown, by its ID.  moved: rows by which a person moved that choice since the last drawing.
    search: part of the names or IDs of the peers that are shown.  unicode: Unicode works.
    """

    scroll: int = 0
    alone: bool = False
    chosen: str = ""
    moved: int = 0
    search: str = ""
    order: int = 0
    filter: int = 0
    zoom: int = 0
    unit: int = 0
    unicode: bool = True

    def window(self, lines: int, room: int) -> range:
        """Return the indices, of `lines` lines, that `room` lines show; scroll back if scrolled too far."""
        self.scroll = max(0, min(self.scroll, lines - room))
        return range(self.scroll, min(lines, self.scroll + max(0, room)))


def hints(keys: Sequence[tuple[str, str]]) -> Text:
    """Return keys with their effects: the keys bold, so that they are found first."""
    return Text("  ").join(Text.assemble((key, STRONG), (f" {effect}", FAINT)) for key, effect in keys)


def line(*parts: str | tuple[str, str]) -> Text:
    """Join parts, each with or without a style, into a line."""
    return Text.assemble(*parts, no_wrap=True, overflow="crop", end="")
