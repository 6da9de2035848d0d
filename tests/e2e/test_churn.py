"""Real peers that are killed and come back all the time: one state, rounds that went on, and nothing left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.e2e.swarm import PATIENCE_S, Peer, Swarm

pytestmark = pytest.mark.slow

PEERS, KILLS, KILL_S, DOWN_S = 3, 3, (1.0, 6.0), (0.2, 5.0)
SHARED_MEMORY = Path("/dev/shm")
DESCRIPTORS = 64
"""What a running peer may have open: its sockets to the others, its files, and what its libraries keep."""


def test_peers_that_are_killed_and_come_back_go_on_together_and_leave_nothing_behind(tmp_path: Path) -> None:
    shared = shared_memory()
    with Swarm.created(tmp_path) as swarm:
        for number in range(PEERS):
            start(swarm.peer(f"peer-{number}"))
        swarm.whole(*swarm.peers)
        kill_and_start(swarm, Random(1))
        for peer in swarm.peers:
            if not peer.up:
                start(peer)
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
        processes = [psutil.Process(peer.pid) for peer in swarm.peers]
        assert max(process.num_fds() for process in processes) <= DESCRIPTORS
        assert not [child for process in processes for child in process.children(recursive=True) if is_zombie(child)]
        for peer in swarm.peers:
            assert peer.leave() == 0, peer.log[-2000:]
        assert psutil.wait_procs(swarm.processes(), timeout=PATIENCE_S)[1] == []
        assert left_files(swarm) == [] and shared_memory() <= shared


def start(peer: Peer) -> None:
    """Every other peer keeps its state in files."""
    peer.start("--state", "disk" if int(peer.name[-1]) % 2 else "ram")


def kill_and_start(swarm: Swarm, random: Random) -> None:
    """Kill peers with SIGKILL, whatever they do, and start them again."""
    due, kills = {peer.name: time.monotonic() + random.uniform(*KILL_S) for peer in swarm.peers}, 0
    while kills < KILLS:
        peer = min(swarm.peers, key=lambda peer: due[peer.name])
        time.sleep(max(0.0, due[peer.name] - time.monotonic()))
        if peer.up:
            peer.kill()
            kills += 1
        else:
            assert peer.process is not None and peer.process.returncode == -9, f"it ended by itself:\n{peer.log[-3000:]}"
            start(peer)
        due[peer.name] = time.monotonic() + random.uniform(*(KILL_S if peer.up else DOWN_S))


def left_files(swarm: Swarm) -> list[Path]:
    """Temporary files, sockets and addresses of peers that are gone; and whatever in a data directory is half-made."""
    left = [path for name in ("tmp", "runtime") for path in (swarm.folder / name).rglob("*") if path.suffix != ".lock"]
    for peer in swarm.peers:
        left += [path for path in peer.folder.rglob("*") if path.suffix in (".sock", ".tmp", ".new", ".part")]
        left += [*peer.folder.rglob(".*"), *peer.folder.rglob("scratch/*")]
    return left


def shared_memory() -> set[str]:
    """Files of this user's that no process uses.  Ours are anonymous, so none may be left here."""
    if not SHARED_MEMORY.is_dir():
        return set()
    found = {path.name for path in SHARED_MEMORY.iterdir() if path.is_file() and path.lstat().st_uid == os.getuid()}
    return found - {Path(file).name for process in psutil.process_iter() for file in in_use(process)} if found else found


def in_use(process: psutil.Process) -> list[str]:
    """Files in shared memory that this process has mapped or open."""
    try:
        used = [mapping.path for mapping in process.memory_maps()] + [file.path for file in process.open_files()]
    except (psutil.Error, OSError):
        return []
    return [path for path in used if path.startswith(str(SHARED_MEMORY))]


def is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False  # it is gone altogether
