"""`python -m tests.e2e.night --minutes 30`: a night of a volunteer's peer, in short.

Three real peers train together: one that everybody reaches, one behind a router, and the volunteer's, at home behind a
router that opens ports, on a small disk.  That one sleeps, changes its address, loses its trainer, fills its disk, is
without its router, one after the other, and nobody helps.  After each, a round of all three has to be committed, with one
state; then it is read how much memory, how many descriptors, threads, tasks and files each of them has.

Needs root on Linux (network namespaces), nftables and miniupnpd.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from statistics import linear_regression, median

import psutil
from prometheus_client.parser import text_string_to_metric_families

from protocol.events import events as ev
from tests.e2e.home_troubles import HomeTroubles, Lengths, small_disk
from tests.e2e.swarm import TINY_MODEL, Peer, Swarm
from tests.routers.homes import Homes, why_not
from tests.routers.router import Kind
from tests.routers.table import create, start

RUN = (
    TINY_MODEL
    + """
[rounds]
inner_steps = 200
min_members = 2
"""
)
FULL_EVERY_S = 720.0
"""A peer whose disk is full again within ten minutes of its return waits longer each time before it returns."""
METRICS_PORT = 9464
READ = f"from urllib.request import urlopen; print(urlopen('http://127.0.0.1:{METRICS_PORT}/metrics').read().decode())"
WARM_UP_ROUNDS, WARM_UP_S = 1000, 3600.0
"""Before the night begins: what a peer remembers of earlier rounds has a limit, and fills up until then."""
MORE = {"memory_mb": 5, "descriptors": 2, "threads": 2, "tasks": 4, "files": 4}
"""What must not grow, and by how much its medians may differ by chance."""


@dataclass(frozen=True)
class Trouble:
    """what: befell the volunteer's peer at this time (s), so long.  back_s: from its end to the next record with the peer.

    missed: records of the others without it, from the beginning until it was back.
    """

    what: str
    at_s: float
    lasted_s: float
    back_s: float
    missed: int


@dataclass(frozen=True)
class Reading:
    """What a peer has, at this time (s), after so many rounds.

    files, file_bytes: in its data directory, but for the records of rounds, and what it printed.
    """

    at_s: float
    rounds: int
    peer: str
    memory_mb: float
    descriptors: int
    threads: int
    tasks: int
    files: int
    file_bytes: int
    records: int


@dataclass
class Night:
    """rounds: committed in all the time."""

    minutes: float
    troubles: list[Trouble] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    rounds: int = 0


def read(peer: Peer, began: float) -> Reading:
    """Now."""
    told = subprocess.run([*peer.around, sys.executable, "-c", READ], capture_output=True, text=True, check=True).stdout
    metrics = {family.name: family.samples[0].value for family in text_string_to_metric_families(told)}
    process = psutil.Process(peer.pid)
    sizes = {path: size for path, size in sizes_in(peer.folder).items() if path.name != "output.log"}
    others = [size for path, size in sizes.items() if path.parent.name != "records"]
    return Reading(
        time.monotonic() - began,
        peer.committed,
        peer.name,
        process.memory_info().rss / 1e6,
        process.num_fds(),
        process.num_threads(),
        int(metrics["manyhands_tasks"]),
        len(others),
        sum(others),
        len(sizes) - len(others),
    )


def sizes_in(folder: Path) -> dict[Path, int]:
    """Bytes of each file, but for new ones that get their names in this moment."""
    found: dict[Path, int] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[path] = path.stat().st_size
    return found


@contextmanager
def at_home(folder: Path, lengths: Lengths, run: str = RUN) -> Iterator[tuple[Swarm, Peer, HomeTroubles]]:
    """The swarm, the volunteer's peer in it, and what may befall that."""
    with Homes(folder, [Kind.UPNP, Kind.CONE]) as homes, Swarm(folder, run) as swarm, small_disk(swarm.place("volunteer")):
        invitation, options = create(swarm), ("--role", "trainer", "--metrics-port", str(METRICS_PORT))
        start(swarm, "public", homes.public, invitation, *options)
        start(swarm, "neighbour", homes.homes[1].place, invitation, *options)
        peer = start(swarm, "volunteer", homes.homes[0].place, invitation, *options)
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
        yield swarm, peer, HomeTroubles(swarm, homes, homes.homes[0], peer, lengths)
        for one in swarm.peers:
            assert one.leave() == 0, one.log[-2000:]


