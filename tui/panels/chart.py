"""Charts of several lines with axes, ticks and names, drawn with braille dots, or with plain characters without Unicode.

A line's name stands at its right end, in the line's colour, so lines can be told apart without colours as well.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from peer.formatting import columns, fit
from protocol.formatting import amount
from tui.panels.drawing import FAINT, line

LABEL = 7
"""Columns of the numbers at the left."""
NAME = 14
"""Columns of a line's name, at most."""
LEAST_ROOM = 12
"""Columns of dots below which names are left out."""
AXES_FROM = 5
"""Smallest height, in lines, of a chart with a horizontal axis."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character: by row, then column."""
BRAILLE = 0x2800
STEP_BACK = "◀<"
"""Mark of a step back on the horizontal axis, with and without Unicode."""
MARKS = "*o+x#%@&"
"""Marks of the lines on terminals without Unicode."""
BETWEEN_TICKS = 10
"""Columns between two ticks of the horizontal axis, at least."""

OUTLIER = 2.0
"""Values above this many times the median are drawn at the upper edge of a chart with `MANY_POINTS` or more."""
MANY_POINTS = 64
"""Points of all lines from which the first rounds of a run would flatten all others; with fewer, all are shown."""
LEAST_SPAN = 1e-9
"""Difference of values below which a chart takes them for equal."""
DAY = 86_400
TIME_STEPS = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14_400, 28_800, DAY, 2 * DAY, 7 * DAY, 28 * DAY)
"""Steps between ticks of a time axis, in seconds."""


@dataclass(frozen=True)
class Curve:
    """A named line of a chart.  points: pairs of x and y, ascending in x; all numbers are finite."""

    name: str
    style: str
    points: Sequence[tuple[float, float]]


Ticks = Callable[[float, float, int], list[tuple[float, str]]]
"""Function from two ends of an axis and a number to the places and texts of at most about so many ticks between them."""


def steps_between(low: float, high: float, count: int) -> float:
    """Return the smallest step of 1, 2 or 5 times a power of ten that makes at most `count` ticks."""
    least = (high - low) / max(1, count)
    if not least > 0 or not math.isfinite(least):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least), 10 * power)


