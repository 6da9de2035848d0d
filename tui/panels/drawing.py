"""Tools for all panels: styles and view settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from peer.formatting import columns, fit, wrapped

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


LEAST_TEXT = 8
"""Columns of a text below which it begins on the line below its label, instead of being broken into many short lines."""
INDENT = 2


def hanging(label: str, text: str, width: int, at: int, *, style: str = "", label_style: str = FAINT) -> list[Text]:
    """Return a label and a text from column `at` on, in as many lines of at most `width` columns as the text takes."""
    room = width - at
    if text and room < LEAST_TEXT <= width - INDENT and at > INDENT:
        return [line((fit(label, width), label_style)), *hanging("", text, width, INDENT, style=style)]
    texts = [text] if columns(text) <= room or room < LEAST_TEXT else wrapped(text, room)
    return [
        line((fit(f"{'' if place else label:<{at}}", min(at, width)), label_style), (fit(each, max(0, room)), style))
        for place, each in enumerate(texts)
    ]


def paragraph(text: str, width: int, style: str = "") -> list[Text]:
    """Return a text in as many lines of at most `width` columns as it takes, at least one."""
    return hanging("", text, width, 0, style=style)
