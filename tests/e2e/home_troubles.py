"""What befalls a computer at home, done to a real peer in a network namespace; each ends without anybody's help."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from protocol.events import events as ev
from tests.e2e.swarm import Peer, Swarm
from tests.routers.homes import Home, Homes

DISK_BYTES = 64 << 20
HOSTS = range(3, 250)
"""Last parts of addresses."""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Put a disk of its own there, in memory."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@dataclass(frozen=True)
class Lengths:
    """Seconds that things take: a sleep, a router without power, and a full disk after the peer has said that it is."""

    sleep_s: float = 60.0
    router_s: float = 45.0
    full_s: float = 20.0


class HomeTroubles:
    """Of the peer in `home`, whose data directory is a `small_disk`."""

    def __init__(self, swarm: Swarm, homes: Homes, home: Home, peer: Peer, lengths: Lengths) -> None:
        self._swarm, self._homes, self._home, self._peer, self._lengths = swarm, homes, home, peer, lengths
        self._hosts, self._outside = iter(HOSTS), iter(HOSTS)
        self.kinds: dict[str, Callable[[], None]] = {
            "sleep": self.sleep,
            "new address at home": self.change_address,
            "trainer killed": self.kill_trainer,
            "disk full": self.fill_disk,
            "router off, new address outside": self.restart_router,
        }

    def sleep(self) -> None:
        """All processes of the peer are stopped, and go on."""
        peer = psutil.Process(self._peer.pid)
        processes = [peer, *peer.children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(self._lengths.sleep_s)
        for process in reversed(processes):
            process.send_signal(signal.SIGCONT)

    def change_address(self) -> None:
        """The old one is gone from one moment to the next."""
        self._homes.move(self._home, next(self._hosts))

    def kill_trainer(self) -> None:
        """With SIGKILL; waits for one that is there."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [pid for pid in [self._peer.status()["trainer_pid"]] if pid is not None]
            return bool(found)

        self._swarm.until("a trainer", is_there)
        os.kill(found[0], signal.SIGKILL)

    def fill_disk(self) -> None:
        """Until the peer has left the run for it, and a while longer."""
        ballast = self._peer.folder / "ballast"
        told = len(self._peer.stamped)
        try:
            with ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\x5a" * (64 << 10))
        except OSError:
            pass  # no room for more

        def rests() -> bool:
            return any(
                isinstance(stamped.event, ev.PhaseChanged) and stamped.event.why_idle == "disk full"
                for stamped in self._peer.stamped[told:]
            )

        self._swarm.until("the peer to rest", rests)
        time.sleep(self._lengths.full_s)
        ballast.unlink()

    def restart_router(self) -> None:
        """It forgets all, and is back with another address on the internet."""
        self._homes.switch_off(self._home)
        time.sleep(self._lengths.router_s)
        self._homes.switch_on(self._home, next(self._outside))
