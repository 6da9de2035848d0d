"""`python -m tests.attacks`: runs all attacks and prints what came of them.

    python -m tests.attacks [--only NAME] [--json]

Rounds are counted over 80 virtual seconds after the third round of an attack, beside those of the same peers without it.
The exit status is 1 when an attack is not held.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time

from tests.attacks.attack import Outcome
from tests.attacks.suite import SIMULATED, run_named

HEAD = f"{'attack':<34} {'liars':>5} {'keys':>5} {'rounds':>9} {'pause s':>11} {'kB/peer':>13} {'ejected':>7}  held"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="attacks whose name contains this")
    parser.add_argument("--json", action="store_true", help="one object {attacks, held} on the last line")
    arguments = parser.parse_args()
    chosen = [name for name in SIMULATED if arguments.only is None or arguments.only in name]
    started, held = time.perf_counter(), 0
    print(HEAD, flush=True)
    with multiprocessing.get_context("spawn").Pool(min(len(chosen) or 1, multiprocessing.cpu_count())) as pool:
        for outcome in pool.imap(run_named, chosen):
            held += outcome.held
            print(row(outcome), flush=True)
    print(f"{held} of {len(chosen)} attacks held, {time.perf_counter() - started:.0f} s")
    if arguments.json:
        print(json.dumps({"attacks": len(chosen), "held": held}))
    return 0 if held == len(chosen) else 1


def row(outcome: Outcome) -> str:
    """Of the table; what failed is below it."""
    made, calm = outcome.measured, outcome.undisturbed
    rounds = f"{made.rounds}/{calm.rounds}" if calm else "-"
    pause = f"{made.pause_s:.1f}/{calm.pause_s:.1f}" if calm else "-"
    traffic = f"{made.received / 1e3:.0f}/{calm.received / 1e3:.0f}" if calm else "-"
    ejected = f"{outcome.ejected}/{outcome.liars}" if outcome.liars else "-"
    line = (
        f"{outcome.name:<34} {outcome.liars:>5} {outcome.keys:>5} {rounds:>9} {pause:>11} {traffic:>13} {ejected:>7}  "
        f"{'held' if outcome.held else 'NOT HELD'}"
    )
    return line if outcome.held else f"{line}\n    {outcome.failure}"


if __name__ == "__main__":
    raise SystemExit(main())
