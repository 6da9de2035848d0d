"""Line charts as inline SVG, which need no script and fit any width.

A chart has no coordinates in pixels: the lines are stretched to the width, and text is placed by percentages, so that it
keeps its size on a phone.  Colours and the readout under the pointer come from the page's style sheet, by class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle, pairwise

UNITS = 2000
"""Width and height of the plot's own coordinates."""
MOST_READOUTS = 120
"""Places along a chart at which the pointer shows the values."""
TICKS = 5
OUTLIER = 2.0
"""Values above this multiple of the median are drawn at the upper edge of an axis with `plausible`: neither the first rounds
of a long run nor a false claim may flatten the rest of the curve."""
MANY_POINTS = 64
"""Number of points from which plausible values are cut off as well; with fewer points, the first rounds matter most."""


@dataclass(frozen=True)
class LinePoint:
    """Point of a line at x, y.  low, high: edges of the band around the line."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """A named line.  style: class in the style sheet, which gives its colour."""

    name: str
    style: str
    points: Sequence[LinePoint]


@dataclass(frozen=True)
class Axis:
    """An axis.

    name: unit of its values.  show: formats a value.  least, most: fixed ends; None if they follow from the values.
    plausible: value up to which an axis of few points always shows values; None to show all values.
    whole: only whole numbers are marked.
    """

    name: str
    show: Callable[[float], str]
    least: float | None = None
    most: float | None = None
    plausible: float | None = None
    whole: bool = False


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return about `TICKS` round values from `low` to `high`.  whole: only whole numbers."""
    if not high > low:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    steps = [size * each for each in (1, 2, 2.5, 5, 10)]
    if whole:
        steps = [each for each in steps if each >= 1 and each == round(each)] or [1.0]
    step = min(steps, key=lambda each: abs((high - low) / each - TICKS))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def span(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """Return the ends of an axis for these values, of which at least one is required."""
    ordered = sorted(values)
    limit = math.inf
    if axis.plausible is not None:
        limit = max(OUTLIER * ordered[len(ordered) // 2], axis.plausible if len(ordered) < MANY_POINTS else -math.inf)
    low = axis.least if axis.least is not None else ordered[0]
    high = axis.most if axis.most is not None else max((each for each in ordered if each <= limit), default=ordered[-1])
    margin = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
    return (
        low if axis.least is not None else low - margin,
        high if axis.most is not None else high + margin,
    )


@dataclass(frozen=True)
class ChartMark:
    """A place on the horizontal axis at which a vertical line stands.  text: shown under the pointer."""

    x: float
    text: str


class Chart:
    """A chart of `lines`, at least one of which has a point.  marks: vertical lines, drawn if they are within the chart."""

    def __init__(self, lines: Sequence[Line], x: Axis, y: Axis, marks: Sequence[ChartMark] = ()) -> None:
        self._lines = [line for line in lines if line.points]
        self._x, self._y = x, y
        points = [point for line in self._lines for point in line.points]
        self._left, self._right = min(point.x for point in points), max(point.x for point in points)
        self._low, self._high = span([point.y for point in points], y)
        self._marks = [mark for mark in marks if self._left <= mark.x <= self._right]

    def html(self) -> str:
        """Return the chart: the plot with labels on the left and below."""
        # Labels of the vertical axis stand in a column of their own, so that they never cover a line.
        levels = ticks(self._low, self._high, whole=self._y.whole)
        places = ticks(self._left, self._right, whole=self._x.whole)
        left = "".join(f'<text x="100%" y="{self._down(each)}%">{escape(self._y.show(each))}</text>' for each in levels)
        below = "".join(
            f'<text x="{self._across(each)}%" y="70%"{spare}>{escape(self._x.show(each))}</text>'
            for each, spare in zip(reversed(places), cycle(("", ' class="spare"')))  # a narrow screen leaves these out
        )
        grid = "".join(f'<line x1="0" x2="100%" y1="{self._down(each)}%" y2="{self._down(each)}%"/>' for each in levels)
        drawn = "".join(self._drawn(line) for line in self._lines)
        marks = "".join(
            f'<line class="mark" x1="{self._across(mark.x)}%" x2="{self._across(mark.x)}%" y1="0" y2="100%">'
            f"<title>{escape(mark.text)}</title></line>"
            for mark in self._marks
        )
        return (
            f'<div class="chart"><svg class="levels" aria-hidden="true">{left}</svg>'
            f'<svg class="plot" role="img" aria-label="{escape(self.summary())}"><g class="grid">{grid}</g>'
            f'<svg viewBox="0 0 {UNITS} {UNITS}" preserveAspectRatio="none" width="100%" height="100%">{drawn}</svg>'
            f"{marks}{self._readouts()}</svg>"
            f'<svg class="places" aria-hidden="true">{below}</svg><p class="axis">{escape(self._x.name)}</p></div>'
        )

    def legend(self) -> str:
        """Return the names of the lines with their colours and newest values."""
        items = "".join(
            '<li><svg width="18" height="10" aria-hidden="true">'
            f'<line class="line {line.style}" x1="1" x2="17" y1="5" y2="5"/></svg>'
            f"<bdi>{escape(line.name)}</bdi> <b>{escape(self._y.show(line.points[-1].y))}</b></li>"
            for line in self._lines
        )
        return f'<ul class="legend">{items}</ul>'

    def summary(self) -> str:
        """Return the chart in a sentence for each line, for people who hear the page."""
        show_x, show = self._x.show, self._y.show
        return ". ".join(
            f"{line.name}: {show(line.points[0].y)} at {show_x(line.points[0].x)}, "
            f"{show(line.points[-1].y)} at {show_x(line.points[-1].x)} {self._x.name}"
            for line in self._lines
        )

    def _across(self, x: float) -> float:
        """Return the place of a value in percent of the width."""
        return round(100 * (x - self._left) / (self._right - self._left), 2) if self._right > self._left else 50.0

    def _down(self, y: float) -> float:
        """Return the place of a value in percent of the height, from above; beyond the edges it is not drawn."""
        share = (self._high - y) / (self._high - self._low)
        return round(100 * min(2.0, max(-1.0, share)), 2)

    def _at(self, x: float, y: float) -> str:
        return f"{round(self._across(x) * UNITS / 100)},{round(self._down(y) * UNITS / 100)}"

    def _drawn(self, line: Line) -> str:
        band = ""
        if any(point.low < point.high for point in line.points):
            upper = [self._at(point.x, point.high) for point in line.points]
            lower = [self._at(point.x, point.low) for point in reversed(line.points)]
            band = f'<polygon class="band {line.style}" points="{" ".join(upper + lower)}"/>'
        path = [self._at(point.x, point.y) for point in line.points]
        dot = ""
        if len(path) == 1:
            path, dot = path * 2, " dot"  # a line of length zero, whose round ends make a dot
        points = " ".join(path)
        return band + f'<polyline class="line {line.style}{dot}" points="{points}" vector-effect="non-scaling-stroke"/>'

    def _readouts(self) -> str:
        """Return an area for each place along the chart, which shows the values there while the pointer is on it."""
        xs = sorted({point.x for line in self._lines for point in line.points})
        step = max(1, -(-len(xs) // MOST_READOUTS))
        chosen = xs[::-1][::step][::-1]
        edges = [self._across((before + after) / 2) for before, after in pairwise(chosen)]
        bounds = list(zip([0.0, *edges], [*edges, 100.0], strict=True))
        nearest = [_nearest(line.points, chosen) for line in self._lines]
        areas = []
        for number, (x, (start, end)) in enumerate(zip(chosen, bounds, strict=True)):
            values = [
                f"{line.name} {self._y.show(point.y)}"
                for line, points in zip(self._lines, nearest, strict=True)
                if (point := points[number]) is not None
            ]
            told = " · ".join([f"{self._x.show(x)} {self._x.name}", *values])
            at = self._across(x)
            side = ' class="first"' if at < 35 else ' class="last"' if at > 65 else ""  # keeps a long text in the chart
            areas.append(
                f'<g class="at"><rect x="{start}%" width="{round(end - start, 2)}%" height="100%"/>'
                f'<line x1="{at}%" x2="{at}%" y1="0" y2="100%"/>'
                f'<text x="{at}%" y="-8"{side}>{escape(told)}</text></g>'
            )
        return "".join(areas)


def _nearest(points: Sequence[LinePoint], xs: Sequence[float]) -> list[LinePoint | None]:
    """Return for each of the ascending `xs` the last point that is not beyond it; None before the first point."""
    found: list[LinePoint | None] = []
    place = -1
    for x in xs:
        while place + 1 < len(points) and points[place + 1].x <= x:
            place += 1
        found.append(points[place] if place >= 0 else None)
    return found
