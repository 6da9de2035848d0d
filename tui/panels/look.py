"""How a person looks at a panel: how far they scrolled, in what order, and what is left out."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

GOOD, WARNING, ALARM, FAINT, STRONG = "green", "yellow", "bold red", "dim", "bold"
"""Styles.  Nothing is told by colour alone, so that everything can be read without any."""
LEVEL_STYLES = {"warning": WARNING, "error": ALARM, "debug": FAINT}


@dataclass
class Look:
    """scroll: lines.  order: which of the panel's orders.  filter: which of its filters.  unicode: what can be drawn."""

    scroll: int = 0
    order: int = 0
    filter: int = 0
    unicode: bool = True

    def window(self, lines: int, room: int) -> range:
        """Which of `lines` are shown in `room`; scrolls back what was scrolled too far."""
        self.scroll = max(0, min(self.scroll, lines - room))
        return range(self.scroll, min(lines, self.scroll + max(0, room)))


def line(*parts: str | tuple[str, str]) -> Text:
    """A line of parts, each with a style or without one."""
    return Text.assemble(*parts, no_wrap=True, overflow="crop", end="")
