"""Cores and memory of a container are its control group's, of either version, or of a group above it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from peer.resources import computer
from peer.resources.computer import WANTED, available_memory, memory_limit, usable_cores
from protocol.transport.inbound_policy import InboundLimits

# ------------------------------------------------------------------------------------------------------------------------
# The limit of open files is raised, and inbound connections keep below it.


HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
PROGRAM = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from peer.resources.computer import raise_open_files
print(raise_open_files(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("soft", "hard", "then"), [(256, 1024, 1024), (700, 700, 700)])
def test_the_limit_is_raised_as_far_as_it_goes(soft: int, hard: int, then: int) -> None:
    assert HARD == resource.RLIM_INFINITY or hard <= HARD, "this computer allows fewer files than the test sets"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(soft), str(hard)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(then), str(then)]


@pytest.mark.parametrize("files", [256, 1024, 2048, WANTED])
def test_inbound_connections_leave_room_for_everything_else(files: int) -> None:
    limits = InboundLimits.within(files)
    taken = limits.queue + limits.strangers + limits.greeted
    assert taken <= max(files - 256, 3 * 16) and limits.greeted >= 16
    assert limits == InboundLimits() or files < 2048


# ------------------------------------------------------------------------------------------------------------------------


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
    assert memory_limit(tmp_path / "groups", mine) is None
    put(tmp_path / "groups/a/memory.max", str(GB))
    put(tmp_path / "groups/a/memory.current", str(GB // 2))
    put(tmp_path / "groups/a/memory.stat", f"anon 5\ninactive_file {GB // 4}")
    assert available_memory(tmp_path / "groups", mine) == GB - GB // 2 + GB // 4
    assert memory_limit(tmp_path / "groups", mine) == GB
    put(tmp_path / "groups/a/memory.current", str(2 * GB))
    assert available_memory(tmp_path / "groups", mine) == 0


def test_memory_of_the_first_version(tmp_path: Path) -> None:
    mine = put(tmp_path / "membership", "4:memory:/x")
    put(tmp_path / "groups/memory/x/memory.limit_in_bytes", "9223372036854771712")
    put(tmp_path / "groups/memory/x/memory.usage_in_bytes", str(GB))
    before = available_memory(tmp_path / "groups", mine)
    assert before > GB // 8 and memory_limit(tmp_path / "groups", mine) is None
    put(tmp_path / "groups/memory/x/memory.limit_in_bytes", str(GB + 4096))
    put(tmp_path / "groups/memory/x/memory.stat", "inactive_file 7\ntotal_inactive_file 1000")
    assert available_memory(tmp_path / "groups", mine) == 5096
