"""Colours of the interface: a dark and a light palette, and the terminal's own colours if it has few.

The panels name six ANSI colours; a palette says what they look like.  People who confuse red and green can tell
these colours apart, and each has a contrast of at least 5 to the background.  No information is in a colour alone.
"""

from __future__ import annotations

from rich.terminal_theme import TerminalTheme
from textual.theme import Theme

DARK_NAME, LIGHT_NAME = "manyhands-dark", "manyhands-light"
OTHER_SHADE = {DARK_NAME: LIGHT_NAME, LIGHT_NAME: DARK_NAME, "ansi-dark": "ansi-light", "ansi-light": "ansi-dark"}
"""The light theme of each dark one, and the other way round."""
LIGHT_BACKGROUNDS = ("7", "15")
"""Numbers of light backgrounds in the variable COLORFGBG, which some terminals set."""

RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN = "#f0735a", "#45c09a", "#e3b341", "#8f9bf2", "#d38bc4", "#62b6f0"
DEEP_RED, DEEP_GREEN, DEEP_YELLOW = "#9e1b32", "#00735a", "#856400"
DEEP_BLUE, DEEP_MAGENTA, DEEP_CYAN = "#4a4fb5", "#95407f", "#0b69ad"
NIGHT, CHALK, PAPER, INK = "#16191d", "#d8dbe0", "#f7f7f5", "#22272c"

DARK = Theme(
    DARK_NAME,
    primary="#56636f",
    secondary=BLUE,
    accent=CYAN,
    warning=YELLOW,
    error=RED,
    success=GREEN,
    foreground=CHALK,
    background=NIGHT,
    surface="#1e2227",
    panel="#262b31",
)
LIGHT = Theme(
    LIGHT_NAME,
    primary="#93a0ab",
    secondary=DEEP_BLUE,
    accent=DEEP_CYAN,
    warning=DEEP_YELLOW,
    error=DEEP_RED,
    success=DEEP_GREEN,
    foreground=INK,
    background=PAPER,
    surface="#ececea",
    panel="#e2e2df",
    dark=False,
)


def suited_theme(colour_background: str, colour_system: str | None) -> str:
    """Return the name of the theme for a terminal.

    colour_background: its variable COLORFGBG, empty if it sets none.  colour_system: its colours, as Rich detects them.
    """
    shade = "light" if colour_background.rpartition(";")[2] in LIGHT_BACKGROUNDS else "dark"
    return f"{'manyhands' if colour_system in ('256', 'truecolor') else 'ansi'}-{shade}"


def _palette(background: str, foreground: str, *colours: str) -> TerminalTheme:
    """Return the ANSI colours red, green, yellow, blue, magenta and cyan; bright ones are the same."""
    normal = [
        (each[0], each[1], each[2]) for each in map(bytes.fromhex, (c[1:] for c in (background, *colours, foreground)))
    ]
    return TerminalTheme(normal[0], normal[-1], normal, normal)


DARK_PALETTE = _palette(NIGHT, CHALK, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN)
LIGHT_PALETTE = _palette(PAPER, INK, DEEP_RED, DEEP_GREEN, DEEP_YELLOW, DEEP_BLUE, DEEP_MAGENTA, DEEP_CYAN)
