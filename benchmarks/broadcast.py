"""One origin gives a blob to N receivers over emulated links: `python -m benchmarks.broadcast --receivers 2 4 8`.

Needs root.  Real processes run, each in its own network namespace with `--rate` up and down.  The limit is size/B: the
origin cannot send one copy sooner.  The time runs until the last receiver has all of it.

    --delay MS, --loss PERCENT    between any two peers, one way
    --shardcast FOLDER            the same bytes by PyPI shardcast 0.3.2, which `pip install --target FOLDER` put there:
                                  an origin, `--relays` relays with lines of their own, and as many clients

shardcast cannot pass on a shard before it is whole, so smaller shards are better for it; it gets them (`--shard`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.exchange import Member, Swarm
from benchmarks.links import Access, Links, address, why_not
from benchmarks.shaped import rate


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.broadcast", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--receivers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rate", type=rate, default=rate("100mbit"))
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=1 << 18, help="bytes a chunk")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--shardcast", type=Path)
    parser.add_argument("--relays", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--shard", type=int, default=8_000_000, help="bytes of a shard of shardcast")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"links cannot be emulated here: {reason}")
    size = arguments.megabytes << 20
    limit = size * 8 / arguments.rate
    print(
        f"{size / 1e6:.0f} MB, {arguments.rate / 1e6:.0f} Mbit/s each way, {arguments.delay:.0f} ms one way, "
        f"{arguments.loss:g} % lost; size/B is {limit:.2f} s; medians of {arguments.repeat}\n"
    )
    print("| receivers | seconds | over size/B | copies sent by the origin | fetched twice, MB | CPU s a receiver |")
    print("|---|---|---|---|---|---|", flush=True)
    rows = []
    for receivers in arguments.receivers:
        row = broadcast(arguments, receivers, size)
        rows.append({"receivers": receivers, "over_limit": row["seconds"] / limit, **row})
        print(
            f"| {receivers} | {row['seconds']:.2f} | {row['seconds'] / limit:.3f} | {row['copies']:.2f} | "
            f"{row['twice'] / 1e6:.1f} | {row['cpu_seconds']:.1f} |",
            flush=True,
        )
    if arguments.shardcast:
        print("\n| shardcast 0.3.2, relays | seconds | over size/B | over ours |\n|---|---|---|---|", flush=True)
        others = []
        for relays in arguments.relays:
            seconds = shardcast(arguments, relays, arguments.receivers[-1], size, 20 * limit + 60)
            others.append(seconds)
            print(f"| {relays} | {seconds:.2f} | {seconds / limit:.2f} | {seconds / rows[-1]['seconds']:.2f} |", flush=True)
        rows[-1]["times_shardcast"] = min(others) / rows[-1]["seconds"]
    if arguments.json:
        print(json.dumps({"bytes": size, "limit_s": limit, "rows": rows, **rows[-1]}))


def broadcast(arguments: argparse.Namespace, receivers: int, size: int) -> dict[str, float]:
    """Return medians: the last receiver's seconds, copies from the origin, bytes fetched twice by all, processor seconds."""
    lines = [Access(arguments.rate, arguments.rate)] * (receivers + 1)
    with Links(lines, delay_s=arguments.delay / 1000, loss=arguments.loss / 100) as links:
        words = [str(size), str(arguments.chunk)]
        commands = [
            [sys.executable, "-m", "benchmarks.broadcast_member", address(peer), *words] for peer in range(receivers + 1)
        ]
        swarm = Swarm(
            [
                Member(links.start(peer, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                for peer, command in enumerate(commands)
            ]
        )
        rows = [one(swarm, size) for _ in range(arguments.repeat)]
        swarm.end()
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def shardcast(arguments: argparse.Namespace, relays: int, clients: int, size: int, patience_s: float) -> float:
    """Return the seconds until the last client has the file; infinite if a client does not have it within `patience_s`.

    Each process has a copy of the package, because the package writes into its own folder.
    """
    lines = [Access(arguments.rate, arguments.rate)] * (1 + relays + clients)
    with (
        tempfile.TemporaryDirectory() as folder,
        Links(lines, delay_s=arguments.delay / 1000, loss=arguments.loss / 100) as links,
    ):

        def start(number: int, role: str, *words: str) -> Member:
            own = Path(folder) / str(number)
            shutil.copytree(arguments.shardcast, own / "package")
            command = [sys.executable, "benchmarks/shardcast_member.py", role, str(own / "data"), *words]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            member = Member(links.start(number, command, env={**os.environ, "PYTHONPATH": str(own / "package")}, **pipes))
            member.hear()
            return member

        origin = start(0, "origin", str(size), str(arguments.shard))
        relayed = [start(number, "relay", address(0)) for number in range(1, 1 + relays)]
        servers = [address(number) for number in range(1, 1 + relays)] or [address(0)]
        waiting = [start(number, "client", *servers) for number in range(1 + relays, 1 + relays + clients)]
        for member in (origin, *waiting):
            member.say(do="begin")
        origin.hear()
        everybody = [member.process for member in (origin, *relayed, *waiting)]
        giving_up = threading.Timer(patience_s, _end, [everybody])
        giving_up.start()
        try:
            return max(float(member.hear()["seconds"]) for member in waiting)
        except SystemExit:
            return float("inf")
        finally:
            giving_up.cancel()
            _end(everybody)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def one(swarm: Swarm, size: int) -> dict[str, float]:
    origin, *receivers = swarm.members
    origin.say(do="make")
    name = origin.hear()["name"]
    origin.say(do="count")
    before = origin.hear()["up_bytes"]
    for receiver in receivers:
        receiver.say(do="fetch", name=name, origin=swarm.introductions[0]["peer"])
    answers: list[dict[str, Any]] = [receiver.hear() for receiver in receivers]
    origin.say(do="count")
    copies = (origin.hear()["up_bytes"] - before) / size
    return {
        "seconds": max(answer["seconds"] for answer in answers),
        "copies": copies,
        "twice": sum(max(0.0, answer["down_bytes"] - size) for answer in answers),
        "cpu_seconds": statistics.mean(answer["cpu_seconds"] for answer in answers),
    }


if __name__ == "__main__":
    main()
