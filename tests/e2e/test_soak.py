"""The soak counts rightly, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.e2e.soak import BUSY_LOOP, Tally, busy_loops, outcomes_in
from tests.e2e.swarm import PATIENCE_S

REPORT = """<testsuites><testsuite>
<testcase classname="tests.e2e.test_a" name="good"/>
<testcase classname="tests.e2e.test_a" name="wrong"><failure/></testcase>
<testcase classname="tests.e2e.test_b" name="left something"/>
<testcase classname="tests.e2e.test_b" name="left something"><error/></testcase>
<testcase classname="tests.e2e.test_b" name="not run"><skipped/></testcase>
</testsuite></testsuites>"""


def test_only_what_passed_whole_counts_as_passed(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    outcomes = outcomes_in(tmp_path / "report.xml")
    assert outcomes == {
        "test_a::good": True,
        "test_a::wrong": False,
        "test_b::left something": False,
        "test_b::not run": False,
    }
    tally = Tally()
    tally.add(outcomes, green=False)
    tally.add({"test_a::good": True}, green=True)
    assert "| test_a::good | 2 | 2 |" in tally.table() and "| test_a::wrong | 0 | 1 |" in tally.table()
    assert "| all of them | 1 | 2 |" in tally.table()


def test_busy_loops_end_with_their_run_and_with_their_parent() -> None:
    with busy_loops(2):
        deadline, loops = time.monotonic() + PATIENCE_S, list[psutil.Process]()
        while len(loops) < 2 and time.monotonic() < deadline:  # a program that has just begun has no command line yet
            loops = [child for child in psutil.Process().children() if BUSY_LOOP in child.cmdline()]
        assert len(loops) == 2
    assert psutil.wait_procs(loops, timeout=PATIENCE_S)[1] == []
    parent = f"""
import os, subprocess, sys
print(subprocess.Popen([sys.executable, "-c", {BUSY_LOOP!r}, str(os.getpid())], stdout=subprocess.DEVNULL).pid)
"""
    done = subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    orphans = [process for process in psutil.process_iter() if process.pid == int(done.stdout)]
    assert psutil.wait_procs(orphans, timeout=PATIENCE_S)[1] == []
