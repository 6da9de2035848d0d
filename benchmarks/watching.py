"""Cost of watching a peer: `python -m benchmarks.watching [--json]`.

A control socket sends what a busy peer in a swarm of 200 would send: a status each second, and events, after 10 000 earlier
ones.  The terminal interface draws it in a terminal of 120x40.  The benchmark measures the time from its start until the
peer is on the screen, its share of a core while it is only looked at, the processor time of a frame, and the time for which
a frame holds up input.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

import psutil
import trio

from peer.control.client import Stamped
from peer.control.event_log import EventLog
from peer.control.server import ControlServer
from protocol.events import events as ev
from protocol.events.status import PeerStatus, SwarmPeer
from tui.app import PeerApp
from tui.contributions import Contributions, PeerCredit
from tui.feed import PeerFound, Told

PEERS, EVENTS, EVENTS_PER_S = 200, 10_000, 10
LEDGER = Contributions(
    PEERS, {f"12D3KooW{number:044}": PeerCredit(number + 1, 12, 10_000, 1 / PEERS, 0, 0) for number in range(PEERS)}
)
ROWS, COLUMNS = 40, 120


def busy(peers: int, steps: int = 0) -> PeerStatus:
    """Return the status of a peer that trains with `peers` others."""
    others = [
        SwarmPeer(
            peer=f"12D3KooW{number:044}",
            name=f"peer {number}",
            role="trainer",
            phase="computing",
            round=12,
            steps=(steps + number) % 500,
            tokens_per_s=1000.0 + number,
            liveness="alive",
            heard_s=1.0,
            version="0.1",
            link="direct",
            reach="internet",
            round_trip_s=0.001 * number,
            up_bytes=1000 * steps,
            down_bytes=1000 * steps,
        )
        for number in range(peers)
    ]
    return PeerStatus(
        peer="12D3KooWme",
        name="me",
        run="ab" * 32,
        run_name="demo",
        role="trainer",
        phase="computing",
        why_idle="",
        why_detail="",
        round=12,
        steps=steps % 500,
        inner_steps=500,
        tokens_per_s=1000.0,
        round_left_s=10.0,
        peers=peers,
        version="0.1",
        swarm=others,
        pid=os.getpid(),
        uptime_s=float(steps),
        up_bytes=steps * 1_000_000,
    )


def happened(number: int) -> ev.Event:
    """Return an event, a different one for each number."""
    if number % 10 == 0:
        return ev.RoundCommitted(number // 10, "ab" * 32, ["12D3KooWme"], 1000, 5.0 / (1 + number / 1000), True)
    if number % 2:
        return ev.ComputeProgress(12, number % 500, 500, 2.0, 1000.0, 10.0)
    return ev.Notice("info", f"something happened for the {number}th time")


class Served:
    """A control socket in a thread, which sends `EVENTS_PER_S` events a second; a context manager.

    spent_s: the processor time of that thread.
    """

    spent_s = 0.0

    def __init__(self, folder: Path) -> None:
        self._folder, self._ended, self._ready = folder, threading.Event(), threading.Event()

    def __enter__(self) -> Served:
        threading.Thread(target=trio.run, args=(self._serve,), daemon=True).start()
        self._ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    async def _serve(self) -> None:
        log, number = EventLog(), 0
        commands = {"status": self._status, "ledger": self._ledger}
        server = ControlServer(self._folder, log, commands, lambda: busy(PEERS, number))
        await server.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            for number in range(EVENTS):
                log.emit(happened(number))
            self._ready.set()
            while not self._ended.is_set():
                number += 1
                log.emit(happened(number))
                self._number = number
                self.spent_s = time.thread_time()
                await trio.sleep(1 / EVENTS_PER_S)
            nursery.cancel_scope.cancel()

    async def _status(self, fields: dict[str, object]) -> dict[str, object]:
        return busy(PEERS, self._number).to_fields()

    async def _ledger(self, fields: dict[str, object]) -> dict[str, object]:
        return LEDGER.to_fields()

    _number = 0


class Window:
    """The interface as a process in a terminal of its own; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Window:
        ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tui", str(self._folder)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(theirs)
        self._terminal = ours
        return self

    def until(self, text: bytes) -> float:
        """Return the seconds from the start until this text was drawn."""
        drawn = b""
        while text not in drawn:
            drawn += os.read(self._terminal, 1 << 16)
        threading.Thread(target=self._drain, daemon=True).start()
        return time.perf_counter() - self.began

    def _drain(self) -> None:
        try:
            while os.read(self._terminal, 1 << 16):
                pass
        except OSError:
            return

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


