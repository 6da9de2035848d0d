"""`python -m tests.e2e.soak --runs 20`: the tests with real processes again and again, beside loops that keep cores busy.

Each run is a pytest of its own.  At the end a table says for each test how many of the runs it passed; the output
of a run that failed is printed when it fails.  The busy loops live as long as their run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

BUSY_LOOP = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""
"""Ends by itself when whoever started it is gone."""


@dataclass
class Tally:
    """Over all runs so far.  green: runs in which every test passed."""

    runs: int = 0
    green: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)

    def add(self, outcomes: dict[str, bool], *, green: bool) -> None:
        self.runs += 1
        self.green += green
        self.seen.update(outcomes.keys())
        self.passed.update(name for name, good in outcomes.items() if good)

    def table(self) -> str:
        lines = ["| test | passed | runs |", "|---|---|---|"]
        lines += [f"| {name} | {self.passed[name]} | {self.seen[name]} |" for name in sorted(self.seen)]
        return "\n".join([*lines, f"| all of them | {self.green} | {self.runs} |"])


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep `count` cores busy meanwhile."""
    command = [sys.executable, "-c", BUSY_LOOP, str(os.getpid())]
    loops = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def outcomes_in(report: Path) -> dict[str, bool]:
    """Each test of a JUnit report, and whether it passed; a test with an error in its fixtures has not."""
    found: dict[str, bool] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        good = not any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        found[name] = found.get(name, True) and good
    return found


def one_run(tests: list[str], busy: int) -> tuple[dict[str, bool], bool, str]:
    """Outcomes by test, whether the run was green as a whole, and what it printed."""
    with tempfile.TemporaryDirectory() as folder, busy_loops(busy):
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *tests, f"--junitxml={report}", "-p", "no:cacheprovider"]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as pytest:  # Ctrl-C is ours to pass on, once
            try:
                output, _ = pytest.communicate()
            except KeyboardInterrupt:
                pytest.send_signal(signal.SIGINT)  # so that it ends what its tests have started
                pytest.communicate()
                raise
        return outcomes_in(report) if report.exists() else {}, pytest.returncode == 0, output


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="busy loops beside them")
    parser.add_argument("tests", nargs="*", default=["tests/e2e"], help="what pytest gets")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # pytest and the busy loops end with us
    tally = Tally()
    try:
        for number in range(1, arguments.runs + 1):
            began = time.monotonic()
            outcomes, green, output = one_run(arguments.tests, arguments.busy)
            tally.add(outcomes, green=green)
            print(
                f"run {number} of {arguments.runs}: {sum(outcomes.values())} of {len(outcomes)} tests passed"
                f" in {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if not green:
                print(output, flush=True)
    except KeyboardInterrupt:
        print("stopped early")
    print(tally.table(), flush=True)
    return 0 if tally.green == tally.runs == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
