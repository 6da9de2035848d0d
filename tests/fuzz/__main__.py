"""`python -m tests.fuzz --seconds 60`: the doors under a coverage-guided fuzzer (atheris, libFuzzer's Python form).

`--statements N` tries the handlers of a swarm instead, with N well-formed statements of the wrong sense; `--rollouts N` what
judges proofs, rollouts, batches of them and statements about them, with N changed ones.

This process makes a corpus of the valid messages, starts the fuzzer in another, which ends with its first crash, and
prints what came of it.  A crash's input is kept, and `--replay FILE` tries it again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAX_BYTES = 8192
_PROGRESS = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", metavar="FILE", type=Path, help="try one input again, without the fuzzer")
    parser.add_argument("--statements", metavar="N", type=int, help="so many well-formed statements at a swarm's handlers")
    parser.add_argument("--rollouts", metavar="N", type=int, help="so many changed proofs, rollouts, batches and statements")
    parser.add_argument("--json", action="store_true", help="with --rollouts: what came of them, as JSON")
    args = parser.parse_args()
    if args.replay is not None:
        return _replay(args.replay)
    if args.statements is not None:
        return _say(args.statements, args.seed)
    if args.rollouts is not None:
        return _judge(args.rollouts, args.seed, args.json)
    if importlib.util.find_spec("atheris") is None:
        print("the fuzzer atheris is not installed; `make fuzz` installs it (pip install -e '.[fuzz]')", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder)
        seeds = _sow(corpus)
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.target",
            str(corpus),
            f"-max_total_time={args.seconds}",
            f"-seed={args.seed}",
            f"-max_len={MAX_BYTES}",
            f"-artifact_prefix={Path.cwd()}/fuzz-",
            "-timeout=30",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
            "-len_control=0",
        ]
        run = subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, errors="replace")
    return _report(run, seeds)


def _say(statements: int, seed: int) -> int:
    from tests.fuzz.statements import fuzz

    tally = fuzz(statements, seed)
    print("| statements | kinds and ways | let in | handlers that raised |")
    print("|---|---|---|---|")
    print(f"| {tally.statements.total()} | {len(tally.statements)} | {tally.accepted} | {len(tally.failures)} |")
    print("\n".join(tally.failures))
    return 1 if tally.failures else 0


def _judge(cases: int, seed: int, as_json: bool) -> int:
    from tests.fuzz.rollouts import fuzz

    began = time.process_time()
    tally = fuzz(cases, seed)
    seconds = round(time.process_time() - began, 1)
    if as_json:
        found = {"cases": tally.cases, "seed": seed, "processor_s": seconds, "outcomes": tally.outcomes}
        print(json.dumps({**found, "failures": tally.failures}))
    else:
        print("| what was changed | what came of it | cases |")
        print("|---|---|---|")
        for kind, counts in tally.outcomes.items():
            for outcome, count in counts.most_common():
                print(f"| {kind} | {outcome} | {count} |")
        print(f"{tally.cases} cases in {seconds} s of processor time, {len(tally.failures)} failures")
        print("\n".join(tally.failures))
    return 1 if tally.failures else 0


def _sow(corpus: Path) -> int:
    """One file a valid message; its first byte names the door."""
    from tests.fuzz.doors import DOORS

    for number, door in enumerate(DOORS):
        for index, seed in enumerate(door.seeds):
            (corpus / f"{number:03}-{index:02}").write_bytes(bytes([number]) + seed)
    return sum(len(door.seeds) for door in DOORS)


def _replay(path: Path) -> int:
    from tests.fuzz.doors import DOORS, check

    data = path.read_bytes()
    door = DOORS[data[0] % len(DOORS)]
    print(f"{door.name}: {'let in' if check(door, data[1:]) else 'refused'}")
    return 0


def _report(run: subprocess.CompletedProcess[str], seeds: int) -> int:
    progress = [match for line in run.stdout.splitlines() if (match := _PROGRESS.match(line))]
    if not progress:
        print(run.stdout)
        return 1
    (_, before, _, _), (executions, after, _, corpus) = progress[0].groups(), progress[-1].groups()
    done = re.search(r"number_of_executed_units: (\d+)", run.stdout)
    peak = re.search(r"peak_rss_mb:\s+(\d+)", run.stdout)
    crashes = re.findall(r"Test unit written to (\S+)", run.stdout)
    print("| executions | branches reached by the valid messages | at the end | inputs kept | peak memory | crashes |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {done[1] if done else executions} | {before} (of {seeds}) | {after} | {corpus} | "
        f"{peak[1] if peak else '?'} MB | {len(crashes)} |"
    )
    if run.returncode:
        print(run.stdout[-6000:])
        print("\n".join(f"replay: python -m tests.fuzz --replay {path}" for path in crashes))
    return 1 if run.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
