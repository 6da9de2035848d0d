"""The colours suit the terminal, can be read, and keep apart without red and green."""

from __future__ import annotations

import math
import operator
from itertools import combinations

import pytest
from rich.terminal_theme import TerminalTheme

from tests.tui.test_keys import ready, view_of, with_textual
from tui.theme import DARK_NAME, DARK_PALETTE, LIGHT_NAME, LIGHT_PALETTE, OTHER_SHADE, suited_theme

PALETTES = pytest.mark.parametrize("palette", [DARK_PALETTE, LIGHT_PALETTE], ids=["dark", "light"])
Rgb = tuple[int, ...]


def linear(colour: Rgb) -> list[float]:
    shares = [part / 255 for part in colour]
    return [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]


def luminance(colour: Rgb) -> float:
    """As WCAG 2.2 defines it."""
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


DEUTERANOPE = (
    (0.367322, 0.860646, -0.227968),
    (0.280085, 0.672501, 0.047413),
    (-0.011820, 0.042940, 0.968881),
)
PROTANOPE = (
    (0.152286, 1.052583, -0.204868),
    (0.114503, 0.786281, 0.099216),
    (-0.003882, -0.048116, 1.051998),
)
"""Machado, Oliveira and Fernandes 2009."""


def seen(colour: Rgb, eyes: tuple[tuple[float, float, float], ...]) -> list[float]:
    """What such eyes see of it, red, green and blue from 0 to 1."""
    found = [sum(map(operator.mul, row, linear(colour))) for row in eyes]
    return [1.055 * max(0.0, min(1.0, part)) ** (1 / 2.4) - 0.055 for part in found]


def hues(palette: TerminalTheme) -> list[Rgb]:
    return [palette.ansi_colors[number] for number in range(1, 7)]


@PALETTES
def test_each_colour_can_be_read_on_its_background(palette: TerminalTheme) -> None:
    background = luminance(tuple(palette.background_color))
    for colour in [*hues(palette), tuple(palette.foreground_color)]:
        bright, deep = max(luminance(colour), background), min(luminance(colour), background)
        assert (bright + 0.05) / (deep + 0.05) >= 5


@PALETTES
@pytest.mark.parametrize("eyes", [DEUTERANOPE, PROTANOPE], ids=["deuteranope", "protanope"])
def test_alarm_success_and_warning_keep_apart_for_who_confuses_red_and_green(
    palette: TerminalTheme, eyes: tuple[tuple[float, float, float], ...]
) -> None:
    shown = [seen(palette.ansi_colors[number], eyes) for number in (1, 2, 3)]
    assert min(math.dist(one, other) for one, other in combinations(shown, 2)) > 0.17


@pytest.mark.parametrize(
    ("background", "colours", "theme"),
    [
        ("", "truecolor", DARK_NAME),
        ("", "256", DARK_NAME),
        ("0;15", "256", LIGHT_NAME),
        ("15;default;0", "truecolor", DARK_NAME),
        ("0;default;7", "truecolor", LIGHT_NAME),
        ("", "standard", "ansi-dark"),
        ("0;15", "standard", "ansi-light"),
        ("", None, "ansi-dark"),
        ("nonsense", "windows", "ansi-dark"),
    ],
)
def test_the_theme_suits_the_terminal(background: str, colours: str | None, theme: str) -> None:
    assert suited_theme(background, colours) == theme


@pytest.mark.slow
@pytest.mark.parametrize("theme", sorted(OTHER_SHADE))
@with_textual
async def test_every_theme_can_be_drawn_and_has_another_shade(theme: str) -> None:
    view, _ = view_of()
    async with view.run_test(size=(120, 40)) as pilot:
        view.theme = theme
        await ready(pilot)
        assert "attic (me)" in view._panel("2").text
        await pilot.press("t")
        assert view.theme == OTHER_SHADE[theme] and view.current_theme.dark is theme.endswith("light")
        await pilot.press("t")
        assert view.theme == theme
