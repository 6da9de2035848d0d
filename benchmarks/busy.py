"""Real peers on a computer that is too busy: `python -m benchmarks.busy --minutes 20 --json`.

Three peers train together on loopback, beside processes that do nothing but keep the processors busy.  Nobody is ended, so
every peer that sends has to stay a member of its rounds, and every trainer that computes has to be left alone.

The table has a line for each peer: rounds, members that it lost and took back, attempts and bytes of a round, trainers that
it started and ended, and the waits that it named.  Exits with 1 unless all peers committed a round after the first, hold one
state at the end, and lost no member for good and no trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from protocol.events import events as ev
from tests.e2e.swarm import LARGE_MODEL, Peer, Swarm

LOOPS, PEERS = 25, 3
LOOP = "import os\nwhile os.getppid() == {parent}:\n    for _ in range(1_000_000): pass\n"
SHOW_EVERY_S = 30.0
RUN = (
    LARGE_MODEL
    + """
[rounds]
inner_steps = {steps}
min_members = 2
grace_s = 10
eviction_s = 60
stall_s = {stall_s}
"""
)


@dataclass(frozen=True)
class PeerUnderLoad:
    """Measurements of one peer.

    rounds: the number of rounds that it committed.  lost, regained: the members that it stopped waiting for in an exchange,
    and the members among them for which it waited again.  suspected, disconnected: the number of suspicions, and the
    suspicions because of broken connections.  attempts: the number of plans that it proposed.  exchanged_bytes: the bytes
    sent in exchanges.  trainers: the number of processes that became ready.  ended: the reasons for their ends.  waits: the
    seconds of each wait that it named.  details: its sentences about a busy computer.
    """

    name: str
    rounds: int
    lost: int
    regained: int
    suspected: int
    disconnected: int
    attempts: int
    exchanged_bytes: int
    trainers: int
    ended: list[str]
    waits: dict[str, float]
    details: list[str]


@dataclass(frozen=True)
class LoadMeasured:
    """Outcome of a measurement.

    rounds: the number of rounds that all peers committed.  load: the mean number of processes that wanted a core, at the
    end.  attempts_per_round: the plans proposed per round.  bytes_per_round: the bytes that all peers sent.  payload_bytes:
    the size of a contribution.
    """

    loops: int
    cores: int
    seconds: float
    load: float
    rounds: int
    members_lost: int
    members_regained: int
    attempts_per_round: float
    bytes_per_round: float
    trainers_ended: int
    waits: dict[str, float]
    is_equal: bool
    is_right: bool
    peers: list[PeerUnderLoad]


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep `count` processes busy; they end with this process."""
    loop = LOOP.format(parent=os.getpid())
    processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(folder: Path, options: argparse.Namespace) -> LoadMeasured:
    """Run the peers in `folder`."""
    with Swarm(folder, RUN.format(steps=options.steps, stall_s=options.stall)) as swarm:
        swarm.create_run("peer-0")
        with busy_loops(options.loops):
            peers, begun = [swarm.peer(f"peer-{number}").start() for number in range(PEERS)], time.monotonic()
            watch(peers, begun + 60 * options.minutes)
            seconds, load = time.monotonic() - begun, os.getloadavg()[0]
            found = [_peer(peer) for peer in peers]
        try:
            is_equal = bool(swarm.equal(max(1, swarm.newest()), *peers))
        except AssertionError as error:
            is_equal = False
            print(error, file=sys.stderr, flush=True)
    rounds = min(each.rounds for each in found)
    lost, regained = sum(each.lost for each in found), sum(each.regained for each in found)
    waits = defaultdict[str, float](float)
    for each in found:
        for why, waited_s in each.waits.items():
            waits[why] += waited_s
    return LoadMeasured(
        options.loops,
        len(os.sched_getaffinity(0)),
        seconds,
        load,
        rounds,
        lost,
        regained,
        sum(each.attempts for each in found) / max(1, rounds),
        sum(each.exchanged_bytes for each in found) / max(1, rounds),
        sum(len(each.ended) for each in found),
        dict(waits),
        is_equal,
        is_equal and rounds > 1 and lost == regained and not any(each.ended for each in found),
        found,
    )


