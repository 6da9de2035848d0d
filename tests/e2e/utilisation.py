"""`python -m tests.e2e.utilisation`: how much of the time a trainer and rollout peers compute while versions are broadcast.

As root.  Real peers on emulated lines (`benchmarks.links`): a trainer, rollout peers and a validator.  Their trainer
processes do all their work, and take as long as told (`tests.e2e.paced_peer`), as each has a computer of its own in a swarm.
The lines carry a version to one peer in `--broadcast` seconds.  The defaults have the ratio of INTELLECT-2's run (Prime
Intellect 2025): 14 minutes for a broadcast to 22 for the rollouts of a version, with seconds in place of minutes.

A peer's utilisation is the time in which its trainer process had work, over the time from the first to the last of the
counted versions.  A trainer's verifying counts too, as work of its trainer process; learning alone is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.links import Access, Links, address, why_not
from protocol.events import events as ev
from protocol.run.manifest import open_manifest
from tests.e2e.paced_peer import BUSY_FILE, GENERATE, LEARN, READ, VERIFY
from tests.e2e.swarm import LARGE_MODEL, Peer, Swarm

PORT, PATIENCE_S = 4800, 1800.0
RUN = (
    LARGE_MODEL.replace("sequence_length = 32", "sequence_length = 64")
    + """
[rounds]
inner_steps = 10
[rl]
environment = "sort"
warm_rounds = 1
prompts_per_batch = 2
group_size = 4
batches_per_round = {batches}
max_tokens = 8
row_tokens = 64
micro_batch_tokens = 512
optimizer_steps = 1
drop_zero_advantage = false
warmup_steps = 0
"""
)


@dataclass(frozen=True)
class Work:
    """A piece of work of a trainer process.  begun, ended: s, monotonic clock."""

    what: str
    begun: float
    ended: float

    def within(self, begin: float, end: float) -> float:
        """Seconds of it between these."""
        return max(0.0, min(self.ended, end) - max(self.begun, begin))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.utilisation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--generate", type=float, default=22.0, help="s, for the rollouts of a version, by all together")
    parser.add_argument("--learn", type=float, default=23.0, help="s, for a version")
    parser.add_argument("--broadcast", type=float, default=14.0, help="s, for a version to one peer")
    parser.add_argument("--batches", type=int, default=8, help="of a version")
    parser.add_argument("--rollout-peers", type=int, default=2)
    parser.add_argument("--versions", type=int, default=10, help="that count, after the first two")
    parser.add_argument("--delay", type=float, default=20.0, help="ms, one way")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"lines cannot be emulated here: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments, Path(folder))
    return 0


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Run the swarm, and print what it did."""
    with Swarm(folder, RUN.format(batches=arguments.batches)) as swarm:
        swarm.create_run()
        parameters = open_manifest(swarm.manifest.read_bytes()).manifest.parameters
        bits_per_s = 8 * parameters / arguments.broadcast
        print(f"{parameters / 1e6:.2f} M parameters, {bits_per_s / 1e6:.2f} Mbit/s each way", file=sys.stderr, flush=True)
        batch_s = arguments.generate * arguments.rollout_peers / arguments.batches
        with Links(
            [Access(bits_per_s, bits_per_s)] * (arguments.rollout_peers + 2), delay_s=arguments.delay / 1000
        ) as links:
            cast = Cast(swarm, links, folder, {GENERATE: batch_s, LEARN: arguments.learn, VERIFY: batch_s / 10})
            trainer, *others = cast.start(arguments.rollout_peers)
            end = cast.until_versions(arguments.versions + 2)
            begin = end[0]
            rows = [row_of(peer, cast.work(peer), begin, end[1]) for peer in (trainer, *others)]
            switched = [late for peer in others[:-1] for late in lateness(trainer, peer)]
    seconds = (end[1] - begin) / arguments.versions
    print(f"{arguments.versions} versions, {seconds:.1f} s each.")
    print(f"Rollout peers have a version {statistics.median(switched):.1f} s after the trainer (median).")
    print("Share of the time in which the trainer process had work:\n")
    print("| peer | computing | learning | generating | verifying |\n|---|---|---|---|---|")
    for row in rows:
        shares = " | ".join(f"{row[what]:.1%}" for what in ("computing", LEARN, GENERATE, VERIFY))
        print(f"| {row['peer']} | {shares} |")
    if arguments.json:
        settings = {name: value for name, value in vars(arguments).items() if name != "json"}
        print(json.dumps({**settings, "seconds_a_version": seconds, "switched_s": switched, "peers": rows}))


