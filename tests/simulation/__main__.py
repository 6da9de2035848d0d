"""`python -m tests.simulation --seed N [--trace]` replays one run; `--seeds K` runs many on all cores."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.simulation.runs import Finished, rough_job


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the run to replay, or the first of many")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs")
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--trace", action="store_true", help="print what happened")
    arguments = parser.parse_args()
    started = time.perf_counter()
    jobs = [(arguments.peers, arguments.rounds, seed) for seed in range(arguments.seed, arguments.seed + arguments.seeds)]
    failed, commits = 0, 0
    with multiprocessing.get_context("spawn").Pool() as pool:
        for run in pool.imap_unordered(rough_job, jobs):
            failed, commits = failed + (run.failure is not None), commits + run.commits
            _show(run, arguments.trace)
    seconds = time.perf_counter() - started
    print(f"{len(jobs)} seeds, {failed} failed, {commits} rounds committed and checked, {seconds:.0f} s")
    return 1 if failed else 0


def _show(run: Finished, trace: bool) -> None:
    if trace:
        print("\n".join(run.trace))
    if run.failure is not None:
        print(f"seed {run.seed}: {run.failure}")
        print(f"    again with: python -m tests.simulation --seed {run.seed} --trace")
    elif trace:
        print(f"seed {run.seed}: {run.commits} rounds, {run.virtual_s:.0f} virtual seconds, trace {run.trace_hash}")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
