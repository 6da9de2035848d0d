"""`python -m tests.attacks`: runs all attacks and prints what came of them.

    python -m tests.attacks [--only NAME] [--processes] [--json]

Rounds are counted over 80 virtual seconds after the third round of an attack, beside those of the same peers without it.
Attacks on one process show how its memory grew at most, and how late its event loop was at most; behind that, how long the
loop itself was busy at a time, which is what counts: on a machine that does other things it is late for their sake, too.
The exit status is 1 when an attack is not held.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence

from tests.attacks.attack import Outcome
from tests.attacks.cost import Cost
from tests.attacks.processes import run_processes
from tests.attacks.suite import BURDENS, SIMULATED, run_named

HEAD = (
    f"{'attack':<34} {'liars':>5} {'keys':>5} {'rounds':>9} {'pause s':>11} {'kB/peer':>13} {'ejected':>7} "
    f"{'MB':>5} {'late ms':>11}  held"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="attacks whose name contains this")
    parser.add_argument("--processes", action="store_true", help="then also real peers, attacked by a neighbour or a member")
    parser.add_argument("--json", action="store_true", help="one object {attacks, held, costs} on the last line")
    arguments = parser.parse_args()
    chosen = [name for name in (*SIMULATED, *BURDENS) if arguments.only is None or arguments.only in name]
    started = time.perf_counter()
    print(HEAD, flush=True)
    outcomes: list[Outcome] = []
    for outcome in run_all(chosen, processes=arguments.processes):
        outcomes.append(outcome)
        print(row(outcome), flush=True)
    held, attacks = sum(outcome.held for outcome in outcomes), len(outcomes)
    print(f"{held} of {attacks} attacks held, {time.perf_counter() - started:.0f} s")
    if arguments.json:
        costs = {outcome.name: as_json(outcome.cost) for outcome in outcomes if outcome.cost is not None}
        print(json.dumps({"attacks": attacks, "held": held, "costs": costs}))
    return 0 if held == attacks else 1


def run_all(chosen: Sequence[str], *, processes: bool) -> Iterator[Outcome]:
    """Run the simulated ones side by side, then those on single processes one after the other, each in a new process.

    processes: True to run those on three and four real peers after that.
    """
    spawn = multiprocessing.get_context("spawn")
    simulated, burdens = ([name for name in chosen if name in known] for known in (SIMULATED, BURDENS))
    with spawn.Pool(min(len(simulated) or 1, multiprocessing.cpu_count())) as pool:
        yield from pool.imap(run_named, simulated)
    with spawn.Pool(1, maxtasksperchild=1) as pool:
        yield from pool.imap(run_named, burdens, chunksize=1)
    if processes:
        yield from run_processes()


def as_json(cost: Cost) -> dict[str, float]:
    """Memory in MB (10^6 bytes), times in ms."""
    return {
        "memory_mb": round(cost.grown / 1e6, 1),
        "late_ms": round(cost.stall_s * 1000, 1),
        "busy_ms": round(cost.busy_s * 1000, 1),
    }


def row(outcome: Outcome) -> str:
    """Of the table; what failed is below it."""
    made, calm = outcome.measured, outcome.undisturbed
    rounds = f"{made.rounds}/{calm.rounds}" if calm else "-"
    pause = f"{made.pause_s:.1f}/{calm.pause_s:.1f}" if calm else "-"
    traffic = f"{made.received / 1e3:.0f}/{calm.received / 1e3:.0f}" if calm else "-"
    ejected = f"{outcome.ejected}/{outcome.liars}" if outcome.liars else "-"
    cost = outcome.cost
    memory = f"{cost.grown / 1e6:+.0f}" if cost else "-"
    late = f"{cost.stall_s * 1000:.0f} ({cost.busy_s * 1000:.0f})" if cost else "-"
    line = (
        f"{outcome.name:<34} {outcome.liars:>5} {outcome.keys:>5} {rounds:>9} {pause:>11} {traffic:>13} {ejected:>7} "
        f"{memory:>5} {late:>11}  "
        f"{'held' if outcome.held else 'NOT HELD'}"
    )
    line = f"{line}  {outcome.details}".rstrip()
    return line if outcome.held else f"{line}\n    {outcome.failure}"


if __name__ == "__main__":
    raise SystemExit(main())
