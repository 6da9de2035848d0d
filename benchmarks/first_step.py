"""Time from the command to the first training step, with real peers: `python -m benchmarks.first_step`.

Starts a demo swarm on this computer and ends it when every peer has done its first inner step.  It prints for each peer the
seconds after the start at which the trainer was ready, training began and the first step was done, and the CPU seconds that
peer and trainer had used by then, which other work on the computer changes little.  Without `--run` the model has 99 M
parameters.  It loads all cores for as long as it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from peer.demo.cast import DemoMember
from peer.demo.swarm import Demo, training_play

HUNDRED_MILLION = """
name = "hundred million"
chunk_parameters = 1048576
checkpoint_chunk_bytes = 4194304

[model]
dim = 768
layers = 12
heads = 12
kv_heads = 12
ffn = 2560
"""
PATIENCE_S = 3600.0


class _AllHaveStepped(Exception):
    """Raised when every peer has done its first step."""


def milestones(log: str, started: float) -> dict[str, float]:
    """Return the seconds after `started` (wall clock) of each milestone in a peer's log of JSON lines."""
    reached: dict[str, float] = {}
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # not an event, or not written to its end yet
        name = _milestone(event)
        if name and name not in reached:
            reached[name] = round(event["at"] - started, 1)
    return reached


def _milestone(event: dict[str, Any]) -> str:
    match event.get("event"):
        case "TrainerStarted":
            return "trainer_ready_s"
        case "PhaseChanged" if event["phase"] == "computing" and not event["detail"]:
            return "training_begun_s"
        case "ComputeProgress":
            return "first_step_s"
        case _:
            return ""


def measure(peers: int, run_file: Path) -> dict[str, Any]:
    """Measure one start of `peers` peers."""
    play = training_play(peers, 1, run_file)
    with Demo(play, keep=False, patience_s=PATIENCE_S) as demo:
        started, used = time.time(), dict[str, float]()
        demo.start()

        def look() -> None:
            for member in demo.members:
                if member.name not in used and "first_step_s" in _milestones(member, started):
                    used[member.name] = round(_cpu_s(member.process.pid), 1)
            if len(used) == peers:
                raise _AllHaveStepped

        with contextlib.suppress(_AllHaveStepped):
            demo.watch(look)
        return {
            "peers": peers,
            "parameters": play.signed.manifest.parameters,
            "each": [_milestones(member, started) | {"cpu_s": used[member.name]} for member in demo.members],
        }


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process and its children have used."""
    peer = psutil.Process(pid)
    times = [process.cpu_times() for process in (peer, *peer.children(recursive=True))]
    return sum(float(each.user + each.system) for each in times)


def _milestones(member: DemoMember, started: float) -> dict[str, float]:
    return milestones((member.folder / "output.log").read_text(errors="replace"), started)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.first_step", description=__doc__)
    parser.add_argument("--peers", type=int, default=1)
    parser.add_argument("--run", type=Path, help="another run file than the one of 99 M parameters")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_file = arguments.run or Path(folder) / "hundred-million.toml"
        if arguments.run is None:
            run_file.write_text(HUNDRED_MILLION)
        for _ in range(arguments.repeat):
            result = measure(arguments.peers, run_file)
            if arguments.json:
                print(json.dumps(result), flush=True)
                continue
            print(f"{result['peers']} peers, {result['parameters'] / 1e6:.0f} M parameters")
            for each in result["each"]:
                print("  " + ", ".join(f"{name} {seconds}" for name, seconds in each.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
