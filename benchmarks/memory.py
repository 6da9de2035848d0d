"""What a run's memory is estimated at, and what a real peer takes: `python -m benchmarks.memory`.

For each model a real `peer join` trains one round of two steps alone, from a run file.  The peak of the peer is the
kernel's own (VmHWM); that of the trainer is sampled, without the memory that it shares with the peer, which counts there.
With --state disk the parameters and the contribution are files, which count in both processes while they are mapped.
Prints a table, or with --json one object; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.neighbours import events
from peer.resources.computer import Need, StatePlace, memory_need
from protocol.run.run_file import load_run_file
from protocol.wire.identity import Identity

MODELS = {
    "demo": "sequence_length = 256 # 0.8 M parameters",
    "30M": "[model]\ndim = 512\nlayers = 10",
    "100M": "[model]\ndim = 768\nlayers = 16",
    "180M": "[model]\ndim = 1024\nlayers = 15",
}
LOOK_EVERY_S = 0.01
END_DEADLINE_S = 60.0


@dataclass
class Peak:
    """Bytes so far."""

    peer: int = 0
    trainer: int = 0

    def look(self, process: psutil.Process) -> None:
        """At a running peer and its trainer."""
        self.peer = max(self.peer, resident(process.pid).get("VmHWM", 0))
        for child in process.children():
            of_child = resident(child.pid)
            self.trainer = max(self.trainer, of_child.get("RssAnon", 0) + of_child.get("RssFile", 0))


def resident(pid: int) -> dict[str, int]:
    """What the kernel says of a process's memory, in bytes; nothing of one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {name.rstrip(":"): 1024 * int(count) for name, count, _ in words}


def run_file(name: str) -> str:
    model = "[data]\n" + MODELS[name] if name == "demo" else MODELS[name]
    return f'name = "memory"\n{model}\n[rounds]\ninner_steps = 2\ngrace_s = 1.0\n'


def measure(name: str, place: StatePlace, patience_s: float) -> tuple[int, Need, Peak]:
    """(parameters, estimate, peak) of one round."""
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        file, log = Path(folder) / "run.toml", Path(folder) / "log"
        file.write_text(run_file(name))
        manifest = load_run_file(file, Identity.generate().peer_id)
        command = [
            sys.executable,
            "-m",
            "peer",
            "join",
            str(file),
            "--headless",
            "--log-format",
            "json",
            "--local",
            "--data-dir",
            str(Path(folder) / "peer"),
            "--state",
            place.value,
        ]
        environment = {**os.environ, "PEER_RUNTIME_DIR": str(Path(folder) / "runtime")}
        peak, deadline = Peak(), time.monotonic() + patience_s
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None and time.monotonic() < deadline and not is_over(log):
                for _ in range(50):
                    peak.look(psutil.Process(process.pid))
                    time.sleep(LOOK_EVERY_S)
        finally:
            process.terminate()
            process.wait(END_DEADLINE_S)
        if not is_over(log):
            raise SystemExit(f"{name}: no round in {patience_s:.0f} s; the last words: {log.read_text()[-300:]}")
        return manifest.parameters, memory_need(manifest, place=place), peak


def is_over(log: Path) -> bool:
    """A round is committed and its state applied."""
    return any(event["event"] == "StateApplied" and event["rounds"] >= 1 for event in events(log))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["demo", "30M", "100M"])
    parser.add_argument("--state", choices=[place.value for place in StatePlace], default=StatePlace.RAM.value)
    parser.add_argument("--patience", type=float, default=3600.0, help="seconds that a model may take")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.json:
        print(
            "| model | parameters | peer, estimate MB | peer, peak MB | ratio | trainer, estimate MB | trainer, peak MB | "
            "ratio |\n|---|---|---|---|---|---|---|---|",
            flush=True,
        )
    rows = []
    for name in arguments.models:
        parameters, need, peak = measure(name, StatePlace(arguments.state), arguments.patience)
        rows.append(
            {
                "model": name,
                "parameters": parameters,
                "peer_estimate": need.peer,
                "peer_peak": peak.peer,
                "trainer_estimate": need.trainer,
                "trainer_peak": peak.trainer,
            }
        )
        if not arguments.json:
            print(
                f"| {name} | {parameters / 1e6:.1f} M | {need.peer / 1e6:.0f} | {peak.peer / 1e6:.0f} | "
                f"{need.peer / peak.peer:.2f} | {need.trainer / 1e6:.0f} | {peak.trainer / 1e6:.0f} | "
                f"{need.trainer / peak.trainer:.2f} |",
                flush=True,
            )
    if arguments.json:
        print(json.dumps({"models": rows}))


if __name__ == "__main__":
    main()
