"""Panel of the log of events, with the newest at the bottom."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.text import Text

from peer.formatting import fit
from tui.panels.drawing import FAINT, LEVEL_STYLES, Look, hanging, line
from tui.picture import LogLine, Picture

TITLE = "Log"
FILTERS: tuple[tuple[str, Callable[[LogLine], bool]], ...] = (
    ("what matters", lambda each: each.level != "debug"),
    ("warnings", lambda each: each.level in ("warning", "error")),
    ("everything", lambda each: True),
)


def draw(picture: Picture, width: int, height: int, look: Look) -> list[Text]:
    """Draw the last lines that pass the filter, each whole, or earlier ones if scrolled."""
    _, wanted = FILTERS[look.filter % len(FILTERS)]
    found = list[Text]()  # from the lowest line up
    for each in reversed(picture.lines):
        if wanted(each):
            clock = time.strftime("%H:%M:%S ", time.localtime(each.at))
            text = f"! {each.text}" if each.level in ("warning", "error") else each.text
            found += reversed(hanging(clock, text, width, len(clock), style=LEVEL_STYLES.get(each.level, "")))
            if len(found) >= look.scroll + height:
                break
    look.scroll = max(0, min(look.scroll, len(found) - height))
    shown = found[look.scroll : look.scroll + height]
    if not shown:
        return [line((fit("nothing to show with this filter yet; l shows other lines", width), FAINT))]
    return [*reversed(shown)]