def amounts(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Return the ticks of an axis of amounts."""
    step = max(1.0, steps_between(low, high, count))
    first = math.ceil(low / step)
    return [(place * step, amount(place * step)) for place in range(first, first + count + 1) if place * step <= high]


def clock_times(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Return the ticks of an axis of local times; low, high: seconds since 1970."""
    step = next((step for step in TIME_STEPS if (high - low) / step <= max(1, count)), 28 * DAY)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < DAY else "%d %b"
    offset = time.localtime(low).tm_gmtoff
    first = math.ceil((low + offset) / step)
    places = [place * step - offset for place in range(first, first + count + 1)]
    return [(place, time.strftime(form, time.localtime(place))) for place in places if place <= high]


def chart(
    lines: Sequence[Curve],
    width: int,
    height: int,
    ticks: Ticks,
    *,
    steps_back: Sequence[float] = (),
    unicode: bool = True,
) -> list[Text]:
    """Draw the lines in `height` rows of at most `width` columns; lines without points are left out.

    steps_back: places on the horizontal axis that are marked, because rounds after them were given up there.
    In a long run, values above `OUTLIER` times the median are drawn at the upper edge.
    """
    drawn = [each for each in lines if each.points]
    names = max((columns(fit(each.name, NAME)) for each in drawn), default=0) + 1 if len(drawn) > 1 else 0
    has_axes = height >= AXES_FROM
    rows = height - 2 if has_axes else height
    room = width - LABEL - 2 - names
    if room < LEAST_ROOM:
        names, room = 0, width - LABEL - 2
    if not drawn or room < 4 or rows < 1:
        return [line("")] * max(0, height)
    xs = [x for each in drawn for x in (each.points[0][0], each.points[-1][0])]
    ys = [y for each in drawn for _, y in each.points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    if len(ys) >= MANY_POINTS and (usual := statistics.median(ys)) > 0:
        high = min(high, OUTLIER * usual)
    if high - low < LEAST_SPAN:
        high = low
    canvas = _Canvas(room, rows, unicode)
    for number, each in enumerate(drawn):
        canvas.draw(number, each.points, (left, right), (low, high))
    labels, ends = _labels(low, high, rows), _ends(drawn, low, high, rows) if names else {}
    found = []
    for row in range(rows):
        end = ends.get(row)
        name = (" " + fit(drawn[end].name, NAME), drawn[end].style) if end is not None else ""
        edge = ("┤" if row in labels else "│") if unicode else "|"
        found.append(line((f"{labels.get(row, ''):>{LABEL}} {edge}", FAINT), *canvas.cells(row, drawn), name))
    return found + (_horizontal(left, right, room, ticks, steps_back, unicode) if has_axes else [])


class _Canvas:
    """Cells of a chart: the dots of all lines, and for each cell the line that drew there last."""

    def __init__(self, room: int, rows: int, unicode: bool) -> None:
        self._unicode = unicode
        self._across, self._down = (2, 4) if unicode else (1, 1)
        self._room, self._rows = room, rows
        self._bits = [[0] * room for _ in range(rows)]
        self._owners = [[-1] * room for _ in range(rows)]

    def draw(
        self, number: int, points: Sequence[tuple[float, float]], xs: tuple[float, float], ys: tuple[float, float]
    ) -> None:
        """Draw a line through the mean of the points in each column."""
        most, deepest = self._room * self._across - 1, self._rows * self._down - 1
        sums: dict[int, tuple[float, int]] = {}
        for x, y in points:
            column = _placed(x, xs[0], xs[1], most)
            total, count = sums.get(column, (0.0, 0))
            sums[column] = total + y, count + 1
        before: tuple[int, int] | None = None
        for column, (total, count) in sorted(sums.items()):
            row = deepest - _placed(total / count, ys[0], ys[1], deepest)
            self._connect(number, before or (column, row), (column, row))
            before = column, row

    def _connect(self, number: int, start: tuple[int, int], end: tuple[int, int]) -> None:
        length = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(length + 1):
            column = start[0] + round((end[0] - start[0]) * step / length)
            row = start[1] + round((end[1] - start[1]) * step / length)
            cell_row, cell = row // self._down, column // self._across
            self._bits[cell_row][cell] |= DOTS[row % 4][column % 2] if self._unicode else 1
            self._owners[cell_row][cell] = number

    def cells(self, row: int, lines: Sequence[Curve]) -> list[tuple[str, str]]:
        """Return the cells of a row as parts of one style each."""
        parts: list[tuple[str, str]] = []
        for bits, owner in zip(self._bits[row], self._owners[row], strict=True):
            style = lines[owner].style if bits else ""
            cell = " " if not bits else chr(BRAILLE + bits) if self._unicode else MARKS[owner % len(MARKS)]
            if parts and parts[-1][1] == style:
                parts[-1] = parts[-1][0] + cell, style
            else:
                parts.append((cell, style))
        return parts


def _placed(value: float, low: float, high: float, most: int) -> int:
    """Return the place of a value between 0 and `most`; in the middle if there is only one value."""
    return min(most, max(0, round((value - low) / (high - low) * most))) if high > low else most // 2


def _labels(low: float, high: float, rows: int) -> dict[int, str]:
    """Return the numbers at the left, by row."""
    if high <= low:
        return {rows // 2: f"{low:.3f}"}
    for count in (max(1, rows // 2), max(1, rows - 1)):
        step = steps_between(low, high, count)
        first = math.ceil(low / step)
        values = [place * step for place in range(first, first + rows + 1) if place * step <= high]
        if len(values) > 1:
            break
    else:
        return {0: f"{high:.3g}", rows - 1: f"{low:.3g}"}
    digits = min(6, max(0, -math.floor(math.log10(step))))
    return {rows - 1 - _placed(value, low, high, rows - 1): f"{value:.{digits}f}"[:LABEL] for value in values}


def _ends(lines: Sequence[Curve], low: float, high: float, rows: int) -> dict[int, int]:
    """Return the line whose name stands in each row: near its last value, in the order of these values."""
    order = sorted(range(len(lines)), key=lambda number: -lines[number].points[-1][1])[:rows]
    places: list[int] = []
    for number in order:
        wanted = rows - 1 - _placed(lines[number].points[-1][1], low, high, rows - 1)
        places.append(max(wanted, places[-1] + 1) if places else wanted)
    for place in range(len(places) - 1, -1, -1):  # names below the last row push the others up
        places[place] = min(places[place], rows - len(places) + place)
    return dict(zip(places, order, strict=True))


def _horizontal(
    left: float, right: float, room: int, ticks: Ticks, steps_back: Sequence[float], unicode: bool
) -> list[Text]:
    """Draw the horizontal axis, its numbers, and a mark for each step back."""
    dash, tick, corner = ("─", "┬", "└") if unicode else ("-", "+", "+")
    marks, texts, free = [dash] * room, [" "] * room, 0
    for value, text in ticks(left, right, max(1, room // BETWEEN_TICKS)):
        column = _placed(value, left, right, room - 1)
        start = min(max(0, column - len(text) // 2), room - len(text))
        if start < free:
            continue
        marks[column] = tick
        texts[start : start + len(text)] = text
        free = start + len(text) + 1
    for place in steps_back:
        if left <= place <= right:
            marks[_placed(place, left, right, room - 1)] = STEP_BACK[not unicode]
    edge = " " * (LABEL + 1)
    return [line((f"{edge}{corner}{''.join(marks)}", FAINT)), line((f"{edge} {''.join(texts)}", FAINT))]
