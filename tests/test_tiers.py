"""The tiers of tests: variants that are left to the slow one, and the table of processor seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import crossed, first_fast

BUSY = """
import subprocess, sys, time
LOOP = "import time\\nwhile time.process_time() < 0.3: pass"
def test_alone():
    exec(LOOP.replace("0.3", str(time.process_time() + 0.3)))
def test_child():
    subprocess.run([sys.executable, "-c", LOOP], check=True)
"""


def test_all_variants_but_the_first_are_slow() -> None:
    assert [hasattr(each, "marks") for each in first_fast("abc")] == [False, True, True]
    assert [each.values for each in first_fast([(1, 2), "ab"], 0)] == [(1, 2), ("ab",)]


def test_combinations_that_change_two_choices_are_slow() -> None:
    assert [hasattr(each, "marks") for each in crossed("ab", "xyz")] == [False, False, False, False, True, True]
    assert crossed("ab", "xyz")[0] == ("a", "x") and crossed("ab", "xyz")[4].values == ("b", "y")


@pytest.mark.slow
def test_processor_seconds_of_tests_and_their_children_are_told(tmp_path: Path) -> None:
    (tmp_path / "test_busy.py").write_text(BUSY)
    command = [sys.executable, "-m", "pytest", "-p", "tests.processor_time", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True, timeout=300
    )
    rows = [line.split() for line in done.stdout.splitlines() if "  test_busy.py" in line]
    assert {name for _, name in rows} == {"test_busy.py", "test_busy.py::test_alone", "test_busy.py::test_child"}, (
        done.stdout
    )
    assert all(float(taken) >= 0.3 for taken, _ in rows)
