"""Check of rate caps, and of the rates that remain for each kind of traffic: `python -m benchmarks.caps --up 20 --down 20`.

Needs root.  Four real processes run, each in its own network namespace with lines of `--line` Mbit/s.  The first one has
caps.  It averages with two others, round after round, serves a blob to the fourth, and fetches another blob from the second,
all at once, while the fourth asks it short questions.  Bytes are counted at its network interface, headers included, in the
fullest 30 seconds since the first byte.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.exchange import Member, Swarm
from benchmarks.links import Access, Links, address, why_not

PEERS, MEMBERS = 4, 3
WINDOW_S = 30.0
CHUNK = 1 << 18


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.caps", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--up", type=float, nargs="*", default=[20.0], help="Mbit/s")
    parser.add_argument("--down", type=float, nargs="*", default=[20.0], help="Mbit/s, as many as of --up")
    parser.add_argument("--line", type=float, default=1000.0, help="Mbit/s")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"network namespaces cannot be made here: {reason}")
    rows = [measure(up, down, arguments) for up, down in zip(arguments.up, arguments.down, strict=True)]
    if arguments.json:
        print(json.dumps({"rows": rows, **{key: max(row[key] for row in rows) for key in ("over_cap_up", "over_cap_down")}}))
        return
    print(f"fullest {WINDOW_S:.0f} s of {arguments.seconds:.0f} s, lines of {arguments.line:.0f} Mbit/s\n")
    print("| cap up, down, Mbit/s | over cap up | down | use of cap up | down | rounds | question, median ms | longest |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['up']:g}, {row['down']:g} | {row['over_cap_up']:+.1%} | {row['over_cap_down']:+.1%} | "
            f"{row['use_up']:.0%} | {row['use_down']:.0%} | {row['rounds']} | "
            f"{row['question_s'] * 1e3:.0f} | {row['longest_question_s'] * 1e3:.0f} |"
        )


def measure(up: float, down: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return one row: the load of the fullest window in each direction, and the time of questions meanwhile."""
    caps = [up * 125e3, down * 125e3]
    parameters = max(CHUNK, int(2 * min(caps)))
    blob = int(2 * max(caps) * arguments.seconds)
    line = Access(arguments.line * 1e6, arguments.line * 1e6)
    with Links([line] * PEERS) as links:
        swarm = Swarm([_start(links, peer, parameters, blob, caps if peer == 0 else [0.0, 0.0]) for peer in range(PEERS)])
        names = [introduction["peer"] for introduction in swarm.introductions]
        swarm.ask(do="begin", fetch={names[3]: 0, names[0]: 1}, ask=[names[3]])
        begun, rounds = time.monotonic(), 0
        while time.monotonic() - begun < arguments.seconds:
            swarm.ask(do="exchange", members=MEMBERS)
            rounds += 1
        reports = swarm.ask(do="report")
        swarm.end()
    samples, questions = reports[0]["samples"], reports[3]["questions"]
    row: dict[str, Any] = {"up": up, "down": down, "rounds": rounds}
    for which, (direction, cap) in enumerate(zip(("up", "down"), caps, strict=True), 1):
        fullest = fullest_window([(sample[0], sample[which]) for sample in samples], WINDOW_S)
        seconds = samples[-1][0] - samples[0][0]
        row[f"over_cap_{direction}"] = fullest / (cap * WINDOW_S) - 1
        row[f"use_{direction}"] = (samples[-1][which] - samples[0][which]) / (cap * seconds)
    return row | {"question_s": statistics.median(questions), "longest_question_s": max(questions)}


def fullest_window(counts: Sequence[tuple[float, int]], window_s: float) -> float:
    """Return the most bytes in a window of (time, bytes so far); each window spans two counts and is scaled."""
    most = 0.0
    for index, (begin, before) in enumerate(counts):
        end = next(((at, so_far) for at, so_far in counts[index:] if at - begin >= window_s), None)
        if end is not None:
            most = max(most, (end[1] - before) * window_s / (end[0] - begin))
    return most


def _start(links: Links, peer: int, parameters: int, blob: int, caps: Sequence[float]) -> Member:
    words = [parameters, CHUNK, blob, address(peer), *caps]
    command = [sys.executable, "-m", "benchmarks.caps_member", *map(str, words)]
    return Member(links.start(peer, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))


if __name__ == "__main__":
    main()
