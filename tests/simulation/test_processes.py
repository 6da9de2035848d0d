"""Processes that are stopped and killed, and the disks they leave."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from protocol.chain.store import Store
from protocol.disk import StoreFailed, StoreFull
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from tests.simulation import processes
from tests.simulation.determinism import deterministic_trio
from tests.simulation.disks import FaultyDisk, Platter
from tests.simulation.processes import PROCESS, Killed, Overseer, Process
from tests.simulation.runs import simulate
from tests.simulation.world import World

ME, TIP = PeerId("me"), Hash(b"\x07" * 32)


def run(scenario: object) -> None:
    with deterministic_trio(1):
        clock = MockClock(autojump_threshold=0)
        trio.run(scenario, clock=clock, instruments=[Overseer(clock)])  # type: ignore[arg-type]


async def ticking(process: Process, ticks: list[float], ends: list[str]) -> None:
    PROCESS.set(process)
    try:
        while True:
            await trio.sleep(1)
            ticks.append(trio.current_time())
    finally:
        ends.append("tidied up")


def test_a_killed_process_runs_no_finally_and_a_stopped_one_goes_on() -> None:
    async def scenario() -> None:
        process, ticks, ends = Process(ME, lambda: None), list[float](), list[str]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticking, process, ticks, ends)
            await trio.sleep(3.5)
            process.stop()
            await trio.sleep(10)
            assert len(ticks) == 3
            process.go_on()
            await trio.sleep(2)
            assert len(ticks) == 5, "the tick that was due came at once, the next a second later"
            process.kill()
            await trio.sleep(10)
            assert len(ticks) == 5 and ends == []
            process.bury()
            nursery.cancel_scope.cancel()
        assert ends == ["tidied up"], "only when the world ends"

    run(scenario)


def test_a_process_dies_at_a_given_step_and_has_a_clock_of_its_own() -> None:
    async def scenario() -> None:
        process, ticks = Process(ME, lambda: None), list[float]()
        process.ahead_s = 1000.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticking, process, ticks, [])
            await trio.sleep(0.5)
            process.dies_at = process.steps + 3
            begun = trio.current_time()
            await trio.sleep(20)
            assert len(ticks) == 2 and not process.alive
            assert ticks[0] > begun + 990
            process.bury()
            nursery.cancel_scope.cancel()

    run(scenario)


def test_the_clock_of_a_suspended_process_stands_still_and_its_deadlines_are_by_that_clock() -> None:
    async def scenario() -> None:
        process, seen = Process(ME, lambda: None), list[float]()

        async def waiting() -> None:
            PROCESS.set(process)
            await trio.sleep(1)
            for _ in range(2):
                with trio.move_on_at(trio.current_time() + 5):
                    await trio.sleep_forever()
                seen.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting)
            await trio.sleep(2)
            process.stop()
            await trio.sleep(100)
            process.ahead_s -= 100
            process.go_on()
            await trio.sleep(20)
            assert seen == [2, 7], "what was due came at once; then five seconds by its own clock"
            process.bury()

    run(scenario)


def disk(platter: Platter, fault: str | None = None, at: str = "") -> FaultyDisk:
    return FaultyDisk(platter, Process(ME, lambda: None), lambda operation: fault if operation == at else None)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_written_whole_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    platter = Platter(Random(seed))
    disk(platter).write_file(tmp_path / "record", b"old" * 100)
    platter.cut_power()
    assert (tmp_path / "record").read_bytes() == b"old" * 100
    with pytest.raises(Killed):
        disk(platter, "torn write", "write").write_file(tmp_path / "record", b"new" * 100)
    platter.cut_power()
    assert (tmp_path / "record").read_bytes() == b"old" * 100


def test_a_rename_that_was_not_synced_may_not_have_happened_and_bytes_may_be_torn(tmp_path: Path) -> None:
    seen = set()
    for seed in range(60):
        platter, folder = Platter(Random(seed)), tmp_path / str(seed)
        folder.mkdir()
        disk(platter).write_file(folder / "record", b"old" * 100)
        with pytest.raises(StoreFailed):
            disk(platter, "failing fsync", "sync").write_file(folder / "record", b"new" * 100)
        assert (folder / "record").read_bytes() == b"old" * 100, "bytes that could not be synced get no name"
        careless = disk(platter)
        careless.sync = careless.sync_folder = lambda _: None  # type: ignore[method-assign,assignment]
        careless.write_file(folder / "record", b"new" * 100)
        platter.cut_power()
        content = (folder / "record").read_bytes()
        seen.add("old" if content == b"old" * 100 else "new" if content == b"new" * 100 else "torn")
    assert seen == {"old", "new", "torn"}


def test_a_full_disk_says_so_and_changes_nothing(tmp_path: Path) -> None:
    platter = Platter(Random(1))
    disk(platter).write_file(tmp_path / "record", b"old")
    platter.full = True
    with pytest.raises(StoreFull, match="is full: make room there"):
        disk(platter).write_file(tmp_path / "record", b"new")
    with pytest.raises(StoreFull):
        disk(platter).allocate(tmp_path / "part", 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["record"]
    assert (tmp_path / "record").read_bytes() == b"old"


@pytest.mark.parametrize("seed", range(10))
def test_a_vote_that_is_read_at_a_start_outlives_the_next_power_cut(tmp_path: Path, seed: int) -> None:
    """The life before wrote it, and died because the folder could not be synced: it may not be relied on unsynced."""
    platter = Platter(Random(seed))
    Store(tmp_path, disk(platter)).votes.save(0, TIP, b"old")
    failing = disk(platter)
    store = Store(tmp_path, failing)
    failing.sync_folder = broken  # type: ignore[method-assign]
    with pytest.raises(StoreFailed, match="Input/output error"):
        store.votes.save(0, TIP, b"new")
    relied_on = Store(tmp_path, disk(platter)).votes.load(0, TIP)
    platter.cut_power()
    assert Store(tmp_path, disk(platter)).votes.load(0, TIP) == relied_on


def broken(folder: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_loop_that_waits_for_nothing_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MOST_STEPS", 1000)

    async def scenario(world: World) -> None:
        await trio.sleep(1)
        while True:
            await trio.lowlevel.checkpoint()

    failure = simulate(1, scenario).failure
    assert failure is not None and failure.endswith("goes round without waiting")
