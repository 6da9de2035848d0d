"""js-libp2p against a swarm that trains: `python -m tests.interop`, after `npm install` in this folder.

Prints a table: what was done, what came of it, and what the peer it was done to holds.  Ends with 1 when a ping failed, a
connection of the 2000 was refused, the newcomer did not get in, or the swarm stood still.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from protocol.events import events as ev
from tests.e2e.swarm import TINY_RUN, Peer, Swarm

FOLDER = Path(__file__).parent
NODE = FOLDER / "node_modules" / ".bin" / "node"
SCRIPT = FOLDER / "stranger.mjs"
SILENT = 254
VISIT_S = 900.0
CROWD_S = 60.0


@dataclass
class Trial:
    """One swarm, and the peer of it that outsiders come to."""

    swarm: Swarm
    target: Peer
    good: bool = True
    process: psutil.Process = field(init=False)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.process = psutil.Process(self.target.pid)

    @property
    def address(self) -> str:
        return str(self.target.status()["addresses"][0])

    def row(self, what: str, came: str, good: bool = True) -> None:
        self.good = self.good and good
        memory = self.process.memory_info().rss / 1e6
        print(
            f"| {time.monotonic() - self.began:.0f} | {what} | {came} | {self.process.num_fds()} | {memory:.0f} MB "
            f"| {self.target.committed} |",
            flush=True,
        )

    def node(self, *words: str) -> dict[str, Any]:
        """What the script says at its end."""
        done = subprocess.run([NODE, SCRIPT, *words], stdout=subprocess.PIPE, timeout=VISIT_S, check=True)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    def ping(self) -> None:
        said = self.node("ping", self.address)
        good = bool(said["ok"]) and str(said["agent"]).startswith("manyhands/")
        came = f"{said['ping_ms']} ms, {said['agent']}, {said['total_ms']} ms in all" if said["ok"] else said["error"]
        self.row("dial, ping, identify", came, good)

    def visit(self, count: int, at_once: int) -> None:
        said = self.node("visit", self.address, str(count), str(at_once))
        errors = f", {said['errors']}" if said["errors"] else ""
        self.row(
            f"{count} connections, {at_once} at a time",
            f"{said['good']} good in {said['seconds']:.0f} s{errors}",
            said["good"] == count,
        )

    def crowd(self, pings: int) -> None:
        """A newcomer, and pings, while strangers stay and come back."""
        with subprocess.Popen(
            [NODE, SCRIPT, "silent", self.address, str(SILENT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as strangers:
            assert strangers.stdout is not None and strangers.stdin is not None
            end, open_, said = time.monotonic() + CROWD_S, 0, {}
            while time.monotonic() < end and open_ < 100:
                said = json.loads(strangers.stdout.readline())
                open_ = said["open"]
            self.row(f"{SILENT} silent strangers that come back", f"{open_} are in", open_ > 0)
            for _ in range(pings):
                self.ping()
            began = time.monotonic()
            newcomer = self.swarm.peer("newcomer").start()
            self.swarm.whole(newcomer, self.target)
            self.row("`peer join` of a newcomer", f"in a round with the others after {time.monotonic() - began:.0f} s")
            self.ping()
            strangers.stdin.close()
            *_, last = strangers.stdout.read().splitlines()
            said = json.loads(last)
        closed = self.target.notices(ev.NoticeCode.STRANGERS_CLOSED)
        self.row(
            "the strangers leave",
            f"{said['opened']} connections opened, {said['closed']} closed by the peer; events: "
            + ", ".join(f"{told['silent']} silent + {told['crowded']} crowded" for told in closed),
            bool(closed),
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--connections", type=int, default=2000, help="half of them one at a time, half 50 at once")
    parser.add_argument("--pings", type=int, default=3)
    options = parser.parse_args()
    if not NODE.exists():
        print(f"js-libp2p is not installed; run `npm install` in {FOLDER}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder), TINY_RUN) as swarm:
        swarm.create_run()
        target, other = swarm.peer("target").start(), swarm.peer("other").start()
        swarm.whole(target, other)
        print("| s | what | what came of it | files | memory | rounds |\n|---|---|---|---|---|---|")
        trial = Trial(swarm, target)
        trial.ping()
        trial.visit(options.connections // 2, 1)
        trial.visit(options.connections // 2, 50)
        trial.ping()
        trial.crowd(options.pings)
        swarm.whole(target, other)
        swarm.until("places are free again", lambda: trial.process.num_fds() < 100)
        trial.row("at the end", "all peers in one round")
    return 0 if trial.good else 1


if __name__ == "__main__":
    sys.exit(main())
