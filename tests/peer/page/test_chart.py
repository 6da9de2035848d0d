"""Axes of charts: round ticks, ends that one false value does not move, and a chart of a single point."""

from __future__ import annotations

import re

import pytest

from peer.page.chart import Axis, Chart, Line, LinePoint, span, ticks
from peer.page.document import LOSS

PLAIN = Axis("rounds", lambda value: f"{value:g}")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (1, 9_999, [2000, 4000, 6000, 8000]),
        (2.0, 5.1, [2, 2.5, 3, 3.5, 4, 4.5, 5]),
        (3, 3, [3]),
        (-1e30, 1e30, [-1e30, -5e29, 0, 5e29, 1e30]),
    ],
)
def test_ticks_are_round_values_within_the_ends(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[3.0, 2.5, 2.2, 1e30, 2.1, 2.0], [2e5, 3.0, 2.0], [3.0, 2.0, 17.0]])
def test_one_false_value_does_not_flatten_the_curve(values: list[float]) -> None:
    low, high = span(values, LOSS)
    assert 1.9 < low < 2.0 and 3.0 < high < 3.2


@pytest.mark.parametrize(
    "losses", [[9.0, 3.0, 2.5, 2.2], [12.5, 0.4, 0.1, 0.03, 0.02], [5.5, 1.0], [11.0], [5.6, *[0.5] * 62], [0.0, 0.0, 5.0]]
)
def test_axis_of_a_short_run_reaches_its_first_rounds(losses: list[float]) -> None:
    low, high = span(losses, LOSS)
    assert low < min(losses) and high > max(losses)


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
