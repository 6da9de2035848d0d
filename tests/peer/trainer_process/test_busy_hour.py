"""The share of the last hour in which a trainer trained."""

from __future__ import annotations

import pytest

from peer.trainer_process.process import HOUR_S, BusyHour


def test_before_an_hour_has_passed_the_time_since_the_start_counts() -> None:
    hour, times = BusyHour(100.0), iter([110.0, 140.0])
    assert hour.share(100.0) == 0.0
    with hour.shift(lambda: next(times)):
        assert hour.share(120.0) == pytest.approx(0.5), "the running shift counts"
    assert hour.share(160.0) == pytest.approx(0.5)


def test_what_is_older_than_an_hour_is_forgotten() -> None:
    hour, times = BusyHour(0.0), iter([0.0, 1800.0, 1800.0, 2700.0])
    for _ in range(2):
        with hour.shift(lambda: next(times)):
            pass
    assert hour.share(HOUR_S) == pytest.approx(0.75)
    assert hour.share(HOUR_S + 900) == pytest.approx(0.5)
    assert hour.share(3 * HOUR_S) == 0.0


def test_a_pause_does_not_count() -> None:
    hour, times = BusyHour(0.0), iter([0.0, 100.0])
    with hour.shift(lambda: next(times)):
        hour.pause(20.0)
        hour.resume(80.0)
    hour.resume(100.0)
    assert hour.share(100.0) == pytest.approx(0.4), "and none begins outside of a shift"


def test_waits_within_a_shift_do_not_count() -> None:
    hour, times = BusyHour(0.0), iter([0.0, 100.0, 100.0, 200.0])
    with hour.shift(lambda: next(times)):
        hour.leave_out(40.0, 100.0)
    assert hour.share(100.0) == pytest.approx(0.6)
    with hour.shift(lambda: next(times)):
        hour.leave_out(900.0, 200.0)
    hour.leave_out(10.0, 200.0)
    assert hour.share(200.0) == pytest.approx(0.3), "no more than the shift, and nothing outside of one"
