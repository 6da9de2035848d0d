"""Panel on the screen: a title, and the lines that one of the modules `tui.panels` draws."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.panels.look import Look
from tui.picture import Picture

Draw = Callable[[Picture, int, int, Look], list[Text]]


class Panel(Widget):
    """Widget that draws one side of `picture`.  key: the digit that shows the panel alone.

    Only changed lines are drawn again: most of a frame is as before.
    """

    DEFAULT_CSS = """
    Panel { border-top: solid $primary; border-title-color: $text; border-title-style: bold; padding: 0 1; }
    """

    def __init__(self, key: str, title: str, draw: Draw, picture: Picture, look: Look) -> None:
        super().__init__(id=title.lower())
        self.border_title = f"{key} {title}"
        self._draw, self.picture, self.look = draw, picture, look
        self.lines: list[Text] = []
        """Lines on the screen."""

    def show(self) -> None:
        """Draw the picture as it is now."""
        width, height = self.content_size
        before, self.lines = self.lines, self._draw(self.picture, width, height, self.look)[:height]
        changed = [
            y
            for y in range(max(len(before), len(self.lines)))
            if not (y < len(before) and y < len(self.lines) and _same(before[y], self.lines[y]))
        ]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))  # in the content's coordinates

    def on_resize(self) -> None:
        """Draw everything again for the new size."""
        self.show()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line of the content, in the widget's colours."""
        width, base = self.content_size.width, self.rich_style
        if y >= len(self.lines):
            return Strip.blank(width, base)
        strip = Strip(list(self.lines[y].render(self.app.console))).apply_style(base)
        return strip.adjust_cell_length(width, base)

    @property
    def text(self) -> str:
        """Text on the screen, without styles."""
        return "\n".join(line.plain for line in self.lines)


def _same(one: Text, other: Text) -> bool:
    return one.plain == other.plain and one.spans == other.spans
