"""`python -m tests.simulation --seed N [--trace]` replays one run; `--seeds K` runs many on all cores.

`--mutation NAME --seeds K` runs a build that is broken on purpose until a seed finds it; `--mutations` all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tests.simulation.coverage import table
from tests.simulation.runs import Finished, rough_job

PROGRESS_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the run to replay, or the first of many")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs")
    parser.add_argument("--peers", type=int, help="instead of the seed's")
    parser.add_argument("--rounds", type=int, help="instead of the seed's")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    arguments = parser.parse_args()
    started = shown = time.perf_counter()
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    jobs = [(seed, arguments.peers, arguments.rounds) for seed in seeds]
    done, failed, commits, met = 0, 0, 0, Counter[tuple[str, str]]()
    with multiprocessing.get_context("spawn").Pool(min(len(jobs), multiprocessing.cpu_count())) as pool:
        for run in pool.imap_unordered(rough_job, jobs):
            done, failed, commits = done + 1, failed + (run.failure is not None), commits + run.commits
            met += run.met
            _show(run, arguments)
            if time.perf_counter() - shown > PROGRESS_S:
                shown = time.perf_counter()
                print(f"  {done} of {len(jobs)} seeds, {failed} failed, {shown - started:.0f} s", flush=True)
    print(table(met))
    seconds = time.perf_counter() - started
    print(f"{len(jobs)} seeds, {failed} failed, {commits} rounds committed and checked, {seconds:.0f} s")
    return 1 if failed else 0


def _show(run: Finished, arguments: argparse.Namespace) -> None:
    if arguments.trace:
        print("\n".join(run.trace))
    if run.failure is not None:
        given = [(name, getattr(arguments, name)) for name in ("peers", "rounds")]
        options = "".join(f" --{name} {value}" for name, value in given if value is not None)
        print(f"seed {run.seed}: {run.failure}")
        print(f"    again with: python -m tests.simulation --seed {run.seed}{options} --trace")
    elif arguments.trace:
        print(f"seed {run.seed}: {run.commits} rounds, {run.virtual_s:.0f} virtual seconds, trace {run.trace_hash}")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
