"""`python -m tests.e2e.churn --minutes 10`: real peers that are killed and come back, all the time.

Each peer is killed with SIGKILL every 5 to 20 s, drawn from the seed, and started again after up to 5 s, whatever it does.
At the end all are up; then there must be one state, rounds that went on, and nothing left behind: no process,
no socket, no more file descriptors than a peer has use for, no temporary file, no shared memory.  With `--rollouts` they are
two trainers, two rollout peers and two validators: nobody may then be set aside, and no batch learned from twice.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from protocol.events import events as ev
from tests.e2e.swarm import PATIENCE_S, ROLLOUT_RUN, TINY_RUN, Peer, Swarm

KILL_S = (5.0, 20.0)
DOWN_S = (0.2, 5.0)
SHARED_MEMORY = Path("/dev/shm")
DESCRIPTORS = 64
"""What a running peer may have open: its sockets to the others, its files, and what its libraries keep."""


TRAINERS = ("trainer",) * 5
WITH_ROLLOUTS = ("trainer", "trainer", "rollout", "rollout", "validator", "validator")


@dataclass
class Outcome:
    """What churn did, and what was left.

    learned: batches that a trainer learned from, of which `twice` in two rounds.  set_aside: peers of which others use
    nothing any more, though all are honest.
    """

    peers: int
    seconds: float
    kills: int
    rounds: int
    descriptors: int
    zombies: int
    left_processes: int
    left_files: list[str]
    left_shared_memory: list[str]
    learned: int = 0
    twice: int = 0
    set_aside: int = 0

    @property
    def clean(self) -> bool:
        return (
            self.zombies == 0
            and self.left_processes == 0
            and self.left_files == []
            and self.left_shared_memory == []
            and self.descriptors <= DESCRIPTORS
            and self.twice == self.set_aside == 0
        )


def churn(
    folder: Path,
    roles: Sequence[str],
    seed: int,
    seconds: float = float("inf"),
    kills: int = 1 << 30,
    kill_s: tuple[float, float] = KILL_S,
) -> Outcome:
    """Until `seconds` have passed or `kills` were made.  Whatever goes wrong in between fails at the end.

    kill_s: how long a peer lives, at least and at most.
    """
    random, shared = Random(seed), _shared_memory()
    with Swarm(folder, ROLLOUT_RUN if "rollout" in roles else TINY_RUN) as swarm:
        swarm.create_run()
        for number, role in enumerate(roles):
            _start(swarm.peer(f"{role}-{number}"))
        trainers = [peer for peer in swarm.peers if _role(peer) == "trainer"]
        swarm.whole(*trainers)
        first, heard = swarm.newest(), Heard(swarm.peers)
        began = time.monotonic()
        made = _kill_and_start(swarm, random, began + seconds, kills, kill_s, heard)
        lasted = time.monotonic() - began
        for peer in swarm.peers:
            if not peer.up:
                _start(peer)
        rounds = swarm.whole(*trainers)
        swarm.equal(rounds, *swarm.peers)
        heard.look()
        processes = [psutil.Process(peer.pid) for peer in swarm.peers]
        descriptors = max(process.num_fds() for process in processes)
        zombies = sum(_is_zombie(child) for process in processes for child in process.children(recursive=True))
        for peer in swarm.peers:
            assert peer.leave() == 0, peer.log[-2000:]
        left = psutil.wait_procs(swarm.processes(), timeout=PATIENCE_S)[1]
        return Outcome(
            len(roles),
            lasted,
            made,
            rounds - first,
            descriptors,
            zombies,
            len(left),
            _left_files(swarm),
            sorted(_shared_memory() - shared),
            sum(len(batches) for batches in heard.used.values()),
            sum(len(rounds) > 1 for batches in heard.used.values() for rounds in batches.values()),
            len(heard.aside),
        )


class Heard:
    """What peers say of rollouts in all their lives.

    used: by trainer the batches, with the rounds that learned from them.  aside: who set whom aside.
    """

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = peers
        self.used: dict[str, dict[str, set[int]]] = {}
        self.aside: set[tuple[str, str]] = set()

    def look(self) -> None:
        """At the events of the present lives."""
        for peer in self._peers:
            for event in peer.heard(ev.RolloutsUsed):
                for root in event.batches:
                    self.used.setdefault(peer.name, {}).setdefault(root, set()).add(event.round)
            for kind in (ev.RolloutPeerSetAside, ev.ValidatorSetAside):
                self.aside |= {(peer.name, event.peer) for event in peer.heard(kind)}


def _role(peer: Peer) -> str:
    return peer.name.partition("-")[0]


def _start(peer: Peer) -> None:
    """Every other peer keeps its state in files."""
    number = int(peer.name.rpartition("-")[2])
    peer.start("--role", _role(peer), "--state", "disk" if number % 2 else "ram")


def _kill_and_start(swarm: Swarm, random: Random, end: float, kills: int, kill_s: tuple[float, float], heard: Heard) -> int:
    """Kills made."""
    due = {peer.name: time.monotonic() + random.uniform(*kill_s) for peer in swarm.peers}
    made = 0
    while time.monotonic() < end and made < kills:
        peer = min(swarm.peers, key=lambda peer: due[peer.name])
        time.sleep(max(0.0, due[peer.name] - time.monotonic()))
        heard.look()
        if peer.up:
            peer.kill()
            made += 1
        else:
            _started_again(peer)
        due[peer.name] = time.monotonic() + random.uniform(*(kill_s if peer.up else DOWN_S))
    return made


def _started_again(peer: Peer) -> None:
    assert peer.process is not None and peer.process.returncode == -9, f"{peer.name} ended by itself:\n{peer.log[-3000:]}"
    _start(peer)


def _left_files(swarm: Swarm) -> list[str]:
    """Temporary files, sockets and addresses of peers that are gone; and whatever in a data directory is half-made."""
    temporary = [path for name in ("tmp", "runtime") for path in (swarm.folder / name).rglob("*") if path.suffix != ".lock"]
    for peer in swarm.peers:
        made = [path for path in peer.folder.rglob("*") if path.suffix in (".sock", ".tmp", ".new", ".part")]
        temporary += [path for path in made if path.parent.name != "rollouts"]  # batches on their way go at the next start
        temporary += [*peer.folder.rglob(".*"), *peer.folder.rglob("scratch/*")]
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
    parser.add_argument("--rollouts", action="store_true", help="two trainers, rollout peers and validators each")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        roles = WITH_ROLLOUTS if arguments.rollouts else TRAINERS
        outcome = churn(Path(folder), roles, arguments.seed, seconds=60 * arguments.minutes)
    print("| peers | minutes | kills | rounds meanwhile | descriptors of a peer at most | zombies | left behind |")
    print("|---|---|---|---|---|---|---|")
    left = [*outcome.left_files, *outcome.left_shared_memory]
    print(
        f"| {outcome.peers} | {outcome.seconds / 60:.1f} | {outcome.kills} | {outcome.rounds} | "
        f"{outcome.descriptors} | {outcome.zombies} | {outcome.left_processes} processes, {left or 'no file'} |"
    )
    if arguments.rollouts:
        print(f"batches learned from: {outcome.learned}, twice: {outcome.twice}; set aside: {outcome.set_aside}")
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())
