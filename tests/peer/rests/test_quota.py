"""What is counted in a month, what survives, and when the quota is used up."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import trio
import trio.testing

from peer.rests.keeper import Rest
from peer.rests.quota import FILE, KEEP_S, LOOK_S, MonthlyQuota, MonthTraffic, next_month
from protocol.wire.presence import WhyIdle

NOVEMBER = datetime(2026, 11, 23, 12, 0)
DECEMBER = datetime(2026, 12, 1, 0, 0)
GB = 10**9


def test_a_month_is_counted_from_its_first_day_to_its_last(tmp_path: Path) -> None:
    traffic = MonthTraffic(tmp_path)
    for moved, now in ((5, NOVEMBER), (7, NOVEMBER.replace(day=30, hour=23, minute=59)), (11, DECEMBER)):
        traffic.count(moved, now)
    assert (traffic.month, traffic.bytes) == ("2026-12", 11)
    assert next_month(NOVEMBER) == DECEMBER and next_month(DECEMBER) == datetime(2027, 1, 1)


def test_it_is_kept_and_a_file_that_is_none_says_nothing(tmp_path: Path) -> None:
    traffic = MonthTraffic(tmp_path)
    traffic.count(5 * GB, NOVEMBER)
    traffic.keep()
    again = MonthTraffic(tmp_path)
    assert (again.month, again.bytes) == ("2026-11", 5 * GB)
    written = (tmp_path / FILE).stat().st_mtime_ns
    again.keep()
    assert (tmp_path / FILE).stat().st_mtime_ns == written, "nothing has changed"
    for wrong in (
        "",
        "[]",
        "[" * 5000,
        '{"month": "2026-11", "bytes": -1}',
        '{"month": 3, "bytes": 1}',
        '{"month": "2026-11"}',
    ):
        (tmp_path / FILE).write_text(wrong)
        assert MonthTraffic(tmp_path).bytes == 0


class Table:
    """now, moved, quota: what the clock, the network and the person say."""

    def __init__(self, folder: Path, quota: int | None) -> None:
        self.now, self.moved, self.limit, self.told = NOVEMBER, 0, quota, list[Rest]()
        self.traffic = MonthTraffic(folder)
        self.quota = MonthlyQuota(self.traffic, self.clock, lambda: self.limit)

    async def clock(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self.now

    def live(self, then: Callable[[], None], seconds: float = 10 * LOOK_S) -> None:
        """Some seconds; `then` happens in their middle."""

        async def main() -> None:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.quota.watch, lambda: self.moved, self.told.append)
                    await trio.sleep(seconds / 2)
                    then()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.02))  # it writes in a thread


def test_at_the_quota_it_rests_and_says_until_when(tmp_path: Path) -> None:
    table = Table(tmp_path, 2 * GB)
    table.live(lambda: setattr(table, "moved", 2 * GB))
    (rest,) = table.told
    assert rest.why is WhyIdle.MONTHLY_QUOTA
    assert "2.0 GB (monthly_quota)" in rest.detail and "goes on at 2026-12-01, or with a larger quota" in rest.detail
    assert MonthTraffic(tmp_path).bytes == 2 * GB
    later = Table(tmp_path, 2 * GB)
    assert trio.run(later.quota.rest) == rest, "also after a restart"
    later.limit = 3 * GB
    assert trio.run(later.quota.rest) is None
    later.limit, later.now = 2 * GB, DECEMBER
    assert trio.run(later.quota.rest) is None


def test_without_a_quota_all_is_counted_all_the_same_and_a_new_network_goes_on_with_it(tmp_path: Path) -> None:
    table = Table(tmp_path, None)
    table.live(lambda: setattr(table, "moved", GB))
    table.moved = 0
    table.live(lambda: setattr(table, "moved", 2 * GB))
    assert table.told == [] and table.traffic.bytes == 3 * GB


def test_a_killed_peer_loses_some_seconds_of_what_moved(tmp_path: Path) -> None:
    table, seen = Table(tmp_path, None), list[int]()
    table.moved = GB
    table.live(lambda: seen.append(MonthTraffic(tmp_path).bytes), 4 * KEEP_S)
    assert seen == [GB], "it was on the disk meanwhile"


def test_a_disk_that_takes_nothing_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("peer.rests.quota.write_atomically", full)
    table = Table(tmp_path, 2 * GB)
    table.live(lambda: setattr(table, "moved", 2 * GB), 4 * KEEP_S)
    assert len(table.told) == 1


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    traffic = MonthTraffic(tmp_path)
    traffic.count(12, NOVEMBER)
    traffic.keep()
    assert json.loads((tmp_path / FILE).read_text()) == {"month": "2026-11", "bytes": 12}
