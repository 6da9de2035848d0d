"""Charts of several lines, with axes."""

from __future__ import annotations

import pytest

from peer.formatting import columns
from tui.panels.chart import Curve, amounts, chart, clock_times, steps_between

FALLING = [(float(place), 4.0 - place) for place in range(4)]


def drawn(*lines: Curve, width: int = 40, height: int = 8, unicode: bool = False) -> list[str]:
    return [row.plain for row in chart(lines, width, height, amounts, unicode=unicode)]


def test_a_falling_curve_begins_at_the_top_and_ends_at_the_bottom() -> None:
    rows = drawn(Curve("loss", "", FALLING))
    assert rows[0].startswith("      4 |*") and rows[5].startswith("      1 |") and rows[5].rstrip().endswith("*")
    assert rows[6] == f"        +{'+---------' * 3}+" and rows[7].split() == ["0", "1", "2", "3"]
    assert all(columns(row) <= 40 for row in rows)


def test_without_room_for_an_axis_the_curve_has_all_of_it() -> None:
    rows = drawn(Curve("loss", "", FALLING), height=4)
    assert len(rows) == 4 and all("|" in row for row in rows)


def test_lines_are_told_apart_by_names_at_their_ends_and_without_unicode_by_marks() -> None:
    rising = [(x, y + 1.0) for x, y in FALLING]
    rows = drawn(Curve("training", "green", FALLING), Curve("held out", "cyan", rising))
    assert [row.rstrip().rsplit(" ", 1)[-1] for row in rows if row.rstrip().endswith(("training", "out"))] == [
        "out",
        "training",
    ]
    assert any("*" in row for row in rows) and any("o" in row.rpartition(" held")[0] for row in rows)


def test_names_of_lines_that_end_together_stand_below_each_other() -> None:
    lines = [Curve(f"source {number}", "", [(0.0, 2.0), (1.0, 1.0)]) for number in range(5)]
    names = [row.rsplit("source ", 1)[1][0] for row in drawn(*lines, height=10) if "source" in row]
    assert names == ["0", "1", "2", "3", "4"]
    assert len([row for row in drawn(*lines, height=5) if "source" in row]) == 3, "as many as there are rows"


def test_first_rounds_do_not_flatten_the_others() -> None:
    steep = [(0.0, 900.0), *((float(place), 2.0 - place / 100) for place in range(1, 99))]
    rows = drawn(Curve("loss", "", steep), width=60)
    assert [row.split("|")[0].strip() for row in rows[:6]] == ["3", "", "", "2", "", ""]


def test_the_axis_of_a_short_run_reaches_its_first_rounds() -> None:
    short = [(0.0, 5.5), (1.0, 2.4), *((float(place), 1.5) for place in range(2, 30))]
    rows = drawn(Curve("loss", "", short), width=60)
    assert [row.split("|")[0].strip() for row in rows[:6]] == ["", "", "4", "", "2", ""]
    assert [row.count("*") for row in rows[:4]] == [1, 1, 1, 1], "the fall is drawn, and no value is cut at the edge"


def test_values_far_below_others_and_equal_values_have_labels() -> None:
    assert drawn(Curve("loss", "", [(0.0, 2.5), (5.0, 2.5)]))[3].startswith("  2.500 |*")
    rows = drawn(Curve("reward", "", [(0.0, -0.5), (1.0, 0.25)]))
    assert [row.split("|")[0].strip() for row in rows[:6]] == ["", "", "0.0", "", "", "-0.5"]


def test_many_values_are_averaged_into_the_room_there_is() -> None:
    points = [(float(number), float(number % 2)) for number in range(10_000)]
    rows = drawn(Curve("loss", "", points), width=30, height=5, unicode=True)
    assert len(rows) == 5 and all(columns(row) <= 30 for row in rows)


@pytest.mark.parametrize(("width", "height"), [(0, 0), (5, 2), (12, 1), (50, 0), (10, 9), (200, 3)])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_chart_keeps_to_its_room(width: int, height: int, unicode: bool) -> None:
    for points in ([], [(1.0, 2.0)], FALLING, [(0.0, 1e300), (1.0, -1e300)], [(0.0, 5e-324), (1e-300, 0.0)]):
        rows = drawn(
            Curve("宽宽宽宽宽宽宽宽宽宽", "", points), Curve("", "", points), width=width, height=height, unicode=unicode
        )
        assert len(rows) == height and all(columns(row) <= width for row in rows)


def test_amounts_stand_at_round_numbers() -> None:
    assert [text for _, text in amounts(0.0, 2.6e6, 4)] == ["0", "1.0 M", "2.0 M"]
    assert [steps_between(0.0, high, 5) for high in (1.0, 2.6, 9.0, 1e9)] == [0.2, 1.0, 2.0, 2e8]
    assert steps_between(3.0, 3.0, 5) == 1.0


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (45, ["00:00:00", "00:00:10", "00:00:20", "00:00:30", "00:00:40"]),
        (3600, ["00:00", "00:30", "01:00"]),
        (86_400, ["00:00", "08:00", "16:00", "00:00"]),
        (400_000, ["01 Jan", "03 Jan", "05 Jan"]),
    ],
)
def test_times_stand_at_round_hours(seconds: float, texts: list[str]) -> None:
    assert [text for _, text in clock_times(0.0, seconds, 5 if seconds < 60 else 3)] == texts
