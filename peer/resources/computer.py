"""Resources that this computer gives a process: cores and memory, within affinity and containers.

Linux's control groups limit a container (and a service) to less than the computer has; each group above ours limits us as
well.  Both versions of their file system are read.  Without one, only the computer itself limits.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

# ------------------------------------------------------------------------------------------------------------------------
# Limit on the files and sockets that this process may have open.


WANTED = 4096
"""Limit wanted: more than a peer's permitted connections and its own files together."""


def raise_open_files() -> int:
    """Raise this process's limit to `WANTED`, or as far as the system allows; return the resulting limit.

    The usual limit of 1024 is less than strangers may take of a peer, and a peer that can open no file stops.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    limit = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ValueError, OSError):
        return soft
    return limit


# ------------------------------------------------------------------------------------------------------------------------
# Clock that runs on while the computer is suspended; the event loop's clock stands still then.


CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Clock that counts suspended time: CLOCK_BOOTTIME on Linux, on macOS a monotonic clock that Python's own functions do not
read."""


def seconds_since_boot() -> float:
    """Return the seconds since boot, suspended ones included."""
    return time.clock_gettime(CLOCK)


# ------------------------------------------------------------------------------------------------------------------------


GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
PROCESSORS = Path("/sys/devices/system/cpu")
UNLIMITED = 1 << 60
"""Least limit that counts as none: the first version has a huge number where the second has "max"."""


def usable_cores(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the cores that we may keep busy all the time; at least 1.  Two hardware threads of a core count once."""
    cores = float(_cores_of_affinity())
    for folder in _folders("cpu", groups, membership):
        cores = min(cores, _cpu_quota(folder))
    return max(1, math.ceil(cores))


def available_memory(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the bytes of memory available without swapping or eviction."""
    available = int(psutil.virtual_memory().available)
    for folder in _folders("memory", groups, membership):
        available = min(available, _memory_left(folder))
    return max(0, available)


def _cores_of_affinity() -> int:
    if not hasattr(os, "sched_getaffinity"):
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    siblings = {_text(PROCESSORS / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in allowed}
    return len(siblings)


def _folders(controller: str, groups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of our control group and of the groups above it.

    A container may not see the path that its membership names; then only the visible groups above it count.
    """
    for line in _text(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups  # the first version has a tree for each controller
        inside = Path(path.lstrip("/"))
        yield from (root / part for part in (inside, *inside.parents))


def _cpu_quota(folder: Path) -> float:
    """Return the quota as a number of cores; infinity without a limit."""
    words = _text(folder / "cpu.max").split() or [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def _memory_left(folder: Path) -> int:
    """Return the bytes that the group may still take, droppable file pages in memory included."""
    limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
    if limit is None or limit >= UNLIMITED:
        return UNLIMITED
    used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    kept = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    droppable = kept.get("total_inactive_file", kept.get("inactive_file", "0"))
    return limit - used + (int(droppable) if droppable.isdigit() else 0)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """Return a small file's contents; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
