"""Cores and memory of a container are its control group's, of either version, or of a group above it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from peer.resources import computer
from peer.resources.computer import available_memory, usable_cores

GB = 1 << 30


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A computer with 8 single-threaded cores."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(computer, "PROCESSORS", tmp_path / "none")


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    return path


def test_without_groups_the_affinity_decides(tmp_path: Path, cores: None) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 8


def test_threads_of_one_core_count_once(tmp_path: Path, cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        put(tmp_path / f"cpu/cpu{number}/topology/thread_siblings_list", f"{number % 4},{number % 4 + 4}")
    monkeypatch.setattr(computer, "PROCESSORS", tmp_path / "cpu")
    assert usable_cores(tmp_path, tmp_path / "none") == 4


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("junk", 8)])
def test_quota_of_the_second_version(tmp_path: Path, cores: None, quota: str, expected: int) -> None:
    mine = put(tmp_path / "membership", "0::/a/b")
    put(tmp_path / "groups/a/b/cpu.max", "max 100000")
    put(tmp_path / "groups/a/cpu.max", quota)
    assert usable_cores(tmp_path / "groups", mine) == expected


def test_quota_of_the_first_version_inside_a_container(tmp_path: Path, cores: None) -> None:
    mine = put(tmp_path / "membership", "3:cpuset:/\n2:cpu,cpuacct:/docker/not-visible-here\n0::/")
    put(tmp_path / "groups/cpu/cpu.cfs_quota_us", "200000")
    put(tmp_path / "groups/cpu/cpu.cfs_period_us", "100000")
    assert usable_cores(tmp_path / "groups", mine) == 2
    put(tmp_path / "groups/cpu/cpu.cfs_quota_us", "-1")
    assert usable_cores(tmp_path / "groups", mine) == 8


def test_memory_is_the_least_of_all_limits(tmp_path: Path) -> None:
    free = psutil.virtual_memory().total
    mine = put(tmp_path / "membership", "0::/a/b")
    put(tmp_path / "groups/a/b/memory.max", "max")
    assert 0 < available_memory(tmp_path / "groups", mine) <= free
    put(tmp_path / "groups/a/memory.max", str(GB))
    put(tmp_path / "groups/a/memory.current", str(GB // 2))
    put(tmp_path / "groups/a/memory.stat", f"anon 5\ninactive_file {GB // 4}")
    assert available_memory(tmp_path / "groups", mine) == GB - GB // 2 + GB // 4
    put(tmp_path / "groups/a/memory.current", str(2 * GB))
    assert available_memory(tmp_path / "groups", mine) == 0


def test_memory_of_the_first_version(tmp_path: Path) -> None:
    mine = put(tmp_path / "membership", "4:memory:/x")
    put(tmp_path / "groups/memory/x/memory.limit_in_bytes", "9223372036854771712")
    put(tmp_path / "groups/memory/x/memory.usage_in_bytes", str(GB))
    before = available_memory(tmp_path / "groups", mine)
    assert before > GB // 8
    put(tmp_path / "groups/memory/x/memory.limit_in_bytes", str(GB + 4096))
    put(tmp_path / "groups/memory/x/memory.stat", "inactive_file 7\ntotal_inactive_file 1000")
    assert available_memory(tmp_path / "groups", mine) == 5096
