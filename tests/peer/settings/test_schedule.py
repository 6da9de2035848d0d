"""Hours as a person writes them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from peer.settings.schedule import WEEK_MINUTES, read_schedule

MONDAY = datetime(2026, 11, 23)


def allowed(text: str) -> list[str]:
    """Hours of the week in which to compute, as "mon 18"."""
    schedule = read_schedule(text)
    hours = [MONDAY + timedelta(hours=hour) for hour in range(7 * 24)]
    return [hour.strftime("%a %H").lower() for hour in hours if schedule.allows(hour)]


def test_hours_go_past_midnight_and_days_past_sunday() -> None:
    assert allowed("fri 22:00-02:00") == ["fri 22", "fri 23", "sat 00", "sat 01"]
    assert allowed("sun 23:00-01:00") == ["mon 00", "sun 23"], "the week begins again"
    assert len(allowed("sat-mon")) == 3 * 24 and allowed("sat-mon")[0] == "mon 00"
    assert allowed("06:00-07:00") == [f"{day} 06" for day in ("mon", "tue", "wed", "thu", "fri", "sat", "sun")]
    assert len(allowed("mon-fri 18:00-08:00, sat-sun")) == 5 * 14 + 2 * 24 - 8, "saturday has its first eight hours twice"
    assert len(allowed("mon-sun")) == len(allowed("00:00-24:00")) == 7 * 24


def test_minutes_count() -> None:
    schedule = read_schedule("mon 18:30-18:45")
    assert [schedule.allows(MONDAY.replace(hour=18, minute=minute)) for minute in (29, 30, 44, 45)] == [
        False,
        True,
        True,
        False,
    ]


def test_the_next_change_is_told() -> None:
    schedule = read_schedule("mon-fri 18:00-08:00")
    assert schedule.next_change(MONDAY.replace(hour=12, minute=10, second=9)) == MONDAY.replace(hour=18)
    assert schedule.next_change(MONDAY.replace(hour=18)) == MONDAY + timedelta(hours=32)
    assert schedule.next_change(MONDAY + timedelta(days=5, hours=9)) == MONDAY + timedelta(days=7, hours=18)
    always = read_schedule("mon-sun")
    assert always.next_change(MONDAY) == MONDAY + timedelta(minutes=WEEK_MINUTES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mon,",
        "some day",
        "mon 18",
        "mon 25:00-26:00",
        "mon 18:60-19:00",
        "xyz",
        "mon-xyz",
        "mon 8-9",
        ",".join(["mon"] * 33),
    ],
)
def test_what_is_no_schedule_is_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="schedule|day"):
        read_schedule(text)
