"""Axes of charts: round ticks, ends that one false value does not move, and a chart of a single point."""

from __future__ import annotations

import re

import pytest

from peer.page.chart import Axis, Chart, Line, LinePoint, span, ticks

PLAIN = Axis("rounds", lambda value: f"{value:g}")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (1, 9_999, [2000, 4000, 6000, 8000]),
        (2.1, 2.9, [2.2, 2.4, 2.6, 2.8]),
        (2.0, 5.1, [2, 2.5, 3, 3.5, 4, 4.5, 5]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3, 3, [3]),
        (-1e30, 1e30, [-1e30, -5e29, 0, 5e29, 1e30]),
    ],
)
def test_ticks_are_round_values_within_the_ends(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_whole_numbers_have_whole_ticks() -> None:
    assert ticks(1, 3, whole=True) == [1, 2, 3]
    assert ticks(0, 2.1, whole=True) == [0, 1, 2]
    assert ticks(1, 12, whole=True) == [2, 4, 6, 8, 10, 12]
    assert ticks(0, 120, whole=True) == [0, 25, 50, 75, 100]


def test_one_false_value_does_not_flatten_the_curve() -> None:
    low, high = span([3.0, 2.5, 2.2, 1e30, 2.1, 2.0], PLAIN)
    assert 1.9 < low < 2.0 and 3.0 < high < 3.2


def test_fixed_ends_stay() -> None:
    assert span([0.5], Axis("reward", str, 0.0, 1.0)) == (0.0, 1.0)


def line(*points: tuple[float, float]) -> Line:
    return Line("loss", "c1", [LinePoint(x, y, y, y) for x, y in points])


@pytest.mark.parametrize("points", [((1, 2.0),), ((1, 2.0), (2, 2.0)), ((1, 0.0), (2, 0.0)), ((1, -3.0), (2, 1e300))])
def test_few_or_equal_points_make_a_chart(points: tuple[tuple[float, float], ...]) -> None:
    html = Chart([line(*points), line()], PLAIN, PLAIN).html()
    assert "nan" not in html and "inf" not in html.replace("infinite", "")
    (drawn,) = re.findall(r'<polyline[^>]*points="([^"]*)"', html)
    assert len(drawn.split()) == max(2, len(points))


def test_the_chart_is_heard_with_its_first_and_last_values() -> None:
    chart = Chart([line((1, 9.0), (2, 4.0), (3, 2.0))], PLAIN, PLAIN)
    assert chart.summary() == "loss: 9 at 1, 2 at 3 rounds"
    assert chart.html().count('class="at"') == 3 and "3 rounds · loss 2" in chart.html()