class Cast:
    """The peers of one measurement.  paces: seconds that each kind of work takes."""

    def __init__(self, swarm: Swarm, links: Links, folder: Path, paces: dict[str, float]) -> None:
        self._swarm, self._links, self._folder, self._paces = swarm, links, folder, paces
        self._trainer: Peer | None = None

    def start(self, rollout_peers: int) -> list[Peer]:
        """The trainer, rollout peers, and the validator."""
        printed = self._swarm.command(
            self._swarm.place("trainer"),
            *("run", "create", str(self._swarm.run_file), "--out", str(self._folder / "lines.manifest")),
            *("--address", f"/ip4/{address(0)}/tcp/{PORT}"),
        )
        invitation = next(word for word in printed.split() if word.startswith("mh1"))
        roles = ["trainer", *["rollout"] * rollout_peers, "validator"]
        names = ["trainer", *(f"rollout-{number}" for number in range(rollout_peers)), "validator"]
        return [
            self._start(number, name, role, invitation) for number, (name, role) in enumerate(zip(names, roles, strict=True))
        ]

    def _start(self, number: int, name: str, role: str, invitation: str) -> Peer:
        peer = self._swarm.peer(name, invitation)
        paces = [f"PACE_{what.upper()}={seconds}" for what, seconds in self._paces.items()]
        peer.around = (*self._links.place(number), "env", f"{BUSY_FILE}={self._busy_file(peer)}", *paces)
        peer.local, peer.program = False, ("tests.e2e.paced_peer",)
        self._trainer = self._trainer or peer
        return peer.start("--port", str(PORT), "--role", role)

    def until_versions(self, count: int) -> tuple[float, float]:
        """When the second and the last of so many versions had been learned (monotonic clock)."""
        trainer, seen = self._trainer, list[float]()
        assert trainer is not None

        def made() -> bool:
            while len(seen) < len(trainer.heard(ev.RolloutsUsed)):
                seen.append(time.monotonic())
                print(f"version {len(seen)} of {count}", file=sys.stderr, flush=True)
            return len(seen) >= count

        self._swarm.until(f"{count} versions", made, PATIENCE_S)
        return seen[1], seen[count - 1]

    def work(self, peer: Peer) -> list[Work]:
        """What its trainer process did."""
        return [Work(**json.loads(line)) for line in self._busy_file(peer).read_text().splitlines()]

    def _busy_file(self, peer: Peer) -> Path:
        return self._folder / f"{peer.name}.busy"


def row_of(peer: Peer, work: Sequence[Work], begin: float, end: float) -> dict[str, Any]:
    """A line of the table: shares of the time between these."""
    shares = {
        what: sum(piece.within(begin, end) for piece in work if piece.what == what) / (end - begin)
        for what in (LEARN, GENERATE, VERIFY, READ)
    }
    return {"peer": peer.name, "computing": sum(shares.values()), **shares}


def lateness(trainer: Peer, other: Peer) -> list[float]:
    """Seconds between the trainer's and another's state after each round, of those that learned from rollouts."""
    of_trainer, of_other = (
        {stamped.event.rounds: stamped.at for stamped in list(peer.stamped) if isinstance(stamped.event, ev.StateApplied)}
        for peer in (trainer, other)
    )
    return [of_other[rounds] - at for rounds, at in of_trainer.items() if rounds in of_other and rounds > 1]


if __name__ == "__main__":
    sys.exit(main())
