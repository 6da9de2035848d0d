"""Hours in which a peer may compute, as a person writes them: "mon-fri 18:00-08:00, sat-sun".

Pure.  Days are three letters, one or a span of them; hours are local time, and may go past midnight into the next day.  Days
without hours are whole days, hours without days apply to every day.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES
MOST_SPANS = 32
_SPAN = re.compile(
    r"(?:(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))?)?\s*(?:(?P<from>\d{1,2}:\d{2})-(?P<to>\d{1,2}:\d{2}))?", re.ASCII
)
HOW = "write days and hours, as mon-fri 18:00-08:00, sat-sun"


@dataclass(frozen=True)
class Schedule:
    """Weekly schedule.  spans: (first minute of the week, minutes), from Monday 00:00.  text: as it was written."""

    text: str
    spans: tuple[tuple[int, int], ...]

    def allows(self, now: datetime) -> bool:
        """Return True if the peer may compute at `now` (local time)."""
        minute = _minute_of_week(now)
        return any((minute - begin) % WEEK_MINUTES < length for begin, length in self.spans)

    def next_change(self, now: datetime) -> datetime:
        """Return the next time at which `allows` changes; a week from now if it never does."""
        begun, allowed = now.replace(second=0, microsecond=0), self.allows(now)
        edges = sorted(
            {(edge - _minute_of_week(now)) % WEEK_MINUTES or WEEK_MINUTES for span in self.spans for edge in _edges(span)}
        )
        changes = (begun + timedelta(minutes=edge) for edge in edges)
        return next((at for at in changes if self.allows(at) is not allowed), begun + timedelta(days=7))


def read_schedule(text: str) -> Schedule:
    """Parse a schedule.  Raises ValueError with a sentence."""
    parts = [part.strip() for part in text.lower().split(",")]
    if len(parts) > MOST_SPANS:
        raise ValueError(f"a schedule has at most {MOST_SPANS} parts")
    return Schedule(text, tuple(span for part in parts for span in _spans(part)))


def _spans(part: str) -> list[tuple[int, int]]:
    match = _SPAN.fullmatch(part)
    if not part or match is None:
        raise ValueError(f"{part or 'nothing'} is no part of a schedule; {HOW}")
    first, last = match["first"] or "mon", match["last"] or match["first"] or "sun"
    if first not in DAYS or last not in DAYS:
        raise ValueError(f"{first if first not in DAYS else last} is no day; {HOW}")
    begin = _minutes(match["from"]) if match["from"] else 0
    end = _minutes(match["to"]) if match["to"] else DAY_MINUTES
    length = (end - begin) % DAY_MINUTES or DAY_MINUTES
    count = (DAYS.index(last) - DAYS.index(first)) % 7 + 1
    return [((DAYS.index(first) + day) % 7 * DAY_MINUTES + begin, length) for day in range(count)]


def _minutes(text: str) -> int:
    hours, minutes = map(int, text.split(":"))
    if minutes > 59 or hours * 60 + minutes > DAY_MINUTES:
        raise ValueError(f"{text} is no time of day; {HOW}")
    return hours * 60 + minutes


def _minute_of_week(now: datetime) -> int:
    return now.weekday() * DAY_MINUTES + now.hour * 60 + now.minute


def _edges(span: tuple[int, int]) -> tuple[int, int]:
    begin, length = span
    return begin % WEEK_MINUTES, (begin + length) % WEEK_MINUTES