def first_paint(folder: Path, times: int) -> float:
    """Return the median seconds from the start of the interface until the peer is on the screen."""
    found = []
    for _ in range(times):
        with Window(folder) as window:
            found.append(window.until(b"COMPUTING"))
    return statistics.median(found)


def shares(folder: Path, served: Served, seconds: float) -> tuple[float, float]:
    """Return the share of a core that the view takes, and the additional share of the peer while it is watched."""
    unseen = _share(lambda: served.spent_s, seconds)
    with Window(folder) as window:
        window.until(b"COMPUTING")
        time.sleep(2)
        process, before = psutil.Process(window.process.pid), served.spent_s

        def spent() -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        begun = time.perf_counter()
        looking = _share(spent, seconds)
        seen = (served.spent_s - before) / (time.perf_counter() - begun)
        return looking, seen - unseen


def _share(spent: Callable[[], float], seconds: float) -> float:
    before, begun = spent(), time.perf_counter()
    time.sleep(seconds)
    return (spent() - before) / (time.perf_counter() - begun)


class Flood:
    """A source that has a status and `each` events ready at every frame."""

    def __init__(self, each: int) -> None:
        self._each, self._told = each, 0

    def start(self) -> None:
        pass

    def take(self) -> list[Told]:
        first = self._told
        self._told += self._each if first else EVENTS
        events: list[Told] = [Stamped(float(n), float(n), happened(n)) for n in range(first, self._told)]
        return [PeerFound(), busy(PEERS, self._told), LEDGER, *events] if not first else [busy(PEERS, self._told), *events]

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass


async def held_up(count: int) -> list[float]:
    """Return the seconds of processor time for which each of `count` frames, with 100 events and a status, delays a key.

    A task asks for its turn all the time, as a key would; the longest time of a frame between two turns counts.
    """
    waits, view = list[float](), PeerApp(Flood(100))

    async def ask() -> None:
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            waits[-1] = max(waits[-1], time.thread_time() - begun)

    async with view.run_test(size=(COLUMNS, ROWS)) as pilot:
        view.take()
        await pilot.pause()
        waits.append(0.0)
        asking = asyncio.create_task(ask())
        for _ in range(count):
            waits.append(0.0)
            view.take()
            await pilot.pause()
        asking.cancel()
    return waits[1:]


async def frames(count: int) -> list[float]:
    """Return the seconds of processor time that a frame with 100 events and a status takes until all of it is drawn."""
    found, view = list[float](), PeerApp(Flood(100))
    async with view.run_test(size=(COLUMNS, ROWS)) as pilot:
        view.take()
        await pilot.pause()
        for _ in range(count):
            begun = time.process_time()
            view.take()
            await pilot.pause()
            found.append(time.process_time() - begun)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Served(Path(name)) as served:
        paint = first_paint(Path(name), 5)
        used, more = shares(Path(name), served, arguments.seconds)
    gc.freeze()  # as the interface does when it has started
    waits = asyncio.run(held_up(60))
    row = {
        "first_paint_s": paint,
        "core_share": used,
        "peer_core_share": more,
        "frame_median_ms": 1000 * statistics.median(held := asyncio.run(frames(60))),
        "frame_longest_ms": 1000 * max(held),
        "held_up_median_ms": 1000 * statistics.median(waits),
        "held_up_longest_ms": 1000 * max(waits),
    }
    cells = [
        f"{paint:.2f}",
        f"{100 * used:.1f} %",
        f"{100 * more:.1f} %",
        *(f"{row[name]:.1f}" for name in ("frame_median_ms", "frame_longest_ms", "held_up_median_ms", "held_up_longest_ms")),
    ]
    print(
        "| first paint, s | share of a core | more of the peer's | a frame, median ms | longest | holds up input | longest |"
    )
    print("|---|---|---|---|---|---|---|")
    print(f"| {' | '.join(cells)} |")
    if arguments.json:
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