def watch(peers: list[Peer], end_s: float) -> None:
    """Wait until this time, or until a peer has ended; print rounds and lost members meanwhile."""
    shown_s = time.monotonic()
    while time.monotonic() < end_s and all(peer.up for peer in peers):
        time.sleep(1.0)
        if time.monotonic() - shown_s >= SHOW_EVERY_S:
            shown_s = time.monotonic()
            shown = [(peer.committed, len(peer.heard(ev.MemberLost))) for peer in peers]
            print(f"{time.strftime('%H:%M:%S')} rounds and lost members: {shown}", file=sys.stderr, flush=True)


def _peer(peer: Peer) -> PeerUnderLoad:
    suspected, waits = peer.heard(ev.PeerSuspected), _waits(peer)
    changes = peer.heard(ev.PhaseChanged)
    return PeerUnderLoad(
        peer.name,
        len(peer.commits),
        len(peer.heard(ev.MemberLost)),
        len(peer.heard(ev.MemberRegained)),
        len(suspected),
        sum(event.disconnected for event in suspected),
        len(peer.heard(ev.RoundProposed)),
        sum(event.up_bytes for event in peer.heard(ev.ExchangeFinished)),
        len(peer.heard(ev.TrainerStarted)),
        [event.reason for event in peer.heard(ev.TrainerStopped)],
        waits,
        sorted({event.detail for event in changes if event.detail and "busy" in event.detail}),
    )


def _waits(peer: Peer) -> dict[str, float]:
    """Return the seconds of each wait that a peer has named."""
    stamped = [(each.at, each.event) for each in list(peer.stamped)]
    changes = [(at, event) for at, event in stamped if isinstance(event, ev.PhaseChanged)]
    waits = defaultdict[str, float](float)
    ends = [at for at, _ in [*changes[1:], *stamped[-1:]]]
    for (at, event), until in zip(changes, ends, strict=True):
        waits[event.why_idle or event.phase] += max(0.0, until - at)
    return {why: round(seconds, 1) for why, seconds in waits.items()}


def show(found: LoadMeasured) -> None:
    """Print the table."""
    print(
        f"{found.loops} busy loops on {found.cores} cores (load {found.load:.0f}) for {found.seconds / 60:.0f} min: "
        f"{found.rounds} rounds, {found.attempts_per_round:.1f} attempts and {found.bytes_per_round / 1e6:.1f} MB each, "
        f"{found.members_lost} members lost and {found.members_regained} taken back, {found.trainers_ended} trainers ended"
    )
    print("| peer | rounds | lost | taken back | suspected (disconnected) | attempts | MB | trainers (ended) | waits, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for each in found.peers:
        waits = ", ".join(f"{why} {seconds:.0f}" for why, seconds in sorted(each.waits.items(), key=lambda pair: -pair[1]))
        print(
            f"| {each.name} | {each.rounds} | {each.lost} | {each.regained} | {each.suspected} ({each.disconnected}) | "
            f"{each.attempts} | {each.exchanged_bytes / 1e6:.1f} | {each.trainers} ({len(each.ended)}) | {waits} |"
        )
    for detail in sorted({detail for each in found.peers for detail in each.details}):
        print(f"named: {detail}")
    for each in found.peers:
        for reason in each.ended:
            print(f"{each.name}: {reason}")


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.busy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--loops", type=int, default=LOOPS)
    parser.add_argument("--steps", type=int, default=5, help="inner steps of a round")
    parser.add_argument("--stall", type=float, default=30.0, help="`stall_s` of the run")
    parser.add_argument("--json", action="store_true", help="print an object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="busy-") as folder:
        found = measure(Path(folder), options)
    if options.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show(found)
    return 0 if found.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
