"""`python -m tests.simulation --seed N [--trace]` replays one run; `--seeds K` runs many on all cores.

`--mutation NAME --seeds K` runs a build that is broken on purpose until a seed finds it; `--mutations` all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from multiprocessing.pool import Pool

from tests.simulation.ambushes import AMBUSHES, ambush
from tests.simulation.coverage import table
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.runs import Finished, Job, rough_job

PROGRESS_S = 20.0
FIND_WITHIN = 200
"""Seeds within which every mutation has to be found."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the run to replay, or the first of many")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs")
    parser.add_argument("--peers", type=int, help="instead of the seed's")
    parser.add_argument("--rounds", type=int, help="instead of the seed's")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--mutation", choices=list(MUTATIONS), help="run a build that is broken on purpose")
    parser.add_argument("--mutations", action="store_true", help="all of them, as a table: which seed finds each")
    arguments = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(min(max(arguments.seeds, 2), multiprocessing.cpu_count())) as pool:
        if arguments.mutations:
            return _find_all(pool, arguments)
        if arguments.mutation and not arguments.trace:
            return 0 if _find(pool, MUTATIONS[arguments.mutation], arguments) else 1
        return _run_many(pool, arguments)


def _jobs(arguments: argparse.Namespace, mutation: str | None) -> list[Job]:
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    return [(seed, arguments.peers, arguments.rounds, mutation) for seed in seeds]


def _run_many(pool: Pool, arguments: argparse.Namespace) -> int:
    started = shown = time.perf_counter()
    jobs = _jobs(arguments, arguments.mutation)
    done, failed, commits, met = 0, 0, 0, Counter[tuple[str, str]]()
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


def _find(pool: Pool, mutation: Mutation, arguments: argparse.Namespace) -> bool:
    """The first seed that finds the mutation, or the ambush that is laid for it."""
    is_ambushed = mutation.name in AMBUSHES
    runs = [ambush(mutation.name, mutation.name)] if is_ambushed else pool.imap(rough_job, _jobs(arguments, mutation.name))
    for run in runs:
        if run.failure is not None and mutation.shows in run.failure:
            where = "ambush" if is_ambushed else f"seed {run.seed:>4}"
            print(f"{mutation.name:<24} {mutation.broken:<10} {mutation.how:<48} {where}: {run.failure[:90]}", flush=True)
            return True
    print(f"{mutation.name:<24} {mutation.broken:<10} {mutation.how:<48} not found in {arguments.seeds} seeds", flush=True)
    return False


def _find_all(pool: Pool, arguments: argparse.Namespace) -> int:
    arguments.seeds = max(arguments.seeds, FIND_WITHIN)
    found = 0
    for mutation in MUTATIONS.values():
        found += _find(pool, mutation, arguments)
        pool.terminate()
        pool = multiprocessing.get_context("spawn").Pool()
    pool.terminate()
    print(f"{found} of {len(MUTATIONS)} mutations found within {arguments.seeds} seeds")
    return 0 if found == len(MUTATIONS) else 1


def _show(run: Finished, arguments: argparse.Namespace) -> None:
    if arguments.trace:
        print("\n".join(run.trace))
    if run.failure is not None:
        given = [(name, getattr(arguments, name)) for name in ("peers", "rounds", "mutation")]
        options = "".join(f" --{name} {value}" for name, value in given if value is not None)
        print(f"seed {run.seed}: {run.failure}")
        print(f"    again with: python -m tests.simulation --seed {run.seed}{options} --trace")
    elif arguments.trace:
        print(f"seed {run.seed}: {run.commits} rounds, {run.virtual_s:.0f} virtual seconds, trace {run.trace_hash}")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
