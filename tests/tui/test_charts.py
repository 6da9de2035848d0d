"""Curves of several lines."""

from __future__ import annotations

import math

from peer.formatting import columns
from tui.panels.drawing import curve


def test_a_falling_curve_begins_at_the_top_and_ends_at_the_bottom() -> None:
    lines = curve([4.0, 3.0, 2.0, 1.0], 20, 4, unicode=False)
    assert lines[0].startswith("  4.000 *") and lines[-1].startswith("  1.000 ") and lines[-1].endswith("*")
    assert all(columns(line) <= 20 for line in lines)


def test_many_values_are_averaged_into_the_room_there_is() -> None:
    lines = curve([float(number % 2) for number in range(10_000)], 30, 3)
    assert len(lines) == 3 and all(columns(line) <= 30 for line in lines)


def test_what_is_no_number_is_a_gap() -> None:
    broken = curve([1.0, math.nan, 2.0, math.inf], 12, 2, unicode=False)
    assert "nan" not in "".join(broken) and "inf" not in "".join(broken)
    assert curve([math.nan], 12, 2) == ["", ""] and curve([], 12, 2) == ["", ""]


def test_no_room_draws_nothing() -> None:
    assert curve([1.0, 2.0], 5, 2) == ["", ""] and curve([1.0, 2.0], 50, 0) == []
