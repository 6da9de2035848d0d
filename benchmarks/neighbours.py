"""Several peers on one computer, started one by one, against the demo: `python -m benchmarks.neighbours --repeat 5`.

Three real `peer join` without any option about threads, as a person types them into three terminals, train the built-in run
(with --inner-steps, a run with fewer steps a round, for a busy computer); before them, in the same repetition, `peer demo`
trains it with three peers.  A peer's speed is the mean of its reports at the end of each round, over the rounds that all
three hold together, except the first.

Prints a table, or with --json one object; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.run.manifest import demo_manifest
from protocol.run.run_file import dump

LOOK_EVERY_S = 0.5
END_DEADLINE_S = 30.0
OWN_THREADS = ("PEER_TRAINER_THREADS", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")
"""Not handed on: the peers are to decide by themselves."""


@dataclass(frozen=True)
class Speed:
    """Speed of the peers.

    tokens_per_s: the rate of each peer while it computes.  round_s: the seconds from one commit to the next; None without
    two.
    """

    tokens_per_s: list[float]
    round_s: float | None

    @property
    def mean(self) -> float:
        return statistics.mean(self.tokens_per_s)


def events(log: Path) -> list[dict[str, Any]]:
    """Return the events of a peer so far; an incomplete line is left out."""
    if not log.exists():
        return []
    lines = log.read_bytes().rpartition(b"\n")[0].splitlines()
    return [json.loads(line) for line in lines if line.startswith(b"{")]


def whole_rounds(log: Path, peers: int) -> list[dict[str, Any]]:
    """Return the commits of rounds with this number of members."""
    return [event for event in events(log) if event["event"] == "RoundCommitted" and len(event["members"]) == peers]


def speed(logs: Sequence[Path]) -> Speed:
    """Return the speed of the peers with these logs; without two rounds together, the speed of their steps so far."""
    rates, spans = [], []
    for log in logs:
        commits = whole_rounds(log, len(logs))
        last = {event["round"]: event["tokens_per_s"] for event in events(log) if event["event"] == "ComputeProgress"}
        rounds = sorted(set(last) & {commit["round"] for commit in commits[1:]}) or sorted(last)
        rates.append(statistics.mean(last[round] for round in rounds) if rounds else 0.0)
        spans += [(commits[-1]["at"] - commits[0]["at"]) / (len(commits) - 1)] if len(commits) > 1 else []
    return Speed(rates, statistics.mean(spans) if spans else None)


def demo(what: argparse.Namespace, environment: dict[str, str]) -> Speed:
    """Run `peer demo` to its end."""
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
        command = [
            sys.executable,
            "-m",
            "peer",
            "demo",
            "--json",
            "--keep",
            "--peers",
            str(what.peers),
            "--rounds",
            str(what.rounds),
            *(["--run", str(run_file(Path(folder), what))] if what.inner_steps else []),
        ]
        places = {"TMPDIR": folder, "PEER_RUNTIME_DIR": f"{folder}/runtime"}
        subprocess.run(command, env={**environment, **places}, check=True, stdout=subprocess.DEVNULL)
        (kept,) = Path(folder).glob("manyhands-demo-*")
        return speed([kept / f"peer-{number}" / "output.log" for number in range(1, what.peers + 1)])


def neighbours(what: argparse.Namespace, environment: dict[str, str]) -> Speed:
    """Run `what.peers` peers until they have held enough rounds together, or for `what.patience`."""
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder, ExitStack() as stack:
        environment = {**environment, "PEER_RUNTIME_DIR": f"{folder}/runtime"}
        run = [str(manifest(Path(folder), what, environment))] if what.inner_steps else []
        places = [Path(folder) / f"peer-{number}" for number in range(1, what.peers + 1)]
        logs = [place.with_suffix(".log") for place in places]
        for place, log in zip(places, logs, strict=True):
            stack.enter_context(joined(run, place, log, environment))
        deadline = time.monotonic() + what.patience
        while not all(len(whole_rounds(log, what.peers)) >= what.rounds for log in logs) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        return speed(logs)


def run_file(folder: Path, what: argparse.Namespace) -> Path:
    """Write the built-in run with a different number of inner steps."""
    path = folder / "run.toml"
    lines = dump(demo_manifest().manifest).splitlines()
    kept = [line for line in lines if not line.startswith(("organiser =", "inner_steps ="))]
    path.write_text("\n".join(kept).replace("[rounds]", f"[rounds]\ninner_steps = {what.inner_steps}"))
    return path


def manifest(folder: Path, what: argparse.Namespace, environment: dict[str, str]) -> Path:
    """Sign the same run with the key of a person who takes no part."""
    path = folder / "run.manifest"
    command = [
        sys.executable,
        "-m",
        "peer",
        "run",
        "create",
        str(run_file(folder, what)),
        "--out",
        str(path),
        "--data-dir",
        str(folder / "organiser"),
    ]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return path


class joined:  # noqa: N801 - reads as a word in a with statement
    """Run a `peer join`, and tell it to leave at the end."""

    def __init__(self, run: Sequence[str], place: Path, log: Path, environment: dict[str, str]) -> None:
        command = [
            sys.executable,
            "-m",
            "peer",
            "join",
            *run,
            "--headless",
            "--log-format",
            "json",
            "--local",
            "--data-dir",
            str(place),
        ]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def repetitions(arguments: argparse.Namespace) -> Iterator[tuple[Speed, Speed]]:
    """Yield (demo, joins), one after the other so that both meet the same other work on the computer."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN_THREADS}
    for _ in range(arguments.repeat):
        first = demo(arguments, environment)
        yield first, neighbours(arguments, environment)


def seconds(measured: Speed) -> str:
    return "-" if measured.round_s is None else f"{measured.round_s:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=__doc__)
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6, help="rounds that all hold together")
    parser.add_argument("--inner-steps", type=int, default=0, help="steps a round (default: the built-in run's)")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--patience", type=float, default=600.0, help="seconds given to the joins, whatever they reach")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.json:
        print(f"{arguments.peers} peers, {len(os.sched_getaffinity(0))} cores, {arguments.rounds} rounds\n")
        print(
            "| repetition | demo, tokens/s a peer | joins, tokens/s a peer | joins / demo | demo, s a round | "
            "joins, s a round |\n|---|---|---|---|---|---|",
            flush=True,
        )
    rows, ratios = [], []
    for number, (first, second) in enumerate(repetitions(arguments), 1):
        ratios.append(second.mean / first.mean)
        rows.append(
            {
                "demo": first.tokens_per_s,
                "joins": second.tokens_per_s,
                "ratio": ratios[-1],
                "demo_round_s": first.round_s,
                "joins_round_s": second.round_s,
            }
        )
        if not arguments.json:
            print(
                f"| {number} | {first.mean:.0f} | {second.mean:.0f} | {ratios[-1]:.2f} | "
                f"{seconds(first)} | {seconds(second)} |",
                flush=True,
            )
    if arguments.json:
        print(
            json.dumps(
                {"peers": arguments.peers, "rounds": arguments.rounds, "repetitions": rows, "least_ratio": min(ratios)}
            )
        )


if __name__ == "__main__":
    main()