def meet(swarm: Swarm, peer: Peer, what: str, troubles: HomeTroubles, began: float) -> Trouble:
    """It happens, ends, and the peer comes back by itself: a record with it, and then one state everywhere."""
    at, first = time.monotonic(), peer.committed
    troubles.kinds[what]()
    ended, lasted = time.time(), time.monotonic() - at
    back: list[tuple[float, int]] = []

    def is_back() -> bool:
        back[:] = [
            (stamped.at, stamped.event.round)
            for stamped in list(peer.stamped)
            if isinstance(stamped.event, ev.RoundCommitted) and stamped.at > ended and peer.peer_id in stamped.event.members
        ][:1]
        return bool(back)

    swarm.until(f"{what}: the peer is back", is_back)
    since, round = back[0]
    swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
    other = swarm.peers[0]
    missed = sum(peer.peer_id not in other.members_of(each) for each in range(first, round) if each in other.commits)
    return Trouble(what, at - began, lasted, since - ended, missed)


def live(folder: Path, minutes: float, seed: int = 1) -> Night:
    """One night.  The order of the troubles is drawn from the seed; the disk fills up once in `FULL_EVERY_S` at most."""
    night, random, bag, full_at = Night(minutes), Random(seed), list[str](), float("-inf")
    with at_home(folder, Lengths()) as (swarm, peer, troubles):
        swarm.until("tables that are full", lambda: peer.committed >= WARM_UP_ROUNDS, WARM_UP_S)
        began, first = time.monotonic(), peer.committed
        while time.monotonic() - began < 60 * minutes:
            bag = bag or random.sample(list(troubles.kinds), len(troubles.kinds))
            what = bag.pop()
            if what == "disk full":
                if time.monotonic() - full_at < FULL_EVERY_S:
                    continue
                full_at = time.monotonic()
            night.troubles.append(meet(swarm, peer, what, troubles, began))
            night.readings += [read(each, began) for each in swarm.peers]
            print(f"{night.troubles[-1]}", file=sys.stderr, flush=True)
        night.rounds = peer.committed - first
        assert peer.lives == 1
    return night


def thirds(readings: Sequence[Reading], name: str) -> dict[str, tuple[float, float]]:
    """The medians of all that this peer has, in the first and in the last third of the time."""
    those, end = [each for each in readings if each.peer == name], max(each.at_s for each in readings)
    early, late = [each for each in those if each.at_s <= end / 3], [each for each in those if each.at_s >= end * 2 / 3]
    return {what: (_median(early, what), _median(late, what)) for what in MORE}


def _median(readings: Sequence[Reading], what: str) -> float:
    return median(float(getattr(each, what)) for each in readings)


def grown(readings: Sequence[Reading]) -> list[str]:
    """A sentence for each thing of which there is more in the last third of the time than in the first, by the medians."""
    return [
        f"{name}: {what} grew from {before:.1f} to {after:.1f}"
        for name in dict.fromkeys(each.peer for each in readings)
        for what, (before, after) in thirds(readings, name).items()
        if after > before + MORE[what]
    ]


def memory_trend(readings: Sequence[Reading], name: str) -> float:
    """MB an hour of this peer."""
    those = [each for each in readings if each.peer == name]
    return 3600 * linear_regression([each.at_s for each in those], [each.memory_mb for each in those]).slope


def shown(night: Night) -> str:
    """Tables for people: what became of the troubles, by their kinds, and what each peer had at first and at last."""
    lines = ["| what | times | back after, s: median, most | records missed, most |", "|---|---|---|---|"]
    for what in dict.fromkeys(each.what for each in night.troubles):
        those = [each for each in night.troubles if each.what == what]
        back = [each.back_s for each in those]
        most = max(each.missed for each in those)
        lines.append(f"| {what} | {len(those)} | {median(back):.1f}, {max(back):.1f} | {most} |")
    lines += ["", f"| first, last third: medians | {' | '.join(MORE)} | trend of memory, MB an hour |"]
    lines += ["|---" * (len(MORE) + 2) + "|"]
    for name in dict.fromkeys(each.peer for each in night.readings):
        cells = [f"{before:.1f}, {after:.1f}" for before, after in thirds(night.readings, name).values()]
        lines.append(f"| {name} | {' | '.join(cells)} | {memory_trend(night.readings, name):+.1f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.night", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    if why_not():
        parser.error(why_not())
    for number in (signal.SIGINT, signal.SIGTERM):  # whatever was started ends with us
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        night = live(Path(folder), arguments.minutes, arguments.seed)
    larger = grown(night.readings)
    print(shown(night))
    print(f"{night.rounds} rounds, {len(night.troubles)} troubles; each ended by itself; {larger or 'nothing grew'}")
    if arguments.json:
        print(json.dumps({**asdict(night), "grown": larger}))
    return 1 if larger else 0


if __name__ == "__main__":
    sys.exit(main())
