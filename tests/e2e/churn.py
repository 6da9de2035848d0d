"""`python -m tests.e2e.churn --minutes 10`: real peers that are killed and come back, all the time.

Each peer is killed with SIGKILL every 5 to 20 s, drawn from the seed, and started again after up to 5 s, whatever it does.
At the end all are up; then there must be one state, rounds that went on, and nothing left behind: no process,
no socket, no more file descriptors than a peer has use for, no temporary file, no shared memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from tests.e2e.swarm import PATIENCE_S, Peer, Swarm

KILL_S = (5.0, 20.0)
DOWN_S = (0.2, 5.0)
SHARED_MEMORY = Path("/dev/shm")
DESCRIPTORS = 64
"""What a running peer may have open: its sockets to the others, its files, and what its libraries keep."""


@dataclass
class Outcome:
    """What churn did, and what was left."""

    peers: int
    seconds: float
    kills: int
    rounds: int
    descriptors: int
    zombies: int
    left_processes: int
    left_files: list[str]
    left_shared_memory: list[str]

    @property
    def clean(self) -> bool:
        return (
            self.zombies == 0
            and self.left_processes == 0
            and self.left_files == []
            and self.left_shared_memory == []
            and self.descriptors <= DESCRIPTORS
        )


def churn(
    folder: Path,
    peers: int,
    seed: int,
    seconds: float = float("inf"),
    kills: int = 1 << 30,
    kill_s: tuple[float, float] = KILL_S,
) -> Outcome:
    """Until `seconds` have passed or `kills` were made.  Whatever goes wrong in between fails at the end.

    kill_s: how long a peer lives, at least and at most.
    """
    random, shared = Random(seed), _shared_memory()
    with Swarm(folder) as swarm:
        swarm.create_run()
        for number in range(peers):
            swarm.peer(f"peer-{number}").start()
        swarm.whole(*swarm.peers)
        first = swarm.newest()
        began = time.monotonic()
        made = _kill_and_start(swarm, random, began + seconds, kills, kill_s)
        lasted = time.monotonic() - began
        for peer in swarm.peers:
            if not peer.up:
                peer.start()
        rounds = swarm.whole(*swarm.peers)
        swarm.equal(rounds, *swarm.peers)
        processes = [psutil.Process(peer.pid) for peer in swarm.peers]
        descriptors = max(process.num_fds() for process in processes)
        zombies = sum(_is_zombie(child) for process in processes for child in process.children(recursive=True))
        for peer in swarm.peers:
            assert peer.leave() == 0, peer.log[-2000:]
        left = psutil.wait_procs(swarm.processes(), timeout=PATIENCE_S)[1]
        return Outcome(
            peers,
            lasted,
            made,
            rounds - first,
            descriptors,
            zombies,
            len(left),
            _left_files(swarm),
            sorted(_shared_memory() - shared),
        )


def _kill_and_start(swarm: Swarm, random: Random, end: float, kills: int, kill_s: tuple[float, float]) -> int:
    """Kills made."""
    due = {peer.name: time.monotonic() + random.uniform(*kill_s) for peer in swarm.peers}
    made = 0
    while time.monotonic() < end and made < kills:
        peer = min(swarm.peers, key=lambda peer: due[peer.name])
        time.sleep(max(0.0, due[peer.name] - time.monotonic()))
        if peer.up:
            peer.kill()
            made += 1
        else:
            _started_again(peer)
        due[peer.name] = time.monotonic() + random.uniform(*(kill_s if peer.up else DOWN_S))
    return made


def _started_again(peer: Peer) -> None:
    assert peer.process is not None and peer.process.returncode == -9, f"{peer.name} ended by itself:\n{peer.log[-3000:]}"
    peer.start()


def _left_files(swarm: Swarm) -> list[str]:
    """Temporary files, sockets and addresses of peers that are gone; and whatever in a data directory is half-made."""
    temporary = [path for name in ("tmp", "runtime") for path in (swarm.folder / name).rglob("*") if path.suffix != ".lock"]
    for peer in swarm.peers:
        temporary += [path for path in peer.folder.rglob("*") if path.suffix in (".sock", ".tmp", ".new", ".part")]
        temporary += [path for path in peer.folder.rglob(".*")]
    return sorted(str(path.relative_to(swarm.folder)) for path in temporary)


def _shared_memory() -> set[str]:
    """Files of this user's that no process uses.  Ours are anonymous, so none may be left here."""
    if not SHARED_MEMORY.is_dir():
        return set()
    found = {path.name for path in SHARED_MEMORY.iterdir() if path.is_file() and path.lstat().st_uid == os.getuid()}
    return found - {Path(file).name for process in psutil.process_iter() for file in _in_use(process)} if found else found


def _in_use(process: psutil.Process) -> list[str]:
    """Files in shared memory that this process has mapped or open."""
    try:
        used = [mapping.path for mapping in process.memory_maps()] + [file.path for file in process.open_files()]
    except (psutil.Error, OSError):
        return []
    return [path for path in used if path.startswith(str(SHARED_MEMORY))]


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False  # it is gone altogether


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.churn", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--peers", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = churn(Path(folder), arguments.peers, arguments.seed, seconds=60 * arguments.minutes)
    print("| peers | minutes | kills | rounds meanwhile | descriptors of a peer at most | zombies | left behind |")
    print("|---|---|---|---|---|---|---|")
    left = [*outcome.left_files, *outcome.left_shared_memory]
    print(
        f"| {outcome.peers} | {outcome.seconds / 60:.1f} | {outcome.kills} | {outcome.rounds} | "
        f"{outcome.descriptors} | {outcome.zombies} | {outcome.left_processes} processes, {left or 'no file'} |"
    )
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())
