"""What keeps a peer out of its run, and for how long."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from peer.daemon.away import FIRST_WAIT_S, LONGEST_WAIT_S, LOOK_S, SHORT_S, Away, full_disk
from peer.resources.room import DiskRoom
from peer.rests.keeper import Rest
from peer.rests.reasons import MonthlyQuota, MonthTraffic
from protocol.disk import StoreFailed, StoreFull
from protocol.events.status import WhyIdle

NOVEMBER = datetime(2026, 11, 23, 12, 0)
GB = 10**9
STATE_BYTES = GB


def test_only_a_disk_without_room_is_a_reason() -> None:
    full = StoreFull("the disk that holds /data is full: make room there")
    rest = full_disk(ExceptionGroup("", [ValueError(), ExceptionGroup("", [full])]))
    assert rest is not None and rest.why is WhyIdle.DISK_FULL
    assert rest.detail == "the disk that holds /data is full: make room there; the peer resumes by itself when there is room"
    small = full_disk(OSError(errno.ENOSPC, "No space left on device", "/data/incarnation"))
    assert small is not None and "the disk that holds /data/incarnation is full" in small.detail
    assert full_disk(OSError(errno.EACCES, "Permission denied")) is None
    assert full_disk(ExceptionGroup("", [StoreFailed("the disk failed"), ValueError()])) is None


@pytest.fixture(autouse=True)
def _at_once(no_threads: None) -> None:
    """The disk is looked at in a thread."""


class Table:
    """free: bytes on the disk.  now, limit: what the clock and the person say."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.now, self.limit, self.told = 0, NOVEMBER, GB, list[Rest]()
        self.scratch_bytes = 0
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=self.free))
        self.traffic = MonthTraffic(folder)
        quota = MonthlyQuota(self.traffic, self.clock, lambda: self.limit)
        self.away = Away(quota, DiskRoom(folder), lambda: (folder / "run", STATE_BYTES, self.scratch_bytes))

    async def clock(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self.now

    def waited(self, rest: Rest, then: Callable[[], None] = lambda: None, after_s: float = 0.0) -> float:
        """Seconds until it goes on; `then` happens after some of them."""
        seconds: list[float] = []

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(after_s)
                then()

        async def wait() -> None:
            begun = trio.current_time()
            await self.away.until_over(rest, self.told.append)
            seconds.append(trio.current_time() - begun)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        return seconds[0]


FULL = Rest(WhyIdle.DISK_FULL, "full")
SPENT = Rest(WhyIdle.MONTHLY_QUOTA, "spent")


def test_it_goes_on_when_there_is_room_for_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path, monkeypatch)
    assert 102.0 < table.waited(FULL, lambda: setattr(table, "free", 4 * GB), 102.0) <= 102.0 + LOOK_S
    (told,) = table.told
    assert told.why is WhyIdle.DISK_FULL and "the run needs about 3.0 GB more on disk" in told.detail


@pytest.mark.slow
def test_a_disk_that_is_full_again_soon_makes_it_wait_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, waits = Table(tmp_path, monkeypatch), list[float]()
    table.free = 4 * GB
    for _ in range(9):
        table.away.stayed(SHORT_S / 2)
        waits.append(table.waited(FULL))
    expected = [LOOK_S, *(min(FIRST_WAIT_S * 2**count, LONGEST_WAIT_S) for count in range(8))]
    assert waits == pytest.approx(expected)
    table.away.stayed(SHORT_S * 2)
    assert table.waited(FULL) == pytest.approx(LOOK_S)


def test_a_changed_setting_is_looked_at_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path, monkeypatch)
    table.free = 4 * GB
    for _ in range(5):
        table.away.stayed(0.0)
    assert table.waited(FULL, table.away.look_now, 7.0) == pytest.approx(7.0)

    table.traffic.count(2 * GB, NOVEMBER)

    def raised() -> None:
        table.limit = 3 * GB
        table.away.look_now()

    assert table.waited(SPENT, raised, 7.0) == pytest.approx(7.0)
